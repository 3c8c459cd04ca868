//! A program that never evicts a graph, as llama.cpp once did: natively its execs only become more,
//! under the graph cache there are never more real ones than its bound, by the ledger and by the driver.

use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters::{
    EXECS_CREATED, EXECS_DESTROYED, HANDLES_MADE, LAUNCHES, MISS_NS, OVER_BOUND, REAL_EXECS_ENDED, REAL_EXECS_MADE,
    RETARGETS, SAVED_NS, THRASHES,
};
use serde_json::Value;

const CAP: u64 = 8;

/// Slots that each go through 40 shapes and keep a graph for every one.
fn never_evicts(slots: u64) -> Program {
    let arguments = "--never-evict --shapes 40 --nodes 6 --iterations 320 --samples 20 --prefill 1 --weights 1 --kv 1";
    let slots = ["--slots".to_owned(), slots.to_string()];
    program("demo").args(slots).args(arguments.split(' ')).env("GPUMEM_GRAPH_CACHE", CAP.to_string())
}

/// Returns the values of a count that the driver reported on the way.
fn samples(ran: &Ran, name: &str) -> Vec<u64> {
    let lines = ran.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let samples: Vec<u64> = lines.filter_map(|line| line[name].as_u64()).collect();
    assert_eq!(samples.len(), 20, "{}", ran.out);
    samples
}

#[test]
fn real_execs_stay_within_the_bound() {
    for slots in [1, 3] {
        let native = samples(&never_evicts(slots).native().ok(), "live_execs");
        assert!(native.windows(2).all(|pair| pair[0] <= pair[1]), "natively nothing is evicted: {native:?}");
        assert!(native[19] > 3 * slots * CAP, "natively execs become many: {native:?}");

        let ran = never_evicts(slots).preloaded().ok();
        let ledger = ran.ledger();
        ledger.sound().complete().balanced();
        assert_eq!(ledger.counter(HANDLES_MADE), ledger.counter(EXECS_CREATED), "every handle is under the cache");
        assert_eq!(ledger.counter(EXECS_CREATED), ledger.counter(EXECS_DESTROYED));
        assert_eq!(ledger.counter(REAL_EXECS_MADE), ledger.counter(REAL_EXECS_ENDED), "and ends with the program");
        let over = ledger.counter(OVER_BOUND);
        match slots {
            1 => assert_eq!(over, 0, "one is used at a time"),
            // While another slot captures nobody can be asked whether its work is over.
            _ => assert!(over < CAP, "{over} times over the bound"),
        }
        let live = samples(&ran, "live_execs");
        assert!(live.iter().all(|&live| live <= CAP + over), "live execs of the driver: {live:?}, {over} times over");
    }
}

/// Handles that take turns and are a few more than the bound: most of them keep their exec. (Where the one that
/// was used longest ago always made way, none would.)
#[test]
fn a_few_handles_too_many_share_few_execs() {
    let turns = program("graphmem").args("--graphs 10 --nodes 4 --rounds 60 --launches 1".split(' '));
    let ran = turns.env("GPUMEM_GRAPH_CACHE", CAP.to_string()).preloaded().ok();
    let ledger = ran.ledger();
    ledger.sound().complete();
    let (launches, retargets) = (ledger.counter(LAUNCHES), ledger.counter(RETARGETS));
    assert!(launches > 600 && retargets * 2 < launches, "{retargets} retargets in {launches} launches");
    assert!(retargets * 10 > launches, "two of ten find no exec: {retargets} retargets in {launches} launches");
}

/// Each shape is launched eight times before the next, so that most launches find their exec; and yet the cache costs
/// more than it saves where it has room for few: it says so. With room for all it does not.
#[test]
fn a_cache_that_costs_more_than_it_saves_says_so() {
    let arguments = "--slots 2 --never-evict --shapes 24 --nodes 12 --iterations 1600 --prefill 1 --weights 1 --kv 1";
    for (cap, thrashes) in [("2", true), ("64", false)] {
        let ran = program("demo").args(arguments.split(' ')).env("GPUMEM_GRAPH_CACHE", cap).preloaded().ok();
        let ledger = ran.ledger();
        ledger.sound().complete();
        let [saved, missed] = [SAVED_NS, MISS_NS].map(|of| ledger.counter(of));
        assert_eq!(ledger.counter(THRASHES) > 0, thrashes, "a bound of {cap}: {missed} ns missed, {saved} saved");
        let makes = ledger.counter(RETARGETS) + ledger.counter(REAL_EXECS_MADE);
        assert!(makes * 2 < ledger.counter(LAUNCHES), "most launches find theirs: {makes}");
    }
}

/// The counters of a process that is killed in its work say how many real execs it had.
#[test]
fn a_killed_program_was_within_the_bound() {
    let running = never_evicts(3).arg("--hold").arg("60").start(true);
    running.says("holding");
    running.signal(libc::SIGKILL);
    let ran = running.finish();
    let ledger = ran.ledger();
    let held = ledger.counter(REAL_EXECS_MADE) - ledger.counter(REAL_EXECS_ENDED);
    assert!((1..=CAP).contains(&held), "{held} real execs");
    assert_eq!(ledger.counter(EXECS_CREATED) - ledger.counter(EXECS_DESTROYED), 120, "handles that the program holds");
}

/// The driver's memory for graphs stops growing when the cache is full: the driver never gives it back.
#[test]
fn driver_memory_is_flat_once_the_cache_is_full() {
    for held in ["graph_host_held", "graph_device_held"] {
        let [native, ours] =
            [never_evicts(3).native(), never_evicts(3).preloaded()].map(|ran| samples(&ran.ok(), held));
        let grown = |of: &[u64]| of[19] - of[9];
        assert!(grown(&native) > 0, "{held} natively: {native:?}");
        assert!(grown(&ours) * 4 <= grown(&native), "{held}: {ours:?}, natively {native:?}");
    }
}

/// As long as graphs of the same sizes come again, if never the same graph.
#[test]
fn a_long_run_is_flat() {
    let long = || {
        let arguments = "--slots 3 --never-evict --shapes 96 --nodes 6 --iterations 768 --samples 20 --prefill 0";
        let demo = program("demo").args(arguments.split(' ')).args(["--weights", "1", "--kv", "1"]);
        demo.env("GPUMEM_GRAPH_CACHE", CAP.to_string())
    };
    let (native, ours) = (long().native().ok(), long().preloaded().ok());
    for held in ["graph_host_held", "graph_device_held"] {
        let [native, ours] = [&native, &ours].map(|ran| samples(ran, held));
        let grown = |of: &[u64]| of[19] - of[9];
        assert!(grown(&ours) * 20 <= grown(&native), "{held}: {ours:?}, natively {native:?}");
    }
    ours.ledger().sound().complete().balanced();
}
