//! Launches keep their order: on several streams, in several threads, and when execs go from handle to handle.

use super::*;

/// Launches of one handle on two streams, as events or the exec itself order them.
#[test]
fn two_streams_and_one_handle_keep_their_order() {
    for lag in ["0", "200"] {
        same(&order("streams").env("SIM_LAG_US", lag));
    }
}

/// Between the two launches the exec serves another handle: the second must wait for an event.
#[test]
fn order_outlives_an_eviction() {
    for lag in ["0", "200"] {
        for ran in &same(&order("evicted").env("SIM_LAG_US", lag))[..2] {
            assert!(count(ran, RETARGETS) >= 6, "the exec went over in each round");
        }
    }
}

/// The exec that it had for that launch knows nothing of the one to be waited for.
#[test]
fn order_outlives_a_launch_that_is_refused() {
    let refused = order("refused");
    refused.native().ok();
    for settings in [&[][..], &[("GPUMEM_GRAPH_IDLE", "20ms")], &[("GPUMEM_GRAPH_CACHE", "2")]] {
        let ran = refused.clone().envs(settings).preloaded().ok();
        assert_eq!(ran.violations(), refused.native().violations());
    }
}

/// As [`order_outlives_an_eviction`], where no other exec can be had: what runs node by node keeps its order
/// with what ran before it and what runs after it.
#[test]
fn order_outlives_running_one_by_one() {
    let faults: Vec<_> = (2..100).map(|call| format!("cuGraphInstantiateWithFlags:{call}=2")).collect();
    for mode in ["evicted", "uploaded", "back"] {
        same(&order(mode));
        let starved = bounded(&order(mode), 1).env("SIM_FAULT", faults.join(","));
        for lag in ["0", "200"] {
            let ran = starved.clone().env("SIM_LAG_US", lag).preloaded().ok();
            assert_eq!(ran.violations(), [""; 0]);
            assert!(count(&ran, ONE_BY_ONE) > 0, "{mode}: {}", count(&ran, ONE_BY_ONE));
        }
    }
}

/// The driver is not asked to upload what the program uploads: pending launches of a graph that was uploaded may run the
/// code of another kernel (docs/decisions/drivers.md).
#[test]
fn uploads_are_left_to_the_first_launch() {
    let refused = order("uploaded").env("SIM_FAULT", "cuGraphUpload:1=719");
    assert_ne!(refused.native().code, 0, "natively the driver is asked");
    refused.preloaded().ok();
}

/// A host function holds the exec of one handle, and opens only after others have run.
#[test]
fn handles_that_share_an_exec_do_not_wait_for_each_other() {
    let all = same(&order("gate"));
    for ran in &all[..2] {
        assert!(count(ran, OVER_BOUND) >= 1, "room for one, which was blocked");
        assert_eq!(live_execs(ran), 1, "and back under the bound");
    }
    assert!(all[2..].iter().all(|ran| live_execs(ran) <= 2));
}

/// An event that is left behind a launch later on, on a stream that waits for the legacy one, waits for what the legacy
/// stream was given since. Natively nothing is left there.
#[test]
fn what_is_left_behind_a_launch_waits_for_nothing_that_came_later() {
    let program = order("barrier");
    program.native().ok();
    program.preloaded().ok();
    hazard(&program);
}

/// Each thread's launches do what its own handles mean, whichever thread used their execs before. No two threads use
/// an exec at a time.
#[test]
fn threads_retarget_and_launch() {
    for slow in ["0", "100"] {
        for ran in &same(&order("threads").env("SIM_THREADS", "strict").env("SIM_SLOW_US", slow)) {
            // There are few if other programs use the cores and each thread runs long.
            assert!(count(ran, RETARGETS) > 10, "{}", count(ran, RETARGETS));
        }
    }
    // The same below the bounds, where a launch takes no other handle's exec.
    for slow in ["0", "0", "100"] {
        let idle = order("threads").env("SIM_THREADS", "strict").env("GPUMEM_GRAPH_IDLE", "1ms");
        let ran = idle.env("SIM_SLOW_US", slow).preloaded().ok();
        assert_eq!(ran.violations(), [""; 0]);
        assert!(count(&ran, RETARGETS) > 0 && count(&ran, OVER_BOUND) == 0);
    }
}
