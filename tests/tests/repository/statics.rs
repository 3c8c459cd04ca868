//! The process-wide state of the shim: each static is listed here, with what a child of a fork finds there.
//!
//! A child starts as a process of its own: the page of `process/wiped.rs` reads as zeroes there. Every other static
//! keeps its parent's value, so it needs a reason why that is right.

use gpumem_tests::harness::artifacts::repository;
use std::collections::BTreeSet;
use std::path::Path;

/// Why a child may keep its parent's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It never changes.
    Constant,
    /// It describes the code and memory that parent and child both have: addresses, loaded objects, the kernel.
    SameImage,
    /// Its accesses take no lock, and it owns memory that the child has a copy of.
    OwnCopy,
    /// It is about work, handles or memory of a device. The driver refuses all calls in a child of a process that has
    /// used it, so the child asks about none of them; a value too large only makes the shim do less.
    OfTheDevice,
    /// It is a counter or a flag of something said or asked once.
    OnceOnly,
    /// It holds the number of a process, or a handler of `fork` resets it.
    KnowsItsProcess,
    /// A thread has one of its own, and the thread that forks takes it along.
    OfAThread,
}
use Why::*;

/// File under `shim/src`, statics, reason. The page itself is `KNOWN` of `process/wiped.rs`: its address stays.
const STATICS: &[(&str, &[&str], Why)] = &[
    ("backend/cuda_graphs/attributes_set.rs", &["GIVEN", "ANY_UNKNOWN", "IN_STREAMS", "IN_CAPTURES"], OfTheDevice),
    ("backend/cuda_graphs/contexts.rs", &["KNOWN"], OfTheDevice),
    ("backend/cuda_graphs/read.rs", &["UNKNOWN"], SameImage),
    ("backend/driver.rs", &["BOUND", "BOUND_AT", "CALLS", "DRIVER", "REAL"], SameImage),
    ("backend/gates.rs", &["CLOSED"], OfTheDevice),
    ("backend/gates.rs", &["FULL", "MEMBER", "REAL", "WAIT"], SameImage),
    ("backend/green.rs", &["CONTEXTS"], OfTheDevice),
    ("backend/hip.rs", &["LEFT"], OfAThread),
    ("backend/hip.rs", &["FROM_ONE"], SameImage),
    ("backend/hip_graphs.rs", &["UNTOLD"], OfTheDevice),
    ("backend/hip_graphs.rs", &["DEVICES", "READY"], SameImage),
    ("backend/hip_runtime.rs", &["NAMES"], Constant),
    ("backend/hip_runtime.rs", &["CALLS", "PROVIDERS"], SameImage),
    ("backend/hip_runtime.rs", &["INSIDE", "LAST"], OfAThread),
    ("backend/scan.rs", &["LAUNCHES"], OfTheDevice),
    ("control.rs", &["STARTED_FOR"], KnowsItsProcess),
    ("doors/dl.rs", &["REAL", "REAL_DLSYM", "REAL_DLVSYM"], SameImage),
    ("doors/driver.rs", &["ADDRESSES"], Constant),
    ("doors/rows.rs", &["ROWS", "BY_NAME", "BY_BASE"], Constant),
    ("doors/runtime.rs", &["PROVIDERS"], SameImage),
    ("doors/runtime.rs", &["LAST"], OfAThread),
    ("doors/spare.rs", &["ABOUT", "REAL"], SameImage),
    ("doors/thunk.rs", &["ARGS"], Constant),
    ("graphs/caches.rs", &["WATCHED"], OfTheDevice),
    ("graphs/handle.rs", &["NOTHING_APART", "NO_EDITS"], Constant),
    ("graphs/mod.rs", &["OFF"], OfTheDevice),
    ("graphs/nodes.rs", &["TURN"], OfTheDevice),
    ("graphs/sources/folded.rs", &["WAITING"], OfTheDevice),
    ("graphs/store/bounds.rs", &["OVER"], OfTheDevice),
    ("group/seat.rs", &["MAPPED", "OPEN", "REGISTERED"], KnowsItsProcess),
    ("guard/mod.rs", &["AT_WAITS"], OfTheDevice),
    ("hooks/attributes.rs", &["TOLD"], OnceOnly),
    ("hooks/context.rs", &["TOLD"], OnceOnly),
    ("hooks/process.rs", &["AT_EXIT"], Constant),
    ("hooks/runtime_memory.rs", &["ANY_OLD", "NEW", "OLD"], SameImage),
    ("ledger/storage.rs", &["ZEROES"], Constant),
    ("pool/claims.rs", &["MADE"], OfTheDevice),
    ("pool/private.rs", &["TAKEN", "WANTED"], OfTheDevice),
    ("pool/releaser/frees.rs", &["RELEASE_STREAM_USED"], OfTheDevice),
    ("process/copies.rs", &["SAID"], OnceOnly),
    ("process/device_calls.rs", &["CALLS"], OfTheDevice),
    ("process/elf/copies.rs", &["COPY"], Constant),
    ("process/elf/copies.rs", &["KNOWN"], SameImage),
    ("process/elf/listing.rs", &["NEEDED"], SameImage),
    ("process/elf/mod.rs", &["OURS"], Constant),
    ("process/elf/mod.rs", &["OBJECTS", "RANGE", "UNLOADS"], SameImage),
    ("process/heap.rs", &["HEAP"], Constant),
    ("process/heap.rs", &["CHUNKS", "FREE", "FRESH"], OwnCopy),
    ("process/heap.rs", &["REFUSED", "RESERVE_ALONE"], OfAThread),
    ("process/heap/reserve.rs", &["CLOSE"], SameImage),
    ("process/heap/reserve.rs", &["COVERED", "KEPT", "KEPT_USED", "LONG", "SHORT", "SPARE"], OwnCopy),
    ("process/keys.rs", &["DELETIONS", "REAL", "WATCHED"], SameImage),
    ("process/load.rs", &["AT_LOAD"], Constant),
    ("process/load.rs", &["NOTED", "STDERR"], SameImage),
    ("process/own.rs", &["CHANGES", "FULL", "KEPT_BY_DRIVER", "MAPPINGS", "STACKS", "USED", "WORKED"], OwnCopy),
    ("process/panics.rs", &["LAST"], OnceOnly),
    ("process/processor.rs", &["NEEDS"], Constant),
    ("process/threads.rs", &["REFUSED"], OfAThread),
    ("process/threads.rs", &["BLOCKS", "LIVES", "NEXT"], OwnCopy),
    ("process/threads.rs", &["NONE"], Constant),
    ("process/wiped.rs", &["KNOWN"], SameImage),
    ("process/write.rs", &["NOW"], Constant),
    ("progress/activity.rs", &["COUNTS", "OUTSIDE"], OfTheDevice),
    ("progress/queries.rs", &["OF_CONTEXTS"], OfTheDevice),
    ("records/driver_memory.rs", &["CALLS_NS", "FIRST_NS", "LAUNCHED", "SPENT_NS"], OfTheDevice),
    ("records/events.rs", &["LIVE", "RECORDED"], OfTheDevice),
    ("records/registry/tag.rs", &["KNOWN", "LOST_IN"], KnowsItsProcess),
    ("references/host.rs", &["HERE"], Constant),
    ("references/mod.rs", &["END", "SEARCHING"], KnowsItsProcess),
    ("share/mod.rs", &["SAID_NS"], OnceOnly),
    ("share/wake.rs", &["ASKED_NS"], OnceOnly),
    ("stacks/modules.rs", &["SERIALS", "SNAPSHOTS"], OwnCopy),
    ("stacks/rules.rs", &["CACHE", "GENERATION"], OwnCopy),
    ("stranded/state/phase.rs", &["WORK"], OfTheDevice),
    ("stranded/state/uses.rs", &["WANTED"], OfTheDevice),
];

/// Finds the statics of a file without its tests, in functions and macros too.
fn statics(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].lines().filter_map(|line| {
        let line = line.trim_start();
        let line = if line.starts_with("pub") { line.split_once(' ')?.1 } else { line };
        let (name, kind) = line.strip_prefix("static ")?.split_once(": ")?;
        Some((name.trim_start_matches("mut "), kind))
    })
}

fn each_file(dir: &Path, each: &mut impl FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(dir).expect("a folder of the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("tests") {
            each_file(&path, each);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            each(&path, &std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn each_static_has_a_reason() {
    let root = repository().join("shim/src");
    let (mut found, mut locks) = (BTreeSet::new(), BTreeSet::new());
    each_file(&root, &mut |path, text| {
        let file = path.strip_prefix(&root).expect("it lies there").display().to_string();
        for (name, kind) in statics(text) {
            found.insert((file.clone(), name.to_owned()));
            if kind.starts_with("Mutex<") {
                locks.insert((file.clone(), name.to_owned()));
            }
        }
    });
    let rows = |names: &[&str], file: &str| names.iter().map(|name| (file.to_owned(), (*name).to_owned())).collect();
    let listed: BTreeSet<_> = STATICS.iter().flat_map(|(file, names, _)| -> Vec<_> { rows(names, file) }).collect();
    let (new, gone): (Vec<_>, Vec<_>) = (found.difference(&listed).collect(), listed.difference(&found).collect());
    assert!(new.is_empty() && gone.is_empty(), "without a row: {new:?}\nwithout a static: {gone:?}");
    // Another thread may hold a lock at a fork, and the child would wait for it without end. Locks lie on the page of
    // `process/wiped.rs` (`Place::locked`). These two do not: a child only tries the lock, or knows that it is lost.
    let safe = [("process/panics.rs", "LAST"), ("records/registry/tag.rs", "KNOWN")];
    let safe = |(file, name): &&(String, String)| !safe.contains(&(file.as_str(), name.as_str()));
    let wrong: Vec<_> = locks.iter().filter(safe).collect();
    assert!(wrong.is_empty(), "a child may wait for these locks without end: {wrong:?}");
}

#[test]
fn statics_are_found_wherever_they_stand() {
    let text = "static A: u8 = 0;\n    pub(crate) static B: Mutex<u8> = x;\nlet c = 'static;\nstatic mut D: u8 = 0;\n\
                #[cfg(test)]\nmod tests {\n    static E: u8 = 0;\n}";
    let names: Vec<&str> = statics(text).map(|(name, _)| name).collect();
    assert_eq!(names, ["A", "B", "D"]);
}
