//! The graph cache with HIP: fewer real execs than handles, and a program that cannot tell. An exec is
//! taken only when nothing of it runs; the simulated library reports one that is destroyed while it does.

use gpumem_tests::harness::hip;

use gpumem_tests::harness::{Ledger, Program, Ran};
use gpumem_wire::counters::*;
use gpumem_wire::kinds::Pinned;
use serde_json::Value;

/// A program in one of its modes: `execs` has those that are about launches, `handles` all others.
fn execs(mode: &str) -> Program {
    let launches =
        ["rounds", "busy", "lanes", "changes", "updates", "idle", "any", "wears", "turns", "worn and busy", "copies"]
            .contains(&mode);
    hip::program(if launches { "execs" } else { "handles" }).arg(mode)
}

fn bounded(mode: &str, count: u64) -> Program {
    execs(mode).env("GPUMEM_GRAPH_CACHE", count.to_string())
}

/// One whose execs go from handle to handle by updates.
fn retargeted(mode: &str, count: u64) -> Program {
    bounded(mode, count).env("GPUMEM_HIP_RETARGET", "1").env("FILLS", "1")
}

/// A number that the program printed.
#[track_caller]
fn said(ran: &Ran, name: &str) -> u64 {
    let mut lines = ran.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find_map(|line| line[name].as_u64()).unwrap_or_else(|| panic!("{name} in {}", ran.out))
}

/// Runs it both ways: no mistake of the program's, none of ours, and a ledger that counts the same.
#[track_caller]
fn both(program: &Program) -> (Ran, Ran) {
    let (native, ours) = (program.native().ok(), program.preloaded().ok());
    assert_eq!(ours.violations(), [""; 0], "{program:?}");
    assert_eq!(ours.ours(), [""; 0], "nothing of ours on stderr");
    ours.ledger().sound().complete();
    (native, ours)
}

/// Handles, real execs made, and those ended.
fn execs_of(ledger: &Ledger) -> [u64; 3] {
    [HANDLES_MADE, REAL_EXECS_MADE, REAL_EXECS_ENDED].map(|counter| ledger.counter(counter))
}

#[test]
fn execs_stay_within_the_bound_and_results_are_right() {
    let (native, ours) = both(&bounded("rounds", 4));
    assert_eq!((said(&native, "most"), said(&ours, "most")), (24, 4));
    assert_eq!((said(&native, "end"), said(&ours, "end")), (0, 0));
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    let [handles, made, ended] = execs_of(&ledger);
    assert_eq!(handles, 24);
    assert_eq!(made, ended);
    assert!(made > 24, "each of four rounds makes anew what the one before ended: {made}");
    assert_eq!(ledger.counter(EVICTIONS), made - 4);
    assert_eq!((ledger.counter(OVER_BOUND), ledger.counter(RETARGETS)), (0, 0));
}

#[test]
fn without_a_bound_that_is_reached_every_handle_has_its_exec() {
    let (_, ours) = both(&execs("rounds"));
    assert_eq!(said(&ours, "most"), 24);
    let ledger = ours.ledger();
    assert_eq!(execs_of(&ledger), [24, 24, 24]);
    assert_eq!(ledger.counter(EVICTIONS), 0);
}

#[test]
fn off_is_native() {
    let (native, ours) = both(&bounded("rounds", 0));
    assert_eq!(said(&native, "most"), said(&ours, "most"));
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    assert_eq!(execs_of(&ledger), [0, 0, 0]);
    let live = bounded("reset", 0).preloaded().ok().ledger();
    assert_eq!(live.snapshot.execs.len(), 4);
    assert!(live.snapshot.execs.iter().all(|exec| exec.pinned() == Some(Pinned::Off)), "{:?}", live.snapshot.execs);
}

/// Running execs are not touched: the bound is exceeded instead, and kept again when all is over.
#[test]
fn what_runs_is_not_taken() {
    for lag in ["0", "20000"] {
        let (_, ours) = both(&bounded("busy", 2).env("SIM_LAG_US", lag));
        assert!(said(&ours, "idle") <= 2, "{}", ours.out);
        if lag != "0" {
            assert_eq!(said(&ours, "busy"), 6, "all of them run");
            assert_ne!(ours.ledger().counter(OVER_BOUND), 0);
        }
    }
}

/// HIP orders launches by their streams alone: one that is over tells nothing of an earlier one on
/// another stream.
#[test]
fn a_launch_on_another_stream_counts_too() {
    for lag in ["0", "2000"] {
        let (_, ours) = both(&bounded("lanes", 2).env("SIM_LAG_US", lag));
        assert!((1..=2).contains(&said(&ours, "idle")), "{}", ours.out);
        assert_ne!(ours.ledger().counter(EVICTIONS), 0);
        both(&execs("lanes").env("SIM_LAG_US", lag));
    }
}

/// A node that was set or switched off belongs to one handle, whose exec stays.
#[test]
fn changed_handles_keep_their_execs() {
    let (_, ours) = both(&bounded("changes", 3));
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    // Two that are changed, and three for all others.
    assert_eq!(said(&ours, "changed"), 5);
    assert_ne!(ledger.counter(EVICTIONS), 0);
}

/// An update by the program is no reason to keep an exec: a clone of the new graph stands for it.
#[test]
fn updated_handles_are_bounded_too() {
    let (_, ours) = both(&bounded("updates", 3));
    assert!(said(&ours, "updated") <= 3, "{}", ours.out);
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    assert_eq!(ledger.counter(UPDATES), 36);
    assert_ne!(ledger.counter(EVICTIONS), 0);
}

/// Execs that were not wanted for ten times the idle time make way for new ones.
#[test]
fn idle_execs_make_way() {
    let (native, ours) = both(&execs("idle").env("GPUMEM_GRAPH_IDLE", "20ms"));
    assert_eq!((said(&native, "before"), said(&native, "after")), (8, 16));
    assert_eq!((said(&ours, "before"), said(&ours, "after")), (8, 8));
    assert_ne!(ours.ledger().counter(EVICTIONS), 0);
    let never = execs("idle").env("GPUMEM_GRAPH_IDLE", "0").preloaded().ok();
    assert_eq!(said(&never, "after"), 16);
}

#[test]
fn a_reset_ends_what_was_there() {
    for lag in ["0", "20000"] {
        let (_, ours) = both(&bounded("reset", 2).env("SIM_LAG_US", lag));
        let ledger = ours.ledger();
        assert_eq!(ledger.counter(HANDLES_MADE), 8);
        assert!(said(&ours, "after") <= 2, "{}", ours.out);
    }
}

#[test]
fn execs_come_back_on_their_device() {
    let (_, ours) = both(&bounded("devices", 3).env("SIM_DEVICES", "2"));
    assert!(said(&ours, "devices") <= 3, "{}", ours.out);
    ours.ledger().balanced();
}

/// Memory is given back on other devices for a launch that lacks memory. This leaves the program's device current.
#[test]
fn a_device_stays_current_while_memory_is_given_back() {
    let short = bounded("shortage", 2).env("SIM_DEVICES", "2");
    both(&short);
    let ours = short.env("SIM_FAULT", "hipGraphLaunch:1=2").preloaded().ok();
    assert_eq!(ours.violations(), [""; 0]);
    assert_ne!(ours.ledger().counter(OOM_RETRIES), 0);
}

/// Random programs that know what each of their blocks must hold.
#[test]
fn anything_in_any_order() {
    for seed in 1..=6 {
        for (cap, lag, retarget) in [(1, "0", "0"), (3, "200", "0"), (6, "0", "1"), (2, "200", "1")] {
            let program = bounded("any", cap).env("SEED", seed.to_string());
            let program = program.env("SIM_LAG_US", lag).env("GPUMEM_HIP_RETARGET", retarget);
            let program = if retarget == "1" { program.env("FILLS", "1") } else { program };
            let ours = program.preloaded().ok();
            assert_eq!(ours.violations(), [""; 0], "{program:?}");
            ours.ledger().agrees_with(&ours.json()).complete().balanced();
            // Those of handles that ended wait for others.
            assert!(said(&ours, "end") <= if retarget == "1" { cap } else { 0 }, "{}", ours.out);
        }
    }
    let native = execs("any").env("SEED", "1").native().ok();
    assert_eq!(native.violations(), [""; 0]);
}

/// Child graphs are cloned with the graph around them.
#[test]
fn graphs_with_child_graphs_are_bounded() {
    for retarget in ["0", "1"] {
        let (_, ours) = both(&bounded("children", 2).env("GPUMEM_HIP_RETARGET", retarget));
        // Two, and one whose inner node was set.
        assert!(said(&ours, "children") <= 3, "{}", ours.out);
        assert_eq!(ours.ledger().counter(HANDLES_MADE), 6);
        assert_eq!(ours.ledger().counter(RETARGETS), 0, "updates of child graphs are not relied on");
    }
}

/// An exec that a clone cannot stand for is the library's own, with the reason in the ledger.
#[test]
fn kinds_that_cannot_be_cloned_are_pinned() {
    both(&bounded("kinds", 2));
    let ledger = bounded("kinds", 2).env("KEEP", "1").preloaded().ok().ledger();
    let mut execs: Vec<_> = ledger.snapshot.execs.iter().collect();
    execs.sort_by_key(|exec| exec.serial);
    let why: Vec<_> = execs.iter().take(6).filter_map(|exec| exec.pinned()).collect();
    use Pinned::*;
    assert_eq!(why, [MemoryNodes, EventNodes, ExternalNodes, UserObjects, None, None]);
}

/// NULL names another stream on each device.
#[test]
fn default_streams_of_devices_are_told_apart() {
    let (_, ours) = both(&bounded("defaults", 8).env("SIM_DEVICES", "2"));
    assert!(said(&ours, "defaults") <= 8, "{}", ours.out);
    assert_ne!(ours.ledger().counter(EVICTIONS), 0);
}

#[test]
fn a_child_of_a_fork_can_do_nothing_with_handles() {
    let (_, ours) = both(&bounded("forks", 2));
    ours.ledger().balanced();
}

#[test]
fn threads_on_their_own_default_streams() {
    for cap in [2, 3, 512] {
        let (_, ours) = both(&bounded("threads", cap));
        ours.ledger().balanced();
    }
}

/// The library calls itself, also for calls of ours, and something between calls back in.
#[test]
fn nested_calls_are_told_apart() {
    let (_, ours) = both(&bounded("nested", 2));
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    assert_eq!(ledger.counter(HANDLES_MADE), 4);
    assert_eq!(ledger.counter(EXECS_CREATED), 5, "the one with an event is the library's own");
}

/// A workload as llama-server's that keeps a graph for every shape.
#[test]
fn a_program_that_never_evicts_is_bounded() {
    let arguments =
        "--slots 3 --never-evict --shapes 40 --nodes 6 --iterations 320 --samples 20 --prefill 1 --weights 1 --kv 1";
    let demo = hip::program("hip_demo").args(arguments.split(' ')).env("GPUMEM_GRAPH_CACHE", "8");
    for retarget in ["0", "1"] {
        let (native, ours) = both(&demo.clone().env("GPUMEM_HIP_RETARGET", retarget));
        let samples = |ran: &Ran| -> Vec<u64> {
            let lines = ran.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter_map(|line| line["live_execs"].as_u64()).collect()
        };
        let (native, live) = (samples(&native), samples(&ours));
        assert!(native.iter().any(|&live| live > 80), "{native:?}");
        assert_eq!(live.len(), 20);
        assert!(live.iter().all(|&live| live <= 8), "{live:?}");
        ours.ledger().balanced();
    }
}

/// So many real execs were made, and at most one more for every 32 updates.
#[track_caller]
fn made(ledger: &Ledger, execs: u64) {
    let (made, worn) = (ledger.counter(REAL_EXECS_MADE), ledger.counter(RETARGETS) / 32);
    assert!((execs..=execs + worn).contains(&made), "{made} were made, {worn} of them may be for worn ones");
}

/// On request, an exec goes from one handle to another by hipGraphExecUpdate.
#[test]
fn execs_are_retargeted_on_request() {
    let (_, ours) = both(&retargeted("rounds", 4));
    assert_eq!(said(&ours, "most"), 4);
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    made(&ledger, 4);
    assert_ne!(ledger.counter(RETARGETS), 0);
    assert_eq!(ledger.counter(FALLBACK_INSTANTIATES), 0);
    for mode in ["busy", "lanes", "changes", "updates", "idle", "reset", "forks", "threads"] {
        both(&bounded(mode, 3).env("GPUMEM_HIP_RETARGET", "1").env("SIM_LAG_US", "500"));
        // In `changes` only the copy runs.
        if mode != "changes" {
            both(&retargeted(mode, 3).env("SIM_LAG_US", "500"));
        }
    }
}

/// HIP has nodes of two classes for copies, and an update reads the one as the other: such graphs keep their execs.
#[test]
fn graphs_with_copies_are_not_retargeted() {
    let (_, ours) = both(&bounded("copies", 2).env("GPUMEM_HIP_RETARGET", "1"));
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).balanced();
    assert_eq!(ledger.counter(RETARGETS), 0);
    assert_ne!(ledger.counter(EVICTIONS), 0);
}

/// A few kinds of launch give a node properties that HIP does not tell and that an update leaves as they were. Once
/// such a launch was captured, no exec of kernels goes to another handle.
#[test]
fn kernels_that_hold_more_than_hip_tells_are_not_retargeted() {
    let kernels = bounded("kernels", 2).env("GPUMEM_HIP_RETARGET", "1");
    for how in ["together", "together, by a function", "events", "events, by a function", "attributes"] {
        let (native, ours) = both(&kernels.clone().env("HOW", how));
        for counted in ["kernels", "cooperative"] {
            assert_eq!(said(&ours, counted), said(&native, counted), "{how}: {counted}");
        }
        assert_eq!(ours.ledger().counter(RETARGETS), 0, "{how}");
        assert_ne!(ours.ledger().counter(EVICTIONS), 0, "{how}");
    }
    let (_, ours) = both(&kernels.env("HOW", "plain"));
    assert_ne!(ours.ledger().counter(RETARGETS), 0);
}

/// Updates take memory that goes back with the exec alone. Natively that has no end; here an exec is made anew after
/// 32 of them, whoever made them.
#[test]
fn what_updates_take_is_bounded() {
    for lag in ["0", "200"] {
        let (native, ours) = both(&execs("wears").env("SIM_LAG_US", lag));
        assert_eq!(said(&native, "most"), 4 * 121);
        assert!(said(&ours, "most") <= 4 * 34, "{}", ours.out);
        let ledger = ours.ledger();
        ledger.agrees_with(&ours.json()).balanced();
        assert_eq!(ledger.counter(UPDATES), 480);
        // Two nodes each: one of the exec's own, and one for each update.
        let (native, ours) = both(&retargeted("turns", 1).env("SIM_LAG_US", lag));
        assert_eq!(said(&native, "most"), 6 * 2);
        assert!(said(&ours, "most") <= 2 * 33, "{}", ours.out);
        assert_ne!(ours.ledger().counter(RETARGETS), 0);
    }
}

/// No update waits for an exec that runs, nor fails because no other can be made.
#[test]
fn a_worn_exec_stays_where_no_other_can_take_its_place() {
    let (_, ours) = both(&execs("worn and busy"));
    assert_eq!(ours.ledger().counter(REAL_EXECS_MADE), 2);
    let fails =
        execs("worn and busy").env("SIM_FAULT", "hipGraphInstantiateWithFlags:2=2,hipGraphInstantiateWithFlags:3=2");
    let ours = fails.preloaded().ok();
    assert_eq!(ours.violations(), [""; 0]);
    assert_eq!(ours.ledger().counter(REAL_EXECS_MADE), 1);
}

/// An update that the library refuses leaves an exec that may be half of each: another takes its place.
#[test]
fn a_retarget_that_is_refused_is_made_anew() {
    let program = retargeted("rounds", 4);
    let ours = program.env("SIM_FAULT", "hipGraphExecUpdate:3=910,hipGraphExecUpdate:7=910").preloaded().ok();
    let ledger = ours.ledger();
    ledger.agrees_with(&ours.json()).complete().balanced();
    assert_eq!(ledger.counter(FALLBACK_INSTANTIATES), 2);
    made(&ledger, 6);
}
