//! Compares the rows with cudarc's `sys`: the same number of arguments, each of the same size and alignment. Arguments
//! of the same size are passed in the same way here, since all of them are integers, pointers, or structs of more than
//! 16 bytes.

use crate::known;
use crate::types::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// Size and alignment of each argument, then of the result; and the types of the arguments.
trait Shape {
    const SHAPE: &'static [(usize, usize)];
    fn types() -> Vec<&'static str>;
}

macro_rules! shape {
    ($($arg:ident)*) => {
        impl<R, $($arg),*> Shape for unsafe fn($($arg),*) -> R {
            const SHAPE: &'static [(usize, usize)] =
                &[$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())];
            fn types() -> Vec<&'static str> {
                vec![$(std::any::type_name::<$arg>()),*]
            }
        }
        impl<R, $($arg),*> Shape for unsafe extern "C" fn($($arg),*) -> R {
            const SHAPE: &'static [(usize, usize)] =
                &[$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())];
            fn types() -> Vec<&'static str> {
                vec![$(std::any::type_name::<$arg>()),*]
            }
        }
    };
}
shape!();
shape!(A);
shape!(A B);
shape!(A B C);
shape!(A B C D);
shape!(A B C D E);
shape!(A B C D E F);
shape!(A B C D E F G);
shape!(A B C D E F G H);
shape!(A B C D E F G H I);
shape!(A B C D E F G H I J);
shape!(A B C D E F G H I J K);

fn shape_of<F: Shape>(_: F) -> &'static [(usize, usize)] {
    F::SHAPE
}

fn types_of<F: Shape>(_: F) -> Vec<&'static str> {
    F::types()
}

/// Returns the name without its version suffix: the one that `cuGetProcAddress` is asked for.
fn base_of(symbol: &str) -> &str {
    let name = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    match name.rsplit_once("_v") {
        Some((base, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

macro_rules! same_shape {
    ($row:ident none ($($ty:ty),*)) => {};
    ($row:ident $sys:ident ($($ty:ty),*)) => {
        assert_eq!(
            <unsafe extern "C" fn($($ty),*) -> Status as Shape>::SHAPE,
            shape_of($sys as unsafe fn($(same_shape!(@any $ty)),*) -> _),
            "{} against {}", stringify!($row), stringify!($sys)
        );
    };
    (@any $ty:ty) => { _ };
}

#[test]
fn driver_rows_have_the_abi_of_sys() {
    use cudarc::driver::sys::*;
    macro_rules! emit {
        ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            $(same_shape!($name $sys ($($ty),*));)*
        };
    }
    driver_functions!(emit);
    macro_rules! emit_calls {
        ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => { $(same_shape!($name $sys ($($ty),*));)* };
    }
    driver_calls!(emit_calls);
}

/// A thunk is told how many arguments its function has. The row names them only for readers, who see that handles are
/// among them, and which ones they are.
#[test]
fn thunks_have_the_arguments_of_sys() {
    use cudarc::driver::sys::*;
    fn check(row: &str, sys: &str, names: &[&str], types: &[&str]) {
        assert_eq!(row.strip_suffix("_ptsz").unwrap_or(row), sys);
        for (name, ty) in names.iter().zip(types) {
            let handle = match ty.rsplit("::").next().expect("a word") {
                _ if !ty.starts_with("*mut ") || ty.starts_with("*mut *") => None,
                "CUgraph_st" => Some("graph"),
                "CUgraphExec_st" => Some("exec"),
                _ => None,
            };
            let named = Some(*name).filter(|name| matches!(*name, "graph" | "exec"));
            assert_eq!(named, handle, "{row}: {name} is a {ty}");
        }
    }
    macro_rules! of_row {
        ($row:ident none ($($arg:ident),*)) => {};
        ($row:ident $sys:ident ($($arg:ident),*)) => {
            check(
                stringify!($row),
                stringify!($sys),
                &[$(stringify!($arg)),*],
                // Does not compile with another number of arguments.
                &types_of($sys as unsafe fn($(same_shape!(@any $arg)),*) -> _),
            );
        };
        (@any $arg:ident) => { _ };
    }
    macro_rules! emit {
        ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
            $(of_row!($name $sys ($($arg),*));)*
        };
    }
    graph_thunks!(emit);
}

/// A handle of ours must not reach a function that does not know it.
#[test]
fn every_graph_function_has_a_row() {
    let mut rows = Vec::new();
    macro_rules! hooks {
        ($($name:ident [$($key:tt)*] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            rows.extend([$(stringify!($name)),*]);
        };
    }
    driver_functions!(hooks);
    macro_rules! thunks {
        ($($name:ident [$($key:tt)*] ($($arg:ident),*);)*) => { rows.extend([$(stringify!($name)),*]); };
    }
    graph_thunks!(thunks);
    let takes_graphs = |name: &&str| name.starts_with("cuGraph") && !name.starts_with("cuGraphics");
    let mut rows: Vec<&str> = rows.into_iter().filter(takes_graphs).collect();
    rows.sort_unstable();
    assert!(rows.is_sorted_by(|one, next| one < next), "each once");
    for (base, _, forms) in known::FUNCTIONS.iter().filter(|row| takes_graphs(&row.0)) {
        for form in 1..=*forms {
            let symbol = if form == 1 { (*base).to_owned() } else { format!("{base}_v{form}") };
            assert!(rows.contains(&symbol.as_str()), "no row for {symbol}");
        }
    }
}

/// Each row is a function of the headers, in a form that they have. (Forms whose default stream is the thread's own
/// came with 7.0, for functions that were older.)
#[test]
fn every_row_is_known() {
    let check = |name: &str, base: &str, since: u32| {
        let at = known::FUNCTIONS.binary_search_by(|row| row.0.cmp(base));
        let (_, versions, _) = known::FUNCTIONS[at.unwrap_or_else(|_| panic!("{name} is in no header"))];
        assert!(versions.contains(&since), "{name}: {base} has no form of version {since}");
        assert!(crate::knows(base.as_bytes()) && crate::knows_symbol(name.as_bytes()), "{name}");
    };
    macro_rules! hooks {
        ($($name:ident [$base:literal $since:literal $($key:tt)*] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            $(check(stringify!($name), $base, $since);)*
        };
    }
    driver_functions!(hooks);
    macro_rules! thunks {
        ($($name:ident [$base:literal $since:literal $($key:tt)*] ($($arg:ident),*);)*) => {
            $(check(stringify!($name), $base, $since);)*
        };
    }
    graph_thunks!(thunks);
}

/// Each function that gives the device work has a row, both those of the headers and those of sys.
#[test]
fn everything_known_that_submits_has_a_row() {
    let mut bases = Vec::new();
    macro_rules! hooks {
        ($($name:ident [$base:literal $($key:tt)*] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            bases.extend([$($base),*]);
        };
    }
    driver_functions!(hooks);
    let missing: Vec<&str> = known::FUNCTIONS
        .iter()
        .map(|row| row.0)
        .filter(|base| crate::may_submit(base.as_bytes()) && !bases.contains(base))
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}

/// Returns the source of sys.
pub(super) fn source_of_sys() -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut metadata = std::process::Command::new(cargo);
    metadata.args(["metadata", "--format-version=1", "--offline", "--filter-platform"]);
    metadata.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let answer = metadata.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    let answer = String::from_utf8(answer.stdout).expect("JSON");
    let mut manifests = answer.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let manifest = manifests.find(|path| path.contains("/cudarc-")).expect("cudarc is a dependency");
    let sys = std::path::Path::new(manifest).with_file_name("src/driver/sys/mod.rs");
    std::fs::read_to_string(sys).expect("the source of sys")
}

/// Returns every function of sys, of any version of the API.
fn functions_of_sys() -> Vec<String> {
    let sys = source_of_sys();
    let names = sys.split("pub unsafe fn cu").skip(1).filter_map(|rest| rest.split('(').next());
    let names: Vec<String> = names.map(|name| format!("cu{name}")).collect();
    assert!(names.len() > 500, "{} functions", names.len());
    names
}

/// Work for the device must be counted: each function of sys whose name shows it has a hook. Each hook that counts has
/// such a name, so that a newer one of its kind is noticed.
#[test]
fn everything_that_submits_has_a_row() {
    let mut rows = Vec::new();
    macro_rules! hooks {
        ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            rows.extend([$((stringify!($name), $base, $since, stringify!($flavour), stringify!($module), [$(stringify!($ty)),*].contains(&"Stream"))),*]);
        };
    }
    driver_functions!(hooks);
    let missing: Vec<String> = functions_of_sys()
        .into_iter()
        .filter(|name| crate::may_submit(name.as_bytes()) && !rows.iter().any(|row| row.0 == name))
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
    let counted = rows.iter().filter(|row| row.4 == "submit");
    for &(name, base, since, _, _, on_stream) in counted {
        assert!(crate::may_submit(name.as_bytes()), "{name}");
        // Each form with a stream has a twin for the thread's own default stream, since such twins exist.
        let twin = |row: &&(&str, &str, u32, &str, &str, bool)| row.1 == base && row.2 >= since && row.3 == "ptds";
        let has_twin = rows.iter().any(|row| twin(&row));
        assert!(has_twin || !on_stream || matches!(base, "cuLaunchGridAsync" | "cuGLUnmapBufferObjectAsync"), "{name}");
    }
}

#[test]
fn hip_rows_are_unique() {
    let mut rows = Vec::new();
    macro_rules! hooks {
        ($($name:ident => $($rest:ident)::*($($arg:ident: $ty:ty),*);)*) => { rows.extend([$(stringify!($name)),*]); };
    }
    hip_functions!(hooks);
    macro_rules! thunks {
        ($($name:ident ($($arg:ident),*);)*) => { rows.extend([$(stringify!($name)),*]); };
    }
    hip_graph_thunks!(thunks);
    rows.sort_unstable();
    assert!(rows.is_sorted_by(|one, next| one < next), "{rows:?}");
}

#[test]
fn runtime_rows_have_the_abi_of_sys() {
    use cudarc::runtime::sys::*;
    macro_rules! emit {
        ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => { $(same_shape!($name $sys ($($ty),*));)* };
    }
    runtime_functions!(emit);
}

#[test]
fn structs_have_the_sizes_of_sys() {
    use cudarc::driver::sys;
    assert_eq!(size_of::<IpcMemHandle>(), size_of::<sys::CUipcMemHandle>());
    assert_eq!(size_of::<ArrayDescriptor>(), size_of::<sys::CUDA_ARRAY_DESCRIPTOR>());
    assert_eq!(size_of::<Array3dDescriptor>(), size_of::<sys::CUDA_ARRAY3D_DESCRIPTOR>());
    assert_eq!(size_of::<GraphInstantiateParams>(), size_of::<sys::CUDA_GRAPH_INSTANTIATE_PARAMS>());
    assert_eq!(size_of::<GraphExecUpdateInfo>(), size_of::<sys::CUgraphExecUpdateResultInfo>());
    assert_eq!(offset_of!(ExternalMemoryDesc, size), offset_of!(sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size));
    assert_eq!(offset_of!(ExternalBufferDesc, size), offset_of!(sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size));
    assert_eq!(size_of::<MulticastProp>(), size_of::<sys::CUmulticastObjectProp>());
    assert_eq!(size_of::<MemLocation>(), size_of::<sys::CUmemLocation>());
    use cudarc::runtime::sys as rt;
    assert_eq!(size_of::<Extent>(), size_of::<rt::cudaExtent>());
    assert_eq!(size_of::<PitchedPtr>(), size_of::<rt::cudaPitchedPtr>());
    assert_eq!(size_of::<ChannelDesc>(), size_of::<rt::cudaChannelFormatDesc>());
}

#[test]
fn rows_are_unique_and_their_base_names_fit() {
    let mut places: HashMap<(&str, u32, &str), &str> = HashMap::new();
    macro_rules! emit {
        ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $($rest:ident)::*($($arg:ident: $ty:ty),*);)*) => { $(
            let (name, base, flavour) = (stringify!($name), $base, stringify!($flavour));
            assert_eq!(base_of(name), base, "{name}");
            assert_eq!(flavour == "ptds", name.ends_with("_ptsz") || name.ends_with("_ptds"), "{name}");
            if let Some(other) = places.insert((base, $since, flavour), name) {
                panic!("{name} and {other} claim the same version of {base}");
            }
        )* };
    }
    driver_functions!(emit);
    macro_rules! thunks {
        ($($name:ident [$($key:tt)*] ($($arg:ident),*);)*) => { emit!($($name [$($key)*] => thunk($($arg: usize),*);)*); };
    }
    graph_thunks!(thunks);
}
