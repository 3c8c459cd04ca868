//! Compares HIP's rows with `known_hip.txt`: headers and libraries of ROCm 5.2 to 7.2.

use crate::KNOWN_HIP;
use crate::types::*;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// The releases' data on a function: the version of its symbol, if a library exports it, and the sizes of its
/// arguments, if a header declares it.
type Said = Vec<(Option<&'static str>, Option<Vec<usize>>)>;

fn functions() -> BTreeMap<&'static str, Said> {
    let mut all: BTreeMap<&str, Said> = BTreeMap::new();
    for line in KNOWN_HIP.lines().filter_map(|line| line.strip_prefix("fn ")) {
        let words: Vec<&str> = line.split(" : ").next().unwrap_or_default().split(' ').collect();
        let [name, version, sizes] = words[..] else { panic!("{line}") };
        let sizes = match sizes {
            "-" => None,
            "none" => Some(Vec::new()),
            sizes => Some(sizes.split(',').map(|size| size.parse().expect("a size")).collect()),
        };
        all.entry(name).or_default().push((Some(version).filter(|version| *version != "-"), sizes));
    }
    all
}

/// Returns each row: name, and the sizes of its arguments.
fn rows() -> Vec<(&'static str, Vec<usize>)> {
    let mut rows = Vec::new();
    macro_rules! hooks {
        ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
            $(rows.push((stringify!($name), vec![$(size_of::<$ty>()),*]));)*
        };
    }
    hip_functions!(hooks);
    rows
}

/// Returns each thunk: name, and number of arguments.
fn thunks() -> Vec<(&'static str, usize)> {
    let mut rows = Vec::new();
    macro_rules! thunks {
        ($($name:ident ($($arg:ident),*);)*) => { $(rows.push((stringify!($name), [$(stringify!($arg)),*].len()));)* };
    }
    hip_graph_thunks!(thunks);
    rows
}

/// Functions of releases between those of `known_hip.txt`: ROCm 6.3 (ROCm/clr, hipamd/src/hip_hcc.map.in).
const BETWEEN: [&str; 1] = ["hipExtHostAlloc"];

#[test]
fn rows_have_the_arguments_of_every_release() {
    let known = functions();
    let mut rows = rows();
    macro_rules! calls {
        ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {
            $(rows.push((stringify!($name), vec![$(size_of::<$ty>()),*]));)*
        };
    }
    hip_calls!(calls);
    for (name, sizes) in rows.into_iter().filter(|row| !BETWEEN.contains(&row.0)) {
        let said = known.get(name).unwrap_or_else(|| panic!("no release has {name}"));
        for (_, declared) in said {
            assert!(declared.as_ref().is_none_or(|declared| *declared == sizes), "{name}: {declared:?}, not {sizes:?}");
        }
    }
    for (name, arguments) in thunks() {
        let said = known.get(name).unwrap_or_else(|| panic!("no release has {name}"));
        for declared in said.iter().filter_map(|said| said.1.as_ref()) {
            assert_eq!(declared.len(), arguments, "{name}");
        }
    }
}

/// Parts of the names of functions that give or take memory, make or use graphs, or hand out other functions.
const MATTERS: [&str; 29] = [
    "Alloc",
    "Free",
    "HostRegister",
    "HostUnregister",
    "IpcOpen",
    "IpcClose",
    "IpcGetMem",
    "Import",
    "DestroyExternal",
    "GetMapped",
    "MemCreate",
    "MemRelease",
    "MemMap",
    "MemUnmap",
    "AddressReserve",
    "ArrayCreate",
    "Array3DCreate",
    "ArrayDestroy",
    "BeginCapture",
    "EndCapture",
    "CaptureInfo",
    "Unload",
    "ProcAddress",
    "EntryPoint",
    "DeviceReset",
    "CtxReset",
    "StreamCreate",
    "StreamDestroy",
    "GetMemHandle",
];

/// Those of them without a row, each with the reason.
const LEFT_ALONE: [(&str, &str); 10] = [
    ("hipMemGetAllocationGranularity", "asks"),
    ("hipMemGetAllocationPropertiesFromHandle", "asks"),
    ("hipDestroyExternalSemaphore", "no memory"),
    ("hipImportExternalSemaphore", "no memory"),
    ("hipIpcOpenEventHandle", "no memory"),
    ("hipExternalMemoryGetMappedMipmappedArray", "no library exports it"),
    ("hipGraphicsResourceGetMappedPointer", "memory of the graphics API, counted there"),
    ("hipGraphicsSubResourceGetMappedArray", "memory of the graphics API, counted there"),
    ("hipMemMapArrayAsync", "no library does anything there: it answers that it is not supported"),
    ("hipMemPoolImportFromShareableHandle", "a pool without memory; what is taken from it is counted"),
];

#[test]
fn what_matters_has_a_row() {
    let rows: Vec<&str> = rows().into_iter().map(|row| row.0).chain(thunks().into_iter().map(|row| row.0)).collect();
    let takes_graphs = |name: &str| {
        (name.starts_with("hipGraph") || name.starts_with("hipDrvGraph")) && !name.starts_with("hipGraphics")
    };
    let (mut missing, mut matter) = (Vec::new(), 0);
    for name in functions().into_keys().filter(|name| name.starts_with("hip")) {
        if !takes_graphs(name) && !MATTERS.iter().any(|part| name.contains(part)) {
            continue;
        }
        matter += 1;
        let left = LEFT_ALONE.iter().any(|row| row.0 == name);
        assert!(!(left && rows.contains(&name)), "{name} has a row and is said to have none");
        if !left && !rows.contains(&name) {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "no row for {missing:?}");
    assert!(matter > 150, "{matter}");
    for (name, why) in LEFT_ALONE {
        assert!(functions().contains_key(name), "{name} ({why}) is in no release");
    }
}

/// Returns the releases that have this line.
fn say(line: &str) -> Vec<&'static str> {
    let said = KNOWN_HIP.lines().filter_map(|known| known.split_once(" : ").filter(|known| known.0 == line));
    said.flat_map(|known| known.1.split(' ')).collect()
}

const ALL: &str = "5.2 5.7 6.4 7.2";

#[track_caller]
fn holds(line: String, releases: &str) {
    assert_eq!(say(&line).join(" "), releases, "{line}");
}

#[test]
fn structs_are_those_of_every_release() {
    /// One field: its offset and its length.
    macro_rules! fields {
        ($hip:literal is $ty:ident { $($field:ident = $of:literal),* } in $releases:expr) => { $({
            fn bytes<T>(_: fn(&$ty) -> &T) -> usize { size_of::<T>() }
            let (at, len) = (offset_of!($ty, $field), bytes(|all| &all.$field));
            holds(format!("field {}.{} {at} {len}", $hip, $of), $releases);
        })* };
    }
    holds(format!("size hipExtent {}", size_of::<Extent>()), ALL);
    holds(format!("size hipPitchedPtr {}", size_of::<PitchedPtr>()), ALL);
    holds(format!("size hipChannelFormatDesc {}", size_of::<ChannelDesc>()), ALL);
    holds(format!("size hipIpcMemHandle_t {}", size_of::<IpcMemHandle>()), ALL);
    holds(format!("size HIP_ARRAY_DESCRIPTOR {}", size_of::<ArrayDescriptor>()), ALL);
    holds(format!("size HIP_ARRAY3D_DESCRIPTOR {}", size_of::<Array3dDescriptor>()), ALL);
    holds(format!("size hipGraphInstantiateParams {}", size_of::<HipGraphInstantiateParams>()), "6.4 7.2");
    fields!("hipExtent" is Extent { width = "width", height = "height", depth = "depth" } in ALL);
    fields!("hipPitchedPtr" is PitchedPtr { ptr = "ptr", pitch = "pitch", xsize = "xsize", ysize = "ysize" } in ALL);
    fields!("hipChannelFormatDesc" is ChannelDesc { x = "x", y = "y", z = "z", w = "w", kind = "f" } in ALL);
    fields!("HIP_ARRAY_DESCRIPTOR" is ArrayDescriptor {
        width = "Width", height = "Height", format = "Format", channels = "NumChannels"
    } in ALL);
    fields!("HIP_ARRAY3D_DESCRIPTOR" is Array3dDescriptor {
        width = "Width", height = "Height", depth = "Depth", format = "Format", channels = "NumChannels", flags = "Flags"
    } in ALL);
    fields!("hipGraphInstantiateParams" is HipGraphInstantiateParams {
        error_node_out = "errNode_out", flags = "flags", result_out = "result_out", upload_stream = "uploadStream"
    } in "6.4 7.2");
    fields!("hipExternalMemoryBufferDesc" is ExternalBufferDesc { offset = "offset", size = "size" } in ALL);
    // The first is all that may be read in every release: 5.x has no more.
    assert!(size_of::<ExternalBufferDesc>() <= 24 && size_of::<ExternalMemoryDesc>() <= 40);
}

#[test]
fn numbers_are_those_of_every_release() {
    for (name, number) in [
        ("hipSuccess", SUCCESS),
        ("hipErrorOutOfMemory", OUT_OF_MEMORY),
        ("hipErrorSharedObjectSymbolNotFound", SYMBOL_NOT_FOUND),
    ] {
        holds(format!("value {name} {number}"), ALL);
    }
    // Further values of `shim/src/backend`.
    for line in [
        "hipErrorNotSupported 801",
        "hipErrorStreamCaptureUnsupported 900",
        "hipStreamCaptureModeRelaxed 2",
        "hipStreamCaptureStatusActive 1",
        "hipEventDisableTiming 2",
        "hipStreamPerThread 2",
        "hipDeviceAttributeConcurrentManagedAccess 9",
        "hipDeviceAttributeIntegrated 16",
        "hipMemAttachGlobal 1",
        "hipHostMallocPortable 1",
        "hipHostMallocMapped 2",
    ] {
        holds(format!("value {line}"), ALL);
    }
    holds("value hipStreamLegacy 1".into(), "6.4 7.2");
}

/// On any other major version, gpumem only records.
#[test]
fn the_majors_that_are_served_are_those_of_the_headers() {
    let of = |line: &str| line.strip_prefix("release ")?.split(['.', ' ']).next()?.parse::<u32>().ok();
    let majors: std::collections::BTreeSet<u32> = KNOWN_HIP.lines().filter_map(of).collect();
    assert_eq!(majors.into_iter().collect::<Vec<_>>(), crate::HIP_MAJORS.collect::<Vec<_>>());
}
