//! The simulator against what was measured on real devices: every check of the conformance suite, and
//! the same answers under the preload.

use gpumem_tests::harness::{Program, command};
use std::collections::BTreeSet;

fn suite() -> Program {
    command(env!("CARGO_BIN_EXE_conformance"))
}

/// What kernels of their own text find out: the simulator runs only those of `kernels/`.
const SKIPPED: &[&str] = &["update.captured_cluster_kept", "update.cluster_of_a_node_kept"];

#[test]
fn t14_the_simulator_agrees_with_the_device_and_the_preload_changes_no_answer() {
    let native = suite().native();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let not_ok: Vec<_> = lines(&native.out).into_iter().filter(|line| !line.starts_with("ok ")).collect();
    let skipped: BTreeSet<_> = not_ok.iter().filter_map(|line| line.strip_prefix("skip ")?.split(':').next()).collect();
    assert_eq!(skipped, SKIPPED.iter().copied().collect(), "{not_ok:#?}");
    assert_eq!((native.code, not_ok.len()), (0, SKIPPED.len()), "{not_ok:#?}");
    let preloaded = suite().preloaded();
    assert_eq!((preloaded.code, lines(&preloaded.out)), (native.code, lines(&native.out)), "{}", preloaded.err);
}
