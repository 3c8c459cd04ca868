//! GPUMEM_FREED_IN_GRAPH: memory that is freed while a live graph refers to it is counted, and named.

use gpumem_tests::harness::{Ran, program};
use gpumem_wire::counters;

#[track_caller]
fn run(setting: &[(&str, &str)]) -> Ran {
    let start = program("pool_graphs");
    let native = start.native().ok();
    let ran = start.envs(setting).preloaded().ok();
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()), "{setting:?}");
    ran.ledger().sound().complete().balanced();
    ran
}

const ON: (&str, &str) = ("GPUMEM_FREED_IN_GRAPH", "1");

#[test]
fn what_a_live_graph_refers_to_is_counted() {
    for more in [
        &[][..],
        &[("GPUMEM_POOL", "0")],
        &[("GPUMEM_FREE", "deferred")],
        &[("GPUMEM_STRANDED", "off")],
        &[("GPUMEM_POOL_FILL", "poison")],
    ] {
        let ran = run(&[more, &[ON]].concat());
        let expected = ran.json()["in_graph"].as_u64().expect("a number");
        assert_eq!(expected, 4);
        let ledger = ran.ledger();
        assert_eq!(ledger.counter(counters::FREED_IN_GRAPH), expected, "{more:?}");
        let events = ledger.gpumem("events", &["--kind", "freed-in-graph"]);
        let events = events["events"].as_array().expect("events");
        assert_eq!(events.len() as u64, expected, "{more:?}");
        for event in events {
            let site = event["site"].as_str().expect("a site");
            assert!(["pool_graphs.c", "pool.h"].iter().any(|file| site.contains(file)), "{event}");
            assert_eq!(event["b"], 4 << 20, "{event}");
        }
        let stats = ledger.gpumem("stats", &[]);
        assert_eq!(stats["pool"]["freed_in_graph"], expected);
    }
}

#[test]
fn nothing_is_looked_at_unless_asked_for() {
    assert_eq!(run(&[]).ledger().counter(counters::FREED_IN_GRAPH), 0);
}

/// Graphs that cannot be read are not counted, so a number above 0 is certain.
#[test]
fn what_is_not_known_is_not_counted() {
    assert_eq!(run(&[ON, ("GPUMEM_GRAPH_CACHE", "0")]).ledger().counter(counters::FREED_IN_GRAPH), 0);
}
