//! Functions that a program looks up by name: each hooked name gives the hook, every other one the library's function.

use super::programs::HOOKED;
use gpumem_tests::harness::Ran;
use gpumem_tests::harness::hip::program;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::Door;
use std::collections::BTreeMap;

/// The answers of the lookups of each name: by dlsym, dlvsym, RTLD_DEFAULT and hipGetProcAddress, and the codes of the
/// last one.
fn lookups(text: &str) -> BTreeMap<String, Vec<String>> {
    let line = |line: &str| {
        let (name, found) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), found.split(' ').map(str::to_owned).collect())
    };
    text.lines().map(line).collect()
}

/// Some names that are hooked at hip_4.2, some that are not hooked, and some that do not exist.
const NAMES: &str = "hipMalloc\nhipFree\nhipHostMalloc\nhipHostFree\nhipMallocPitch\nhipInit\nhipMemcpy\nhipGetDevice\n\
                     hipEventCreate\nhipNoSuchFunction\nhiprtcVersion\nhistogram\n";

/// Opened RTLD_LOCAL and looked up: each hooked name is ours in every way, all else native.
#[test]
fn opened_locally_and_looked_up() {
    const RUNTIME: &str = "libamdhip64.so.6";
    let run = program("lookup").input(NAMES);
    let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
    let (before, after) = (lookups(&native.out), lookups(&preloaded.out));
    assert_eq!(before.len(), NAMES.lines().count());
    for (name, found) in &before {
        let expected: Vec<String> =
            found
                .iter()
                .map(|file| {
                    if file == RUNTIME && HOOKED.contains(&name.as_str()) {
                        "libgpumem.so".into()
                    } else {
                        file.clone()
                    }
                })
                .collect();
        assert_eq!(after[name], expected, "{name}; natively {found:?}");
    }
    assert_eq!(before["hipMalloc"], [RUNTIME, RUNTIME, "null", RUNTIME, "0", "0"]);
    let ledger = preloaded.ledger();
    ledger.sound().complete().balanced();
    assert_eq!(ledger.counter(counters::allocs(AllocKind::Device)), 3, "one for each way to hipMalloc");
    assert_eq!(ledger.counter(counters::alloc_bytes(AllocKind::Device)), 3003);
    assert_ne!(ledger.snapshot.header.doors & Door::Dlsym as u32, 0);
}

/// A lookup may give the plain form of a function or the form with the thread's own default stream. The program gets the
/// hook of the form that HIP gave. hipGetProcAddress gives the plain form, whatever its flags are.
#[test]
fn the_answer_decides_which_form_a_lookup_gives() {
    let names =
        "hipStreamEndCapture\nhipStreamEndCapture_spt\nhipGraphLaunch\nhipMalloc\nhipMemcpy\nhipNoSuchFunction\n";
    let run = program("entry").input(names);
    let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
    let lines = |ran: &Ran| ran.out.lines().map(str::to_owned).collect::<Vec<_>>();
    let hooked = |function: &str| HOOKED.contains(&function);
    let expected: Vec<String> = lines(&native)
        .iter()
        .map(|line| {
            // ENTRY WAY NAME CODE FILE FUNCTION
            let words: Vec<&str> = line.split(' ').collect();
            let [way, flags, name, code, file, function] = words[..] else { panic!("{line}") };
            let file = if hooked(function) { "libgpumem.so" } else { file };
            format!("{way} {flags} {name} {code} {file} {function}")
        })
        .collect();
    assert_eq!(lines(&preloaded), expected);
    for line in [
        "proc 2 hipStreamEndCapture 0 libamdhip64.so.6 hipStreamEndCapture",
        "proc 0 hipStreamEndCapture_spt 0 libamdhip64.so.6 hipStreamEndCapture_spt",
        "entry 1 hipGraphLaunch 0 libamdhip64.so.6 hipGraphLaunch",
        "entry 2 hipGraphLaunch 0 libamdhip64.so.6 hipGraphLaunch_spt",
        "entry_spt 0 hipMalloc 0 libamdhip64.so.6 hipMalloc",
    ] {
        assert!(lines(&native).iter().any(|found| found == line), "{line} in {}", native.out);
    }
}

/// Disabled, every lookup gives the native pointer, and no file is left.
#[test]
fn disabled_leaves_everything_untouched() {
    let run = program("lookup").input(NAMES);
    let (native, disabled) = (run.native().ok(), run.env("GPUMEM_DISABLE", "1").preloaded().ok());
    assert_eq!(native.out, disabled.out);
    for name in ["hip_kinds", "hip_nodes"] {
        let (native, disabled) =
            (program(name).native().ok(), program(name).env("GPUMEM_DISABLE", "1").preloaded().ok());
        assert_eq!((native.out, native.err), (disabled.out, disabled.err));
        assert!(!disabled.dir.exists(), "{name} left something");
    }
    assert!(!disabled.dir.exists(), "the lookups left something");
}
