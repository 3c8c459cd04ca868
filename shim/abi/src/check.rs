//! Holds the rows against cudarc's `sys`: as many arguments, each of the same size and alignment.
//! Arguments of the same size travel in the same way here, since all of them are integers, pointers,
//! or structs of more than 16 bytes.

use crate::types::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Size and alignment of each argument, then of the result.
trait Shape {
    const SHAPE: &'static [(usize, usize)];
}

macro_rules! shape {
    ($($arg:ident)*) => {
        impl<R, $($arg),*> Shape for unsafe fn($($arg),*) -> R {
            const SHAPE: &'static [(usize, usize)] =
                &[$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())];
        }
        impl<R, $($arg),*> Shape for unsafe extern "C" fn($($arg),*) -> R {
            const SHAPE: &'static [(usize, usize)] =
                &[$((size_of::<$arg>(), align_of::<$arg>()),)* (size_of::<R>(), align_of::<R>())];
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

fn shape_of<F: Shape>(_: F) -> &'static [(usize, usize)] {
    F::SHAPE
}

/// The name a version suffix belongs to: what `cuGetProcAddress` is asked for.
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
    assert_eq!(size_of::<ExternalMemoryDesc>(), size_of::<sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC>());
    assert_eq!(size_of::<ExternalBufferDesc>(), size_of::<sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC>());
    assert_eq!(size_of::<MulticastProp>(), size_of::<sys::CUmulticastObjectProp>());
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
}
