//! Static storage that the preload takes of each thread, and the place of the rest of its facts about a thread.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{artifacts, client, command, program};
use std::path::Path;

/// How many bytes of static storage a library has in each thread: what its header of type PT_TLS says.
fn thread_bytes(library: &Path) -> u64 {
    const PT_TLS: u64 = 7;
    let file = std::fs::read(library).expect("a library");
    let number = |at: usize, bytes: usize| {
        file[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    // e_phoff, e_phentsize, e_phnum; p_type, p_memsz.
    let (table, len, entries) = (number(32, 8), number(54, 2), number(56, 2));
    let mut headers = (0..entries).map(|entry| (table + entry * len) as usize);
    headers.find(|&header| number(header, 4) == PT_TLS).map_or(0, |header| number(header + 40, 8))
}

/// With LD_AUDIT, libraries that are preloaded have 512 bytes together, and a little that is kept for others.
#[test]
fn a_thread_keeps_a_pointer_to_what_is_known_of_it() {
    let bytes = thread_bytes(&artifacts().shim);
    assert!((16..=512).contains(&bytes), "{bytes} bytes");
    assert_eq!(thread_bytes(&artifacts().clients.join("libkeeps.so")), 512);
}

/// An auditor has the loader lay threads out first. Another library, with 512 bytes of its own, has room as well.
#[test]
fn it_is_loaded_beside_an_auditor() {
    let auditor = artifacts().clients.join("libaudits.so");
    let both =
        [artifacts().shim.display(), artifacts().clients.join("libkeeps.so").display()].map(|path| path.to_string());
    let native = program("basic").env("LD_AUDIT", &auditor).native().ok();
    for preload in [both[0].clone(), both.join(":"), [both[1].clone(), both[0].clone()].join(":")] {
        let ran = program("basic").env("LD_AUDIT", &auditor).env("LD_PRELOAD", &preload).preloaded().ok();
        assert_eq!((&ran.out, ran.err.as_str(), ran.violations()), (&native.out, "", native.violations()), "{preload}");
        ran.ledger().agrees_with(&ran.json()).complete().balanced();
    }
    let inspector = command(&artifacts().gpumem).args(["run", "--"]).arg(artifacts().programs.join("basic"));
    let scratch = Scratch::new();
    let ran = inspector.env("LD_AUDIT", &auditor).env("GPUMEM_DIR", scratch.path()).native().ok();
    assert_eq!(ran.out, native.out, "{}", ran.err);
}

/// It is opened as any library, too.
#[test]
fn it_is_opened_later() {
    let ran = client("opens").arg(&artifacts().shim).native().ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("done\n", ""));
}

/// The record of a thread goes to another thread once the first has ended. It serves while the program's destructors
/// run.
#[test]
fn threads_that_come_and_go_take_no_memory() {
    const THREADS: u64 = 5000;
    let ran = client("short_threads").arg(THREADS.to_string()).env("GPUMEM_LOG", "quiet").preloaded().ok();
    let more: i64 = ran.out.trim().parse().expect("KiB");
    // 4,500 threads with 3 KiB each would be 13 MiB.
    assert!(more < 1024, "{more} KiB more after {THREADS} threads");
    let ledger = ran.ledger();
    ledger.complete().balanced();
    let allocs = ledger.counter(gpumem_wire::counters::allocs(gpumem_wire::kinds::AllocKind::Device));
    assert_eq!(allocs, THREADS * 5, "one for each thread and four for its destructor");
}
