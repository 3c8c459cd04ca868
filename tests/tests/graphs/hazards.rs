//! Hazards of few real execs that stand for many handles, one test for each case. The client runs the case natively and
//! preloaded, with room for one exec and for two, with and without folded graphs. It checks its own results. The tests
//! check the cache's counters.

mod order;

use gpumem_tests::harness::{Ledger, Program, Ran, client};
use gpumem_wire::counters::*;
use gpumem_wire::units;

fn order(mode: &str) -> Program {
    client("graph_order").arg(mode)
}

fn handles(mode: &str) -> Program {
    client("graph_handles").arg(mode)
}

fn code(mode: &str) -> Program {
    client("graph_code").arg(mode).env("SIM_REUSE_HANDLES", "1")
}

fn lives(mode: &str) -> Program {
    client("graph_lives").arg(mode)
}

/// The program with room for this many execs.
fn bounded(program: &Program, cap: u32) -> Program {
    program.clone().env("GPUMEM_GRAPH_CACHE", cap.to_string())
}

/// Runs a program preloaded with caps of one and two, with and without folding. No run may show a difference.
#[track_caller]
fn hazard(program: &Program) -> Vec<Ran> {
    let native = program.native().ok();
    let mut all = Vec::new();
    for (cap, fold) in [(1, "0"), (1, "1"), (2, "0"), (2, "1")] {
        let ran = bounded(program, cap).env("GPUMEM_GRAPH_FOLD", fold).preloaded().ok();
        assert_eq!(rules(&ran), rules(&native), "cap {cap}, fold {fold}");
        assert_eq!(ran.ours(), [""; 0], "cap {cap}, fold {fold}");
        let ledger = ran.ledger();
        ledger.agrees_with(&ran.json()).complete();
        nothing_left(&ledger);
        all.push(ran);
    }
    all
}

/// The same of a program that prints the same in each run.
#[track_caller]
fn same(program: &Program) -> Vec<Ran> {
    let (native, all) = (program.native().ok(), hazard(program));
    for ran in &all {
        assert_eq!(ran.out, native.out);
    }
    all
}

fn count(ran: &Ran, counter: usize) -> u64 {
    ran.ledger().counter(counter)
}

/// Handles, those that are pinned among them, are over when the program says so.
#[track_caller]
fn nothing_left(ledger: &Ledger) {
    let left = |made, ended| ledger.counter(made) - ledger.counter(ended);
    let held = left(EXECS_CREATED, EXECS_DESTROYED);
    assert!(left(HANDLES_MADE, HANDLES_ENDED) <= held, "handles left");
    assert!(left(PINNED_MADE, PINNED_ENDED) <= held, "pinned handles left");
    if held == 0 {
        assert_eq!(left(SOURCE_BYTES_ADDED, SOURCE_BYTES_REMOVED), 0, "bytes of sources left");
    }
}

/// Which rules of the driver were broken, without the handles.
fn rules(ran: &Ran) -> Vec<String> {
    let text = |line: &String| Some(line.split_once(",\"text\"")?.0.to_owned());
    ran.violations().iter().map(|line| text(line).unwrap_or_default()).collect()
}

/// Real execs that the driver had when the program asked it.
fn live_execs(ran: &Ran) -> u64 {
    let line = ran.err.lines().find_map(|line| line.strip_prefix("live_execs ")).expect("what the driver has");
    line.parse().expect("a number")
}

/// The graphs are changed and destroyed while a thread launches what was instantiated from them.
#[test]
fn a_graph_changes_and_goes_while_another_thread_launches() {
    for ran in &hazard(&order("destroyed"))[..2] {
        assert!(count(ran, RETARGETS) > 40);
    }
}

/// The address of a function is that of the function of the load before.
#[test]
fn a_module_comes_back_at_its_old_address() {
    same(&code("reload"));
    // With room for all: none of the parked ones may come back.
    code("reload").preloaded().ok().ledger().sound();
}

/// The driver tells to which library a kernel belongs, but not to which library a kernel's function belongs.
#[test]
fn a_library_comes_back_at_its_old_address() {
    same(&code("library"));
    code("library").preloaded().ok().ledger().sound();
    // Nor does it always tell of a kernel.
    let untold = (1..=16).map(|nth| format!("cuKernelGetLibrary:{nth}=500")).collect::<Vec<_>>().join(",");
    code("library").env("SIM_FAULT", &untold).preloaded().ok();
}

/// As in a capture that forbids it: what was known of the code is true then.
#[test]
fn a_module_that_is_not_unloaded_serves_on() {
    same(&code("refused"));
    code("refused").preloaded().ok().ledger().sound();
}

/// An exec's nodes keep their cluster through every setter and update.
#[test]
fn clusters_do_not_pass_to_those_that_have_none() {
    for ran in same(&code("cluster")) {
        assert!(count(&ran, PINNED_MADE) >= 1, "what the driver made of the update is for that handle alone");
    }
}

#[test]
fn a_disabled_node_does_not_outlive_its_handle() {
    for ran in &same(&handles("disabled"))[..2] {
        assert!(count(ran, RETARGETS) > 0, "the exec went from one to the other");
    }
    handles("disabled").preloaded().ok();
}

/// Verdicts are the driver's, whether it was asked or not.
#[test]
fn updates_across_classes_are_the_drivers() {
    for ran in same(&handles("update")) {
        assert_eq!((count(&ran, UPDATE_FAILURES), count(&ran, UPDATES)), (3, 4));
    }
}

#[test]
fn execs_of_destroyed_handles_serve_new_ones() {
    let recycled = handles("recycled");
    for ran in same(&recycled) {
        assert!(live_execs(&ran) <= 2);
    }
    let ran = recycled.preloaded().ok();
    assert!(count(&ran, RECYCLED) >= 40, "{}", count(&ran, RECYCLED));
    assert_eq!((count(&ran, REAL_EXECS_MADE), count(&ran, OVER_BOUND)), (2, 0), "as many as live at a time");
}

/// Also below the bound, a handle that has long been idle loses its exec to another handle, and gets a new one when it
/// is launched again.
#[test]
fn an_idle_exec_serves_another_handle() {
    let idle = handles("idle");
    same(&idle);
    let ran = idle.clone().env("GPUMEM_GRAPH_IDLE", "20ms").preloaded().ok();
    assert_eq!((live_execs(&ran), count(&ran, REAL_EXECS_MADE), count(&ran, RETARGETS)), (2, 2, 1));
    let ran = bounded(&idle, 1).env("GPUMEM_GRAPH_IDLE", "20ms").preloaded().ok();
    assert_eq!((live_execs(&ran), count(&ran, REAL_EXECS_MADE), count(&ran, RETARGETS)), (1, 1, 2), "within the bound");
    for never in ["0", "10s"] {
        let ran = idle.clone().env("GPUMEM_GRAPH_IDLE", never).preloaded().ok();
        assert_eq!((live_execs(&ran), count(&ran, REAL_EXECS_MADE), count(&ran, RETARGETS)), (2, 2, 0), "{never}");
    }
}

/// A program pauses and then goes on with the same graphs. At the bound each class goes on with its own execs. To take
/// an exec of another class would mean to destroy that exec and to make it again later.
#[test]
fn classes_keep_their_execs_over_a_pause() {
    let pauses = bounded(&handles("pauses"), 4).env("GPUMEM_GRAPH_IDLE", "20ms");
    pauses.native().ok();
    let ran = pauses.preloaded().ok();
    assert_eq!((count(&ran, OVER_BOUND), count(&ran, EVICTIONS)), (0, 0));
    assert!(count(&ran, RETARGETS) > 0);
}

/// An exec that was given other grids is slower for good. While the device is behind, such an exec is not given further
/// grids: a new exec is made, in the room of one that has completed. This does not happen if only parameters differ, or
/// if the program waits for the host.
#[test]
fn while_the_device_is_behind_execs_are_made_rather_than_worn() {
    let made = |mode: &str| {
        let program = bounded(&handles(mode), 4);
        program.native().ok();
        let ran = program.preloaded().ok();
        assert_eq!(ran.violations(), [""; 0]);
        assert_eq!(count(&ran, OVER_BOUND), 0, "{mode}");
        nothing_left(&ran.ledger());
        assert_eq!(count(&ran, REAL_EXECS_MADE), 4 + count(&ran, MADE_ANEW), "{mode}");
        count(&ran, MADE_ANEW)
    };
    assert_eq!(made("alike"), 0);
    assert_eq!(made("rested"), 0);
    // Every second time: one that was just made has lost nothing yet.
    assert_eq!(made("behind"), 2);
}

/// The same in threads, whose handles all share few execs.
#[test]
fn threads_make_execs_beside_each_other() {
    let beside = handles("beside").env("SIM_THREADS", "strict").env("SIM_SLOW_US", "20");
    beside.native().ok();
    let made = [4, 6, 12].map(|cap| {
        let ran = bounded(&beside, cap).preloaded().ok();
        assert_eq!(ran.violations(), [""; 0], "cap {cap}");
        nothing_left(&ran.ledger());
        count(&ran, MADE_ANEW)
    });
    assert!(made.iter().sum::<u64>() > 0, "{made:?}");
}

/// The program instantiated while there was memory. The cache has to instantiate at launches, and then there is none.
#[test]
fn out_of_memory_at_launch_is_not_seen() {
    let memory = handles("memory").env("SIM_DEVICE_MEM", "128M");
    memory.native().ok();
    for cap in [1, 2, 512] {
        for fold in ["0", "1"] {
            let ran = bounded(&memory, cap).env("GPUMEM_GRAPH_FOLD", fold).preloaded().ok();
            assert_eq!(ran.violations(), [""; 0]);
            nothing_left(&ran.ledger());
        }
    }
}

/// The one exec runs and no other can be had: the nodes run one by one, in the order of their edges,
/// without those that are switched off.
#[test]
fn without_execs_nodes_run_one_by_one() {
    let nodes = handles("nodes");
    same(&nodes);
    let faults: Vec<_> = (2..100).map(|call| format!("cuGraphInstantiateWithFlags:{call}=2")).collect();
    let native = nodes.native().ok();
    for fold in ["0", "1"] {
        let starved = bounded(&nodes, 1).env("GPUMEM_GRAPH_FOLD", fold).env("SIM_FAULT", faults.join(","));
        let ran = starved.preloaded().ok();
        assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()));
        assert!(count(&ran, ONE_BY_ONE) >= 6 && count(&ran, OOM_RETRIES) >= 6, "{}", count(&ran, ONE_BY_ONE));
        ran.ledger().agrees_with(&ran.json()).complete();
        nothing_left(&ran.ledger());
    }
}

/// A function that does not know our handles gets the real exec. That exec then stays with its handle.
/// The driver's graph of a folded graph becomes the template of its shape's first exec, or is destroyed at the program's
/// next wait. Few are destroyed earlier.
#[test]
fn folded_graphs_go_in_spare_time() {
    let said = |ran: &Ran, name: &str| -> Vec<u64> {
        ran.err.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect()
    };
    let spared = handles("spared");
    for (ran, fold) in same(&spared).iter().zip([0, 1, 0, 1]) {
        let graphs = said(ran, "graphs");
        match fold {
            1 => assert_eq!(graphs, [1, 2, 3, 3, 3, 3, 1]),
            _ => assert_eq!(graphs, [2, 3, 4, 5, 6, 7, 7]),
        }
        assert_eq!((said(ran, "added"), said(ran, "cloned")), (vec![0], vec![1 - fold]));
    }
}

#[test]
fn an_exec_that_others_know_is_pinned() {
    for ran in same(&handles("unknown")) {
        assert_eq!(count(&ran, PINNED_MADE), 1);
    }
}

/// An exec that holds objects of the program stays with its handle. The objects are released with the exec.
#[test]
fn user_objects_are_released_when_the_program_expects_it() {
    for ran in same(&lives("objects")) {
        assert!(count(&ran, PINNED_MADE) >= 2, "both execs of the graph with an object");
    }
}

#[test]
fn graphs_inside_graphs_are_set_and_launched() {
    for ran in &same(&lives("child"))[..2] {
        assert!(count(ran, EVICTIONS) > 0);
    }
}

/// The driver crashes on execs of a context that has ended. Handles of ours do not crash, and those of the next
/// context work.
#[test]
fn contexts_and_devices_go_with_live_handles() {
    for mode in ["context", "reset"] {
        for (cap, fold) in [(1, "0"), (1, "1"), (512, "0"), (512, "1")] {
            let ran = bounded(&lives(mode), cap).env("GPUMEM_GRAPH_FOLD", fold).preloaded().ok();
            ran.ledger().sound().complete();
            assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{mode}, cap {cap}, fold {fold}");
        }
    }
}

#[test]
fn a_child_of_fork_leaves_with_live_handles() {
    hazard(&lives("fork"));
}

#[test]
fn a_process_ends_with_live_handles() {
    for ran in same(&lives("exit")) {
        assert_eq!(count(&ran, HANDLES_MADE), 3);
    }
    // Code that runs last of all destroys them, when even the driver may have shut down.
    let late = lives("exit").arg("destroyed");
    let native = late.native().ok();
    for cap in [1, 512] {
        let ran = bounded(&late, cap).preloaded().ok();
        assert_eq!((&ran.out, ran.violations(), ran.ours().len()), (&native.out, native.violations(), 0));
        ran.ledger().sound();
    }
}

/// With the cache off the program has the driver's own execs.
#[test]
fn without_the_cache_execs_are_the_drivers() {
    for program in [handles("recycled"), handles("update"), lives("objects"), lives("child"), order("threads")] {
        let (native, ran) = (program.native().ok(), bounded(&program, 0).preloaded().ok());
        assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()));
        let ledger = ran.ledger();
        ledger.agrees_with(&ran.json()).complete();
        assert_eq!((ledger.counter(HANDLES_MADE), ledger.counter(REAL_EXECS_MADE), ledger.counter(FOLDS)), (0, 0, 0));
    }
}

/// The line at exit says how many handles, how many real execs, how many bytes.
#[test]
fn the_summary_tells_of_the_cache() {
    let ran = bounded(&handles("recycled"), 1).env("GPUMEM_SUMMARY", "1").preloaded().ok();
    let said = ran.ours().concat();
    let of = |counter| count(&ran, counter);
    for part in [
        format!("graph cache: {} handles on {} real execs", of(HANDLES_MADE), of(REAL_EXECS_MADE)),
        format!("{} retargets", of(RETARGETS)),
        format!("sources of {}", units::bytes(of(SOURCE_BYTES_ADDED) - of(SOURCE_BYTES_REMOVED))),
    ] {
        assert!(said.contains(&part), "{part} in {said}");
    }
}
