//! The first calls of a process: what they wait for.

use super::ledgers::dead_ledger;
use gpumem_tests::harness::run::wait_for;
use gpumem_tests::harness::{Program, Ran, artifacts, client, command};
use gpumem_wire::place::ProcessId;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Under the preload, with a library that counts what takes milliseconds.
fn counted(program: Program) -> Program {
    let waits = artifacts().clients.join("libwaits.so");
    program.env("LD_PRELOAD", [artifacts().shim.as_os_str(), waits.as_os_str()].join(OsStr::new(":")))
}

/// Returns the library's counts: registrations and larger tables of descriptors, early and late; files removed on the
/// first thread and on others.
#[track_caller]
fn waits(ran: &Ran) -> [u32; 4] {
    let line = ran.err.lines().find_map(|line| line.strip_prefix("waits: ")).expect("the counts");
    let numbers: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().expect("four counts")
}

fn ledgers(dir: &Path) -> usize {
    let names = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| name.to_str().and_then(ProcessId::from_ledger_name).is_some()).count()
}

/// A directory beside `ran`'s own with this many ledgers of dead processes.
fn littered(ran: &Ran, count: u32) -> std::path::PathBuf {
    let bytes = fs::read(ran.ledger().path).expect("a ledger");
    let dir = ran.scratch().join(format!("dead-{count}"));
    fs::create_dir(&dir).expect("a directory");
    (1..=count).for_each(|n| drop(dead_ledger(&dir, &bytes, n)));
    dir
}

/// Registered while the process has one thread, membarrier waits for nothing; later it waits 10 ms and more. To remove a
/// file may take as long on a busy disk.
#[test]
fn the_first_call_waits_neither_for_the_kernel_nor_for_the_disk() {
    let first = client("many").arg("3").env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    let dir = littered(&first, 40);
    let running = counted(client("held")).dir(&dir).waits().start(true);
    running.says("held");
    wait_for("the sweep", || ledgers(&dir) == 9);
    let ran = running.finish().ok();
    let [early, late, here, there] = waits(&ran);
    // Its own control socket is removed as it ends.
    assert_eq!((early > 0, late, here, there >= 32), (true, 0, 1, true), "{}", ran.err);
    ran.ledger().complete();
}

/// The driver's cuInit starts a thread. From then on the kernel waits 4 to 14 ms if the table of descriptors has to grow.
#[test]
fn the_first_context_waits_for_nothing_beside_a_thread() {
    for child in [&[][..], &["fork"]] {
        let ran = counted(client("waits_beside").args(child.iter().copied())).preloaded().ok();
        assert_eq!(waits(&ran)[1], 0, "{child:?}: {}", ran.err);
    }
}

/// Without a control thread the ledgers of the dead go all the same. So they do where programs end before their control
/// threads get to it, which leaves a pile.
#[test]
fn without_a_control_thread_the_dead_are_swept_at_the_first_call() {
    let first = client("many").arg("3").env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    let few = littered(&first, 20);
    let ran = counted(client("many")).arg("3").env("GPUMEM_CONTROL", "0").dir(&few).preloaded().ok();
    assert_eq!((waits(&ran)[2..].to_vec(), ledgers(&few)), (vec![12, 0], 9), "{}", ran.err);
    let pile = littered(&first, 200);
    let many = client("many").arg("3").dir(&pile).denied("pthread_create:1-");
    let mut before = 200;
    while before >= 128 {
        many.preloaded().ok();
        let after = ledgers(&pile);
        assert!(after < before, "{after} ledgers, after {before}");
        before = after;
    }
}

/// Programs without a GPU register and have the table enlarged once, while they have one thread; under GPUMEM_DISABLE nothing is done.
#[test]
fn a_program_without_a_gpu_waits_for_nothing() {
    let ran = counted(command("true")).preloaded().ok();
    assert_eq!(waits(&ran), [2, 0, 0, 0]);
    let disabled = counted(client("many").arg("3")).env("GPUMEM_DISABLE", "1").preloaded().ok();
    assert_eq!(waits(&disabled), [0; 4]);
}
