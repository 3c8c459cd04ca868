//! Modules, libraries, streams, events and contexts that only grow are named by `gpumem leaks` and `gpumem doctor`, and
//! those that come and go are not.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::{Running, Scratch, wait_for};
use serde_json::Value;
use std::time::Duration;

const KINDS: [(&str, &str, &str); 5] = [
    ("modules", "code", "keep_module"),
    ("libraries", "code", "keep_library"),
    ("streams", "streams", "keep_stream"),
    ("events", "events", "keep_event"),
    ("contexts", "contexts", "keep_context"),
];

fn started(args: &[&str], dir: &Scratch) -> Running {
    let program = client("objects").args(args).dir(dir.path()).waits();
    // A sample each 20 ms, so that a second is enough.
    let sim = [("SIM_CODE_MEM", "4M"), ("SIM_DEVICE_MEM", "64G"), ("SIM_CONTEXT_MEM", "1M")];
    let running = program.envs(&sim).env("GPUMEM_GROWTH_INTERVAL", "20ms").start(true);
    running.says("serving");
    running
}

fn suspects(running: &Running) -> Vec<Value> {
    let said = running.ledger().gpumem("leaks", &[]);
    said["suspects"].as_array().expect("suspects").clone()
}

/// Returns the kind and the call site of each suspect that grows steadily.
fn growing(running: &Running) -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    let rows = suspects(running);
    let grows = rows.iter().filter(|row| row["verdict"] == "grows-steadily");
    grows.map(|row| (text(row, "kind"), text(row, "key"))).collect()
}

#[test]
fn what_only_grows_is_named_with_its_call_site() {
    for (what, kind, site) in KINDS {
        let dir = Scratch::new();
        let running = started(&[what], &dir);
        let mut seen = Vec::new();
        wait_for(&format!("{what} to grow, not {seen:?}"), || {
            seen = growing(&running);
            seen.iter().any(|(of, key)| of == kind && key.starts_with(site))
        });
        assert!(seen.iter().all(|(of, _)| of == kind), "{what}: {seen:?}");
        let row = suspects(&running).into_iter().find(|row| row["kind"] == kind).expect("the row");
        let live = row["live"].as_u64().expect("a count");
        let bytes = row["bytes"].as_u64().expect("bytes");
        let has_bytes = what == "modules";
        assert_eq!(bytes, if has_bytes { live * (4 << 20) } else { 0 }, "{row:#}");
        assert_eq!(row["count_per_minute"].as_f64().is_some_and(|rate| rate > 0.0), !has_bytes, "{row:#}");
        let doctor = running.ledger().gpumem("doctor", &[]);
        let findings = doctor["findings"].as_array().expect("findings").clone();
        let of = |id: &str| {
            findings.iter().filter(|row| row["id"] == id).map(|row| row["finding"].to_string()).collect::<Vec<_>>()
        };
        assert!(
            of("growth").iter().any(|said| said.contains(&format!("{kind} of {site}"))),
            "{what}: {:?}",
            of("growth")
        );
        assert_eq!(of("code").iter().any(|said| said.contains("modules that")), has_bytes, "{what}: {:?}", of("code"));
        running.finish().ok();
    }
}

#[test]
fn what_comes_and_goes_is_not() {
    let dir = Scratch::new();
    let running = started(&[], &dir);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(growing(&running), []);
    let live = |kind: &str| {
        let rows = running.ledger().gpumem("allocs", &["--kind", kind]);
        rows["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| row["addresses"].as_u64().expect("a count"))
            .sum::<u64>()
    };
    // The module that the program began with.
    assert!((1..=2).contains(&live("code")), "{}", live("code"));
    assert!(live("event") <= 1);
    running.finish().ok();
}

/// Each record ends with its thing.
#[test]
fn the_end_of_a_thing_ends_its_record() {
    for (what, ..) in KINDS {
        let dir = Scratch::new();
        let running = started(&[what, "1"], &dir);
        std::thread::sleep(Duration::from_millis(400));
        let ran = running.finish().ok();
        let ledger = ran.ledger();
        let left = ledger.snapshot.allocs.iter().filter(|alloc| !alloc.takes_memory()).count();
        // The module that the program began with.
        assert_eq!((left, ledger.counter(gpumem_wire::counters::UNKNOWN_FREES)), (1, 0), "{what}");
        assert_eq!(ledger.snapshot.streams.len(), 0, "{what}");
    }
}
