//! Green contexts end. Objects that the driver destroys with one are not used afterwards. The program's memory and execs,
//! which the driver leaves, stay as they were.

use gpumem_tests::harness::{Program, client};
use gpumem_wire::counters;

/// Settings under which everything has to hold.
const SETTINGS: &[&[(&str, &str)]] =
    &[&[], &[("GPUMEM_FREE", "deferred")], &[("GPUMEM_GRAPH_CACHE", "1")], &[("SIM_REUSE_HANDLES", "1")]];

fn green(what: &str) -> Program {
    client("green").arg(what)
}

#[track_caller]
fn breaks_no_rule(what: &str) {
    assert_eq!(green(what).native().ok().violations(), [""; 0], "natively");
    for setting in SETTINGS {
        let ran = green(what).envs(setting).preloaded().ok();
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{setting:?}");
        ran.ledger().sound().complete().balanced();
    }
}

/// The primary context ends with the last green one that holds it, and all idle blocks with it.
#[test]
fn a_green_context_is_the_last_to_hold_the_primary_one() {
    breaks_no_rule("primary");
}

/// Memory that was allocated in a green context belongs to the primary context.
#[test]
fn memory_of_a_green_context_ends_with_the_primary_one() {
    breaks_no_rule("left");
}

/// Execs outlive the green context that they were made in, as memory does. The cache keeps nothing in that context.
#[test]
fn execs_outlive_their_green_context() {
    breaks_no_rule("execs");
}

/// A stream whose green context has ended is not asked whether a launch has completed.
#[test]
fn streams_that_outlive_their_green_context_are_not_asked() {
    breaks_no_rule("streams");
}

/// A capture that ended with its green context puts nothing aside any more.
#[test]
fn a_capture_ends_with_its_green_context() {
    let native = green("captures").native().ok();
    let ran = green("captures").preloaded().ok();
    assert_eq!(ran.violations(), native.violations());
    assert!(ran.err.contains("real allocations 0\n"), "{}", ran.err);
    let ledger = ran.ledger();
    assert_eq!(ledger.counter(counters::CAPTURES_FAILED), 1);
    ledger.sound().complete();
}
