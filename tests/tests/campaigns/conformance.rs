//! The simulator against what was measured on real devices: every check of the conformance suite, and
//! the same answers under the preload.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::{Program, command};
use std::path::Path;

/// The suite, whose processes can be checkpointed by each other.
fn suite(sockets: &Path) -> Program {
    command(env!("CARGO_BIN_EXE_conformance")).env("SIM_CHECKPOINT", sockets)
}

#[test]
fn the_simulator_agrees_with_the_device_and_the_preload_changes_no_answer() {
    // They wait for the device most of the time, so all of them run at once.
    let sockets = tempfile::tempdir().unwrap();
    let suite = || suite(sockets.path());
    let natively = suite().start(false);
    // A real driver gives addresses out again at once, nodes' among them.
    let preloaded = ["0", "1"].map(|reused| {
        // Memory that comes back zeroed is the one thing that the pool does not keep up unasked.
        suite().env("SIM_REUSE_HANDLES", reused).env("GPUMEM_POOL_FILL", "zero").start(true)
    });
    let native = natively.finish();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let not_ok: Vec<_> = lines(&native.out).into_iter().filter(|line| !line.starts_with("ok ")).collect();
    assert_eq!((native.code, &not_ok), (0, &vec![]), "nothing is skipped either");
    for preloaded in preloaded.map(Running::finish) {
        assert_eq!((preloaded.code, lines(&preloaded.out)), (native.code, lines(&native.out)), "{}", preloaded.err);
    }
}
