//! Views say if the graph cache is on and why not, and say so if its bounds are too tight.

mod common;
use common::cache::*;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState, Interception, Mode, Pinned};
use gpumem_wire::layout::{EventSlot, ExecSlot, exec_state};
use serde_json::{Value, json};

/// The cache of a ledger that has what `change` puts there.
fn cache_of(mut ledger: Composer, change: impl FnOnce(&mut Composer)) -> Value {
    let dir = dir();
    change(&mut ledger);
    dir.put(me(), ledger);
    dir.json(&["stats"])["cache"].clone()
}

fn column(rows: &Value, field: &str) -> Vec<Value> {
    rows.as_array().unwrap().iter().map(|row| row[field].clone()).collect()
}

/// A ledger of a program whose execs are the driver's own for these reasons.
fn pinned(reasons: &[Pinned]) -> Composer {
    let mut ledger = begin(me());
    count(&mut ledger, counters::EXECS_CREATED, reasons.len() as u64);
    count(&mut ledger, counters::PINNED_MADE, reasons.len() as u64);
    ledger.slots(reasons.iter().enumerate().map(|(serial, &reason)| ExecSlot {
        serial: serial as u64,
        state: exec_state(ExecState::Native, reason),
        ..Default::default()
    }));
    ledger
}

#[test]
fn why_it_is_off_is_said() {
    let state = |cache: Value| [&cache["state"], &cache["reason"]].map(|text| text.as_str().unwrap_or("").to_owned());
    let off = |reasons: &[Pinned], change: fn(&mut Composer)| state(cache_of(pinned(reasons), change));
    assert_eq!(
        off(&[Pinned::Off], |ledger| ledger.header.settings = ledger.text("GPUMEM_GRAPH_CACHE=0")),
        ["off", "GPUMEM_GRAPH_CACHE=0"]
    );
    assert_eq!(
        off(&[Pinned::RecordOnly], |ledger| {
            ledger.header.mode = Mode::RecordOnly as u32;
            ledger.header.mode_reason = ledger.text("driver 99.9 was never tested");
        }),
        ["off", "record-only: driver 99.9 was never tested"]
    );
    assert_eq!(
        off(&[Pinned::Interception], |ledger| {
            ledger.header.interception = Interception::Partial as u32;
            ledger.header.interception_reason = ledger.text("used before the shim");
        }),
        ["off", "interception is partial: used before the shim"]
    );
    assert_eq!(off(&[Pinned::Lookup], |_| ()), ["off", Pinned::Lookup.why()]);
    let every = off(&[Pinned::MemoryNodes, Pinned::EventNodes, Pinned::MemoryNodes], |_| ());
    assert_eq!(every, ["pinned", "every live exec is pinned"]);
    assert_eq!(off(&[Pinned::Off, Pinned::EventNodes], |_| ())[0], "pinned", "not all for a reason of the process");
    assert_eq!(state(cache_of(begin(me()), |_| ())), ["unused", "nothing was instantiated so far"]);
    // Handles that there are say more than a door that was found later to be missed.
    let late = |ledger: &mut Composer| ledger.header.interception = Interception::Partial as u32;
    assert_eq!(state(cache_of(cached(me()), late)), ["on", ""]);
    let dir = dir();
    dir.put(me(), pinned(&[Pinned::MemoryNodes, Pinned::EventNodes, Pinned::MemoryNodes]));
    let text = dir.ok(&["graphs"]);
    let line = "graph cache pinned: every live exec is pinned; 3 pinned (2 memory-nodes, 1 event-nodes)\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn thrashing_names_the_variable_to_raise() {
    let thrash = |change: &dyn Fn(&mut Composer)| cache_of(cached(me()), change)["thrash"].clone();
    let named = thrash(&|ledger| thrashing(ledger, "GPUMEM_GRAPH_CACHE_BYTES"));
    assert_eq!((&named["times"], &named["raise"]), (&json!(3), &json!("GPUMEM_GRAPH_CACHE_BYTES")));
    assert_eq!(named["to"], "1GiB");
    let age = named["last_age_ns"].as_u64().unwrap();
    assert!((100_000_000_000..110_000_000_000).contains(&age), "{age}");
    let idle = thrash(&|ledger| thrashing(ledger, "GPUMEM_GRAPH_IDLE"));
    assert_eq!((&idle["raise"], &idle["to"]), (&json!("GPUMEM_GRAPH_IDLE"), &json!("10s")));
    // The event is gone, or says something else: the bound that is nearer, 3 of 4 against 21 of 64 MiB.
    for nearer in
        [thrash(&|ledger| count(ledger, counters::THRASHES, 1)), thrash(&|ledger| thrashing(ledger, "LD_PRELOAD"))]
    {
        assert_eq!((&nearer["raise"], &nearer["to"]), (&json!("GPUMEM_GRAPH_CACHE"), &json!("8")));
    }
    let bytes = thrash(&|ledger| {
        ledger.header.settings = ledger.text("GPUMEM_GRAPH_CACHE_BYTES=22MiB");
        count(ledger, counters::THRASHES, 1);
    });
    assert_eq!(bytes["raise"], "GPUMEM_GRAPH_CACHE_BYTES");
    let dir = dir();
    let mut ledger = cached(me());
    thrashing(&mut ledger, "GPUMEM_GRAPH_CACHE");
    dir.put(me(), ledger);
    let warning = "warning: the graph cache thrashed 3 times, last 1 min 40 s ago: raise its bound, for example GPUMEM_GRAPH_CACHE=8\n";
    for view in [&["graphs"][..], &["stats"]] {
        let text = dir.ok(view);
        assert!(text.contains(warning), "{view:?}: {text}");
    }
    let events = squeeze(&dir.ok(&["events", "--problems"]));
    let line = "the graph cache evicts execs that are launched again soon, at 4 real execs of 28.0 MiB: raise GPUMEM_GRAPH_CACHE";
    assert!(events.contains(line), "{events}");
}

#[test]
fn what_was_tried_again_after_out_of_memory_is_told() {
    let dir = dir();
    let mut ledger = begin(me());
    let retry = |seq, code| EventSlot { kind: EventKind::OomRetry as u8, seq, a: 7 * MIB, code, ..Default::default() };
    ledger.slots([retry(0, 0), retry(1, 2)]);
    dir.put(me(), ledger);
    let report = dir.json(&["events", "--kind", "oom-retry"]);
    assert_eq!(column(&report["events"], "severity"), ["warning", "error"]);
    assert_eq!(
        column(&report["events"], "text"),
        [
            "a graph call ran out of memory; gpumem gave 7.0 MiB back, then the call succeeded",
            "a graph call ran out of memory; gpumem gave 7.0 MiB back, then the call failed with error 2"
        ]
    );
}

#[test]
fn doctor_says_whether_graphs_are_bounded() {
    let check = |ledger: Composer| {
        let dir = dir();
        dir.put(me(), ledger);
        let answer = dir.gpumem(&["doctor", "--all", "--json"]);
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        let all = report["findings"].as_array().unwrap();
        let found: Vec<_> = all.iter().filter(|finding| finding["id"] == "graph-cache").collect();
        assert_eq!(found.len(), 1, "{found:?}");
        ["severity", "finding", "fix"].map(|field| found[0][field].as_str().unwrap_or_default().to_owned())
    };
    let [severity, finding, _] = check(cached(me()));
    assert_eq!(severity, "ok");
    assert!(finding.starts_with("graph cache on: 3 real execs (at most 4)"), "{finding}");
    let mut tight = cached(me());
    thrashing(&mut tight, "GPUMEM_GRAPH_CACHE");
    let [severity, finding, fix] = check(tight);
    assert_eq!(
        (severity.as_str(), fix.as_str()),
        (
            "warning",
            "start it with GPUMEM_GRAPH_CACHE=8, if there is memory for that: 35.0 MiB for all graphs, estimated"
        )
    );
    assert!(finding.contains("thrashed 3 times"), "{finding}");
    let mut off = pinned(&[Pinned::Off]);
    off.header.settings = off.text("GPUMEM_GRAPH_CACHE=0");
    let [severity, finding, fix] = check(off);
    assert_eq!((severity.as_str(), finding.as_str()), ("info", "off: GPUMEM_GRAPH_CACHE=0"));
    assert!(fix.contains("without GPUMEM_GRAPH_CACHE=0"), "{fix}");
    let [severity, finding, fix] = check(pinned(&[Pinned::EventNodes]));
    assert_eq!((severity.as_str(), finding.as_str()), ("info", "every live exec is pinned: 1 event-nodes"));
    assert!(fix.starts_with("gpumem graphs --pinned --all "), "{fix}");
    let mut starved = cached(me());
    count(&mut starved, counters::ONE_BY_ONE, 2);
    let [severity, finding, _] = check(starved);
    assert_eq!(severity, "warning");
    assert!(finding.starts_with("2 launches ran node by node"), "{finding}");
    assert_eq!(check(begin(me()))[..2], ["ok", "nothing was instantiated so far"]);
}
