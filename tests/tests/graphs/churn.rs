//! Programs that capture, update and instantiate anew all the time: the execs that there are serve them,
//! whatever code the kernels are of. Each runs natively and preloaded and judges its own results; the
//! tests judge what the simulator and the cache say.

use gpumem_tests::harness::{Ledger, Program, Ran, client};
use gpumem_wire::counters::*;

fn churn(mode: &str) -> Program {
    client("graph_churn").arg(mode)
}

fn gone(mode: &str) -> Program {
    client("graph_gone").arg(mode)
}

/// Runs it natively, and preloaded with each of these settings: the same results, no rule of the driver
/// broken, every handle counted to its end. What was preloaded, with its ledger.
#[track_caller]
fn same(program: &Program, settings: &[&[(&str, &str)]]) -> Vec<(Ran, Ledger)> {
    let native = program.native().ok();
    assert_eq!(native.violations(), [""; 0], "natively");
    let preloaded = |with: &&[(&str, &str)]| {
        let ran = program.clone().envs(with);
        let ran = ran.preloaded().ok();
        assert_eq!(ran.out, native.out, "{with:?}");
        assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{with:?}");
        let ledger = ran.ledger();
        ledger.agrees_with(&ran.json()).complete();
        for (made, ended) in [
            (EXECS_CREATED, EXECS_DESTROYED),
            (HANDLES_MADE, HANDLES_ENDED),
            (PINNED_MADE, PINNED_ENDED),
            (SOURCE_BYTES_ADDED, SOURCE_BYTES_REMOVED),
        ] {
            assert_eq!(ledger.counter(made), ledger.counter(ended), "{with:?}");
        }
        (ran, ledger)
    };
    settings.iter().map(preloaded).collect()
}

const KEPT: &[(&str, &str)] = &[("GPUMEM_GRAPH_FOLD", "0")];
const DEFAULT: &[(&str, &str)] = &[];
const ONE: &[(&str, &str)] = &[("GPUMEM_GRAPH_CACHE", "1")];
const TWO_KEPT: &[(&str, &str)] = &[("GPUMEM_GRAPH_CACHE", "2"), ("GPUMEM_GRAPH_FOLD", "0")];

/// Numbers that the client says under a name.
#[track_caller]
fn said(ran: &Ran, name: &str) -> Vec<u64> {
    let number = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
    let numbers: Vec<_> = ran.err.lines().filter_map(number).collect();
    assert!(!numbers.is_empty(), "no {name} in {}", ran.err);
    numbers
}

/// Kernels of one graph come from many modules and libraries, and from others in the next.
#[test]
fn execs_serve_graphs_of_whatever_code() {
    let ggml = churn("ggml");
    let native = ggml.native().ok();
    let refused = native.json()["exec_updates_failed"].as_u64().expect("a number");
    assert!(refused > 80 && said(&native, "instantiations")[0] > 50, "it churns: {refused}");
    for (ran, ledger) in same(&ggml, &[DEFAULT, KEPT]) {
        let count = |counter| ledger.counter(counter);
        assert_eq!(count(PINNED_MADE), 0);
        assert_eq!(count(UPDATE_FAILURES), refused);
        // Six shapes, of which three handles may have one each at a time.
        assert!(count(REAL_EXECS_MADE) <= 18, "{}", count(REAL_EXECS_MADE));
        assert!(said(&ran, "instantiations")[0] <= 6, "after the first third: {:?}", said(&ran, "instantiations"));
        assert!(count(RECYCLED) > 50, "{}", count(RECYCLED));
    }
    for (_, ledger) in same(&ggml, &[ONE, TWO_KEPT]) {
        assert_eq!((ledger.counter(PINNED_MADE), ledger.counter(OVER_BOUND)), (0, 0));
    }
}

/// A graph that an update was tried with is read once, and its parts are not made again for the verdict.
#[test]
fn a_refused_update_reads_its_graph_once() {
    for (_, ledger) in same(&churn("ggml"), &[DEFAULT]) {
        assert_eq!(ledger.counter(UNFOLDS), 0);
        assert_eq!(ledger.counter(FOLDS), ledger.counter(CAPTURES_ENDED));
    }
}

/// With the bounds as they are by default.
#[test]
fn an_exec_of_a_known_class_is_not_made_again() {
    for (ran, ledger) in same(&churn("known"), &[DEFAULT, KEPT]) {
        let made = said(&ran, "instantiations");
        assert_eq!(made[1], made[0], "four shapes, all known");
        assert_eq!((ledger.counter(REAL_EXECS_MADE), ledger.counter(RECYCLED)), (4, 36));
    }
}

/// The driver is asked whether one form stands in for the other, and its exec then means the new graph
/// and nothing of the old one: the handle is as free as before.
#[test]
fn an_update_across_classes_leaves_the_handle_free() {
    let ran = same(&churn("packed"), &[DEFAULT, KEPT, ONE, TWO_KEPT]);
    for (_, ledger) in &ran {
        assert_eq!(ledger.counter(PINNED_MADE), 0);
    }
    assert!(ran[2].1.counter(REAL_EXECS_ENDED) > 0 && ran[2].1.counter(OVER_BOUND) == 0);
}

/// An exec whose contents are changed before its first launch is slower for good: a new one is made of what it is to
/// hold. It is not uploaded for that: what is uploaded may run another kernel's code. One that was never launched is
/// destroyed when the program says so: the driver may wait for the device then.
#[test]
fn what_was_never_launched_is_not_changed_nor_kept() {
    let ran = same(&churn("late"), &[DEFAULT, KEPT, ONE, TWO_KEPT]);
    let early: Vec<_> = ran.iter().flat_map(|(ran, _)| said(ran, "early settings")).collect();
    assert_eq!(early[..2], [0, 0], "where there is room");
    assert!(early[2..].iter().all(|&settings| settings > 0), "where another handle's is taken: {early:?}");
    for (ran, ledger) in ran {
        assert_eq!((said(&ran, "uploads"), said(&ran, "destroyed")), (vec![0], vec![1]));
        assert_eq!(ledger.counter(PINNED_MADE), 0);
    }
}

/// Verdict, result and nodes are the driver's, whoever says so.
#[test]
fn refusals_are_the_drivers() {
    for (_, ledger) in same(&churn("refused"), &[DEFAULT, KEPT, ONE, TWO_KEPT]) {
        assert_eq!(ledger.counter(PINNED_MADE), 0);
    }
}

/// A running exec is not destroyed while the cache may have to instantiate before the run ends. Afterwards it is
/// destroyed.
#[test]
fn execs_that_run_are_destroyed_when_they_are_over() {
    let running = churn("running");
    assert_eq!(said(&running.native().ok(), "destroyed"), [3, 3, 3]);
    // Four handles of one class at a time; what stands for the others is destroyed with them.
    for ((ran, ledger), most) in same(&running, &[ONE, TWO_KEPT, DEFAULT]).into_iter().zip([1, 2, 4]) {
        assert_eq!(said(&ran, "destroyed"), [0, 0, 0]);
        let count = |counter| ledger.counter(counter);
        let parked = count(REAL_EXECS_MADE) - count(REAL_EXECS_ENDED);
        assert_eq!(said(&ran, "live_execs"), [parked]);
        assert!(parked <= most, "{parked} of {most}");
    }
}

/// If the driver would wait for the device to destroy an exec, the exec stays until nothing runs: a host function may
/// wait for that very call. Then the bound holds again.
#[test]
fn nothing_waits_for_the_device_that_the_program_did_not_ask_for() {
    for mode in ["parked", "kept"] {
        let roots = client("graph_roots").arg(mode).env("SIM_DESTROY_WAITS", "1");
        for (ran, ledger) in same(&roots, &[ONE, &[("GPUMEM_GRAPH_CACHE", "1"), ("GPUMEM_GRAPH_FOLD", "0")], DEFAULT]) {
            assert_eq!(said(&ran, "waits"), [0]);
            assert_eq!(ledger.counter(PINNED_MADE), 0);
        }
        let (ran, _) = same(&roots, &[ONE]).remove(0);
        assert_eq!(said(&ran, "live_execs"), [1, 1, 1]);
    }
    let refused = client("graph_roots").arg("refused").env("SIM_DESTROY_WAITS", "1");
    let faults = "cuGraphExecKernelNodeSetParams_v2:1=1,cuGraphExecKernelNodeSetParams_v2:8=1";
    for (ran, ledger) in
        same(&refused.env("SIM_FAULT", faults), &[ONE, &[("GPUMEM_GRAPH_CACHE", "1"), ("GPUMEM_GRAPH_FOLD", "0")]])
    {
        assert_eq!((said(&ran, "waits"), said(&ran, "live_execs")), (vec![0], vec![1]));
        assert_eq!(ledger.counter(FALLBACK_INSTANTIATES), 2);
    }
}

/// Natively the exec is there, so what is asked of it is answered: the handle remembers, and the launch goes
/// node by node, whatever our own instantiate said.
#[test]
fn without_execs_nodes_are_set_and_launched() {
    let native = churn("starved").native().ok();
    for (code, fold) in [(2, "1"), (2, "0"), (999, "1"), (700, "0")] {
        let faults: Vec<_> = (2..100).map(|call| format!("cuGraphInstantiateWithFlags:{call}={code}")).collect();
        let starved = churn("starved").env("SIM_FAULT", faults.join(",")).env("GPUMEM_GRAPH_FOLD", fold);
        let ran = starved.env("GPUMEM_GRAPH_IDLE", "0").preloaded().ok();
        assert_eq!((&ran.out, ran.violations()), (&native.out, vec![]), "{code}");
        assert_eq!(ran.ledger().counter(ONE_BY_ONE), 2, "{code}");
    }
    same(&churn("starved"), &[DEFAULT, KEPT, ONE, TWO_KEPT]);
}

#[test]
fn default_streams_of_two_contexts_are_two() {
    same(&churn("homes"), &[DEFAULT, ONE, &[("GPUMEM_GRAPH_CACHE", "4")], &[("GPUMEM_GRAPH_CACHE", "8")]]);
}

/// No exec is pinned for code that its handle does not need, and none is made of code that is gone.
#[test]
fn modules_come_and_go_beside_graphs_that_stay() {
    for reuse in ["0", "1"] {
        let unload = gone("unload").env("SIM_REUSE_HANDLES", reuse);
        for (ran, ledger) in same(&unload, &[ONE, TWO_KEPT]) {
            assert_eq!(ledger.counter(PINNED_MADE), 0);
            assert!(said(&ran, "live_execs")[0] <= 2);
        }
        same(&unload, &[DEFAULT]);
    }
}

#[test]
fn modules_go_while_threads_instantiate() {
    for reuse in ["0", "1"] {
        let threads = gone("threads").env("SIM_REUSE_HANDLES", reuse);
        for (_, ledger) in same(&threads, &[DEFAULT, KEPT, ONE, &[("GPUMEM_GRAPH_CACHE", "6")]]) {
            assert_eq!(ledger.counter(PINNED_MADE), 0);
        }
    }
}

#[test]
fn contexts_go_beside_graphs_that_stay() {
    same(&gone("context"), &[DEFAULT, KEPT, ONE, TWO_KEPT]);
}

/// A thread that takes an exec in one context meets another that destroys the context of the next one.
#[test]
fn contexts_go_while_threads_launch() {
    for reuse in ["0", "1"] {
        let lives = gone("lives").env("SIM_REUSE_HANDLES", reuse);
        let native = lives.native().ok();
        assert_eq!(native.violations(), [""; 0]);
        for cap in ["1", "6", "1", "6"] {
            let ran = lives.clone().env("GPUMEM_GRAPH_CACHE", cap).preloaded().ok();
            assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "cap {cap}");
            let ledger = ran.ledger();
            assert_eq!(ledger.counter(HANDLES_MADE), ledger.counter(HANDLES_ENDED), "cap {cap}");
        }
    }
}
