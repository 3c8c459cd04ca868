//! The simulator against what was measured on real devices: every check of the conformance suite, and
//! the same answers under the preload.

use gpumem_tests::harness::{Program, command};

fn suite() -> Program {
    command(env!("CARGO_BIN_EXE_conformance"))
}

#[test]
fn t14_the_simulator_agrees_with_the_device_and_the_preload_changes_no_answer() {
    let native = suite().native();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let not_ok: Vec<_> = lines(&native.out).into_iter().filter(|line| !line.starts_with("ok ")).collect();
    assert_eq!((native.code, &not_ok), (0, &vec![]), "nothing is skipped either");
    // A real driver gives addresses out again at once, nodes' among them.
    for reused in ["0", "1"] {
        // Memory that comes back zeroed is the one thing that the pool does not keep up unasked.
        let preloaded = suite().env("SIM_REUSE_HANDLES", reused).env("GPUMEM_POOL_FILL", "zero").preloaded();
        assert_eq!((preloaded.code, lines(&preloaded.out)), (native.code, lines(&native.out)), "{}", preloaded.err);
    }
}
