//! Contexts and streams end where other threads, or execs of other contexts, still have to do with them: nothing
//! dead is asked, nothing stays for ever, and the driver's answers are what they are without us.

use gpumem_tests::harness::{Program, Ran, client};
use gpumem_wire::counters::*;

fn ends(mode: &str) -> Program {
    client("graph_ends").arg(mode)
}

/// Runs it natively and preloaded with these settings: both well, and the driver's rules kept as natively.
#[track_caller]
fn as_natively(program: &Program, settings: &[(&str, &str)]) -> Ran {
    let native = program.native().ok();
    let ran = program.clone().envs(settings);
    let ran = ran.preloaded().ok();
    assert_eq!((ran.violations(), &ran.out), (native.violations(), &native.out), "{settings:?}");
    ran
}

/// A number that the client says under a name.
#[track_caller]
fn said(ran: &Ran, name: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    ran.err.lines().find_map(number).unwrap_or_else(|| panic!("no {name} in {}", ran.err))
}

const ONE: &[(&str, &str)] = &[("GPUMEM_GRAPH_CACHE", "1"), ("GPUMEM_GRAPH_IDLE", "0")];
const FEW: &[(&str, &str)] = &[("GPUMEM_GRAPH_CACHE", "2"), ("GPUMEM_GRAPH_IDLE", "1ms")];

/// A free waits for its own context, beside threads that end theirs.
#[test]
fn a_free_leaves_contexts_alone_that_end() {
    for mode in ["strict", "deferred"] {
        as_natively(&ends("frees"), &[("GPUMEM_FREE", mode)]);
    }
}

/// So does the look whether the device rests, with a pool and without.
#[test]
fn a_look_at_the_device_leaves_contexts_alone_that_end() {
    for pool in ["1", "0"] {
        as_natively(&ends("looks"), &[ONE, &[("GPUMEM_POOL", pool)]].concat());
    }
}

#[test]
fn streams_that_went_with_their_context_are_not_asked() {
    for cache in ["2", "16"] {
        as_natively(&ends("elsewhere"), &[("GPUMEM_GRAPH_CACHE", cache), ("GPUMEM_GRAPH_IDLE", "0")]);
    }
}

/// Events are of the context of the exec that they are left for, and go with that alone.
#[test]
fn an_event_behind_a_launch_lives_as_long_as_the_exec() {
    for settings in [ONE, FEW, &[]] {
        as_natively(&ends("foreign"), settings);
    }
}

/// They can be launched no more, and mean nothing.
#[test]
fn handles_that_outlive_their_context_keep_nothing() {
    for settings in [ONE, &[]] {
        let ledger = as_natively(&ends("outlived"), settings).ledger();
        assert_eq!((ledger.counter(HANDLES_MADE), ledger.counter(HANDLES_ENDED)), (24, 0));
        let sources = [SOURCE_BYTES_ADDED, SOURCE_BYTES_REMOVED].map(|counter| ledger.counter(counter));
        assert!(sources[0] > 0 && sources[0] == sources[1], "{sources:?}");
    }
}

/// No event can be left behind a launch then: that the device rests tells that it is over.
#[test]
fn execs_go_whose_stream_was_destroyed_during_a_capture() {
    let ran = as_natively(&ends("captured"), FEW);
    assert!(said(&ran, "live_execs") <= 2, "{}", ran.err);
}

/// The default stream of a thread that ended is nobody's to ask.
#[test]
fn execs_of_threads_that_ended_serve_others() {
    let ran = as_natively(&ends("threads"), &[]);
    assert!(said(&ran, "live_execs") <= 2, "{}", ran.err);
}

/// The driver refuses it, and all that is in the context stays.
#[test]
fn a_primary_context_is_not_destroyed() {
    as_natively(&ends("primary"), &[]);
}

/// Whose error it was is told by that context alone, whatever else ends.
#[test]
fn a_broken_context_stays_broken() {
    as_natively(&ends("broken"), &[]);
}

/// Destroying an exec may wait for the device, whose work waits for the program: also for what is in graphs that the
/// cache leaves to the driver.
#[test]
fn nothing_is_destroyed_while_a_graph_of_the_drivers_waits_for_the_program() {
    let ran = as_natively(&ends("outside"), ONE);
    assert_eq!(said(&ran, "destroyed"), 0);
}
