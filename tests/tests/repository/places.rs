//! Each intercepted function has all its places: a row of the simulator, a program that calls it, and for functions of
//! the CUDA driver a check of the conformance suite. A missing place is named, so that somebody who adds a function need
//! not know the list.
//!
//! The compiler checks the hook. `shim/linked/tests/submissions.rs` calls each function whose hook only counts a
//! submission. This test is about functions that have a hook of their own.

use gpumem_tests::harness::artifacts::repository;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Symbol, the name that `cuGetProcAddress` is asked for, and the file of the hook.
type Row = (&'static str, &'static str, &'static str);

macro_rules! rows {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const ROWS: &[Row] = &[$((stringify!($name), $base, stringify!($module)),)*];
    };
}
gpumem_abi::driver_functions!(rows);

macro_rules! hip_rows {
    ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HIP_ROWS: &[Row] = &[$((stringify!($name), stringify!($name), stringify!($module)),)*];
    };
}
gpumem_abi::hip_functions!(hip_rows);

/// Files of hooks that many functions share, or that answer lookups.
const SHARED: [&str; 2] = ["submit", "procaddr"];

/// A place that each function must have, and the functions that do not have it yet. Names are only removed from that
/// list, and never added.
struct Place {
    missing: &'static str,
    folders: &'static [&'static str],
    not_yet: &'static [&'static str],
}

const PLACES: [Place; 3] = [
    Place {
        missing: "the simulator has no row of it: tests/sim/cuda/src",
        folders: &["tests/sim/cuda/src"],
        // Other APIs, other processes and machines, of which the simulator has none.
        not_yet: &[
            "cuDestroyExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuGraphExecExternalSemaphoresSignalNodeSetParams",
            "cuGraphExecExternalSemaphoresWaitNodeSetParams",
            "cuGraphExecGetId",
            "cuImportExternalMemory",
            "cuLogicalEndpointBindAddr",
            "cuMemPoolImportPointer",
            "cuMulticastCreate",
            "cuStreamBeginCaptureToCig",
            "cuStreamBeginRecaptureToGraph",
            "cuStreamEndCaptureToCig",
        ],
    },
    Place {
        missing: "no check holds simulator and GPU to the same rule: tests/src/conformance",
        folders: &["tests/src/conformance"],
        not_yet: &[
            "cuArray3DCreate",
            "cuCtxAttach",
            "cuCtxDetach",
            "cuCtxDisablePeerAccess",
            "cuCtxEnablePeerAccess",
            "cuCtxFromGreenCtx",
            "cuDestroyExternalMemory",
            "cuDevicePrimaryCtxReset",
            "cuEventSynchronize",
            "cuExternalMemoryGetMappedBuffer",
            "cuFuncSetAttribute",
            "cuGraphExecBatchMemOpNodeSetParams",
            "cuGraphExecEventRecordNodeSetEvent",
            "cuGraphExecEventWaitNodeSetEvent",
            "cuGraphExecExternalSemaphoresSignalNodeSetParams",
            "cuGraphExecExternalSemaphoresWaitNodeSetParams",
            "cuGraphExecGetId",
            "cuGraphExecHostNodeSetParams",
            "cuGraphExecNodeSetParams",
            "cuGraphNodeSetParams",
            "cuGreenCtxCreate",
            "cuGreenCtxDestroy",
            "cuGreenCtxStreamCreate",
            "cuImportExternalMemory",
            "cuIpcCloseMemHandle",
            "cuIpcOpenMemHandle",
            "cuKernelSetAttribute",
            "cuLogicalEndpointBindAddr",
            "cuMemGetHandleForAddressRange",
            "cuMemImportFromShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
            "cuMipmappedArrayCreate",
            "cuMipmappedArrayDestroy",
            "cuMulticastCreate",
            "cuPointerSetAttribute",
            "cuStreamBeginCaptureToCig",
            "cuStreamBeginCaptureToGraph",
            "cuStreamBeginRecaptureToGraph",
            "cuStreamEndCaptureToCig",
            "cuStreamGetCaptureInfo",
            "cuStreamSetAttribute",
        ],
    },
    Place {
        missing: "no program calls it natively and preloaded: tests/programs",
        folders: &["tests/programs", "tests/src/differ", "tests/src/pool", "tests/sim/cudart"],
        not_yet: &[
            "cuDestroyExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuGraphExecBatchMemOpNodeSetParams",
            "cuGraphExecExternalSemaphoresSignalNodeSetParams",
            "cuGraphExecExternalSemaphoresWaitNodeSetParams",
            "cuGraphExecGetId",
            "cuImportExternalMemory",
            "cuLogicalEndpointBindAddr",
            "cuMemPoolImportPointer",
            "cuMulticastCreate",
            "cuStreamBeginCaptureToCig",
            "cuStreamBeginRecaptureToGraph",
            "cuStreamEndCaptureToCig",
        ],
    },
];

/// HIP has no place for checks: its suite calls few functions, since no AMD device was at hand to hold it to.
const HIP_PLACES: [Place; 2] = [
    Place {
        missing: "the simulator has no row of it: tests/sim/hip/src",
        folders: &["tests/sim/hip/src"],
        not_yet: &[],
    },
    Place {
        missing: "no program calls it: tests/programs or tests/src/conformance/hip",
        folders: &["tests/programs", "tests/src"],
        not_yet: &[
            "hipDestroyExternalMemory",
            "hipDrvLaunchKernelEx",
            "hipExternalMemoryGetMappedBuffer",
            "hipGraphAddNode",
            "hipGraphDestroyNode",
            "hipGraphExecBatchMemOpNodeSetParams",
            "hipGraphExecChildGraphNodeSetParams",
            "hipGraphExecEventRecordNodeSetEvent",
            "hipGraphExecEventWaitNodeSetEvent",
            "hipGraphExecExternalSemaphoresSignalNodeSetParams",
            "hipGraphExecExternalSemaphoresWaitNodeSetParams",
            "hipGraphExecMemcpyNodeSetParams",
            "hipGraphExecNodeSetParams",
            "hipHccModuleLaunchKernel",
            "hipLaunchCooperativeKernel_spt",
            "hipLibraryUnload",
            "hipMemImportFromShareableHandle",
            "hipMemPoolExportPointer",
            "hipMemRetainAllocationHandle",
            "hipStreamCreateWithPriority",
            "hipStreamGetCaptureInfo",
            "hipStreamGetCaptureInfo_spt",
            "hipStreamGetCaptureInfo_v2",
            "hipStreamGetCaptureInfo_v2_spt",
        ],
    },
];

/// The words of all sources of a folder, without comments.
fn words(folder: &Path, into: &mut BTreeSet<String>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            words(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "c" || end == "h") {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let words = code.flat_map(|line| line.split(move |c| !is_part(c)));
            into.extend(words.filter(|word| word.starts_with("cu") || word.starts_with("hip")).map(str::to_owned));
        }
    }
}

/// Returns the faults in the places of these functions, a line each.
fn faults<'a>(rows: impl IntoIterator<Item = &'a Row>, places: &[Place]) -> Vec<String> {
    let mut functions = BTreeMap::<&str, Vec<&str>>::new();
    for (symbol, base, module) in rows {
        if !SHARED.contains(module) {
            functions.entry(base).or_default().push(symbol);
        }
    }
    let mut faults = Vec::new();
    for place in places {
        let mut found = BTreeSet::new();
        place.folders.iter().for_each(|folder| words(&repository().join(folder), &mut found));
        for (base, symbols) in &functions {
            let is_there = found.contains(*base) || symbols.iter().any(|symbol| found.contains(*symbol));
            match (is_there, place.not_yet.contains(base)) {
                (false, false) => faults.push(format!("{base}: {}", place.missing)),
                (true, true) => {
                    faults.push(format!("{base}: it is there now; take it out of the list of `{}`", place.missing))
                }
                _ => {}
            }
        }
        let unknown = place.not_yet.iter().filter(|name| !functions.contains_key(*name));
        faults.extend(unknown.map(|name| format!("{name}: listed, and no row has it")));
    }
    faults
}

#[test]
fn each_intercepted_function_has_all_its_places() {
    let mut faults = faults(ROWS, &PLACES);
    faults.extend(self::faults(HIP_ROWS, &HIP_PLACES));
    assert!(faults.is_empty(), "{} places:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_forgotten_place_is_named() {
    let forgotten: Row = ("cuForgotten_v2", "cuForgotten", "memory");
    let shared: Row = ("cuForgottenAsync", "cuForgottenAsync", "submit");
    let found = faults(ROWS.iter().chain([&forgotten, &shared]), &PLACES);
    let wanted = PLACES.map(|place| format!("cuForgotten: {}", place.missing));
    assert_eq!(found, wanted);
    let of_hip: Row = ("hipForgotten", "hipForgotten", "memory");
    let found = faults(HIP_ROWS.iter().chain([&of_hip]), &HIP_PLACES);
    assert_eq!(found, HIP_PLACES.map(|place| format!("hipForgotten: {}", place.missing)));
}

/// Files of the shim, but for what a test of theirs says, in which this text stands. Each file's name from `shim/src` on.
fn files_with(text: &str) -> BTreeSet<String> {
    let from = repository().join("shim/src");
    let mut folders = vec![from.clone()];
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("text");
            let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let calls = |line: &str| line.contains(text) && !line.trim_start().starts_with("//");
            if code.lines().any(calls) {
                let name = path.strip_prefix(&from).expect("below it");
                found.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// All memory is had one way (`shim/src/request`): its parts call the limit, the ladder and the record, and no hook does
/// so by itself. One room writes the records of allocations.
#[test]
fn memory_is_asked_for_and_recorded_in_one_place() {
    for (text, only) in [
        // The limit, and what is tried before memory runs out.
        (".admits(", &["request/ladder.rs"][..]),
        ("ladder::again(", &["request/mod.rs"]),
        ("ladder::room_for(", &["request/mod.rs"]),
        // The record, of what was made and of what failed.
        ("allocations::failed(", &["request/mod.rs"]),
        // Code and events are no memory that a call asks for.
        (
            "allocations::made(",
            &["records/code.rs", "records/events.rs", "records/shared.rs", "records/vmm.rs", "request/mod.rs"],
        ),
        ("vmm::created(", &["request/mod.rs"]),
        ("vmm::mapped(", &["request/mod.rs"]),
        // The ledger's table: one writer.
        ("allocs.write(", &["records/allocations.rs", "records/blocks.rs"]),
        ("allocs.take(", &["records/blocks.rs"]),
        ("allocs.hide", &["records/blocks.rs"]),
        ("allocs.clear", &["records/allocations.rs", "records/blocks.rs"]),
        ("place(&shim.ledger.allocs", &["records/allocations.rs"]),
        // The maps that find a record.
        ("registry.allocations.", &["records/allocations.rs", "records/shared.rs", "records/vmm.rs"]),
        ("registry.vmm.", &["records/vmm.rs"]),
        ("registry.graph_memory.", &["records/graph_memory.rs"]),
        ("registry.shared)", &["records/shared.rs"]),
    ] {
        let only: BTreeSet<String> = only.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(files_with(text), only, "{text}");
    }
}
