//! Graphs and execs that a program makes and does not destroy: the verdict is on the program, whatever the graph cache
//! makes of it.

mod common;
use common::growth::{Row, dumped, sampled};
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{ExecState, GrowthKind, Pinned};
use gpumem_wire::layout::{Door, ExecSlot, StackSlot, TableKind, exec_state};
use serde_json::Value;

/// A process that makes 4 execs a second and destroys `destroyed` of them, one in each second. Of what it keeps, 8 have
/// their real exec of 1.5 MiB and the others are folded to a source of 1 KiB.
fn keeping_execs(seconds: u64, destroyed: u64) -> Composer {
    const EACH: u64 = 4;
    let mut ledger = begin(me());
    let now = monotonic_ns();
    ledger.header.created_ns = now - (seconds + 1) * SECOND;
    ledger.header.heartbeat_ns = now;
    ledger.header.doors = Door::RuntimeExport as u32;
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    let made = EACH * seconds;
    let stack = StackSlot { graphs: made, execs: made, ..Default::default() };
    ledger.stack(0, stack, &[APP + 0x101, APP + 0x901]);
    let mut shard = vec![0; counters::PER_SHARD];
    (shard[counters::EXECS_CREATED], shard[counters::EXECS_DESTROYED]) = (made, destroyed);
    ledger.words(TableKind::Counters, &shard);
    let exec = |serial: u64| ExecSlot {
        stack: 1,
        serial,
        time_ns: now - (seconds - serial / EACH) * SECOND,
        class: 0xabc,
        host_bytes: MIB,
        device_bytes: MIB / 2,
        source_bytes: 1024,
        state: exec_state(if serial < 8 { ExecState::Resident } else { ExecState::Folded }, Pinned::None),
        ..Default::default()
    };
    ledger.slots((destroyed..made).map(exec));
    let times: Vec<u64> = (0..seconds).map(|n| now - (seconds - n) * SECOND).collect();
    let held = |n: u64| {
        let live = EACH * n - n.min(destroyed);
        (live.min(8) * (MIB + MIB / 2) + live * 1024, live)
    };
    let rows = [(GrowthKind::Graphs, 1), (GrowthKind::Class, 0xabc)];
    let rows = rows.map(|(kind, key)| Row { kind, key, held: (0..seconds).map(held).collect() });
    sampled(&mut ledger, &times, &rows);
    dumped(ledger)
}

/// The graph cache keeps the bytes flat. The verdict is about the program, which keeps making execs and destroys none.
#[test]
fn execs_that_are_never_destroyed_grow_whatever_the_cache_holds() {
    for seconds in [40, 200, 900] {
        let dir = dir();
        let file = dir.put(me(), keeping_execs(seconds, 0)).to_str().unwrap().to_owned();
        let said = dir.json(&["leaks", &file]);
        let of_kind = |kind: &str| said["suspects"].as_array().unwrap().iter().find(|row| row["kind"] == kind).unwrap();
        let row = of_kind("graphs");
        assert_eq!(row["verdict"], "grows-steadily", "{seconds} s: {row:#}");
        assert_eq!((row["total_allocs"].as_u64(), row["freed_share"].as_f64()), (Some(4 * seconds), Some(0.0)));
        let of = &row["balance"];
        assert_eq!((of["what"].as_str(), &of["made"], &of["destroyed"]), (Some("exec"), &row["live"], &Value::from(0)));
        let rate = of["native_bytes_per_minute"].as_f64().unwrap() / MIB as f64;
        assert!((355.0..365.0).contains(&rate), "4 execs of 1.5 MiB a second: {rate} MiB a minute");
        let next = row["next"].as_str().unwrap();
        assert!(next.contains("cudaGraphExecDestroy is never called") && next.contains("0x101"), "{next}");
        assert_eq!(of_kind("class")["verdict"], "grows-steadily");
        let text = dir.ok(&["leaks", &file]);
        let is_said = |line: &str| line.starts_with("grows steadily: ") && line.contains(" execs made, 0 destroyed; ");
        assert!(text.lines().any(is_said), "{text}");
        assert!(text.contains("gpumem keeps them at 1") && text.contains("without gpumem about +36"), "{text}");
        let found = dir.ok(&["doctor", "--all", &file]);
        assert!(found.contains("0 destroyed; gpumem keeps them at 1"), "{found}");
    }
}

/// Graphs come and go with the execs that stay, and are none of what is freed.
#[test]
fn what_was_destroyed_is_counted_among_execs_alone() {
    let dir = dir();
    let file = dir.put(me(), keeping_execs(100, 10)).to_str().unwrap().to_owned();
    let row = &dir.json(&["leaks", &file])["suspects"][0];
    assert_eq!((&row["balance"]["made"], &row["balance"]["destroyed"]), (&Value::from(400), &Value::from(10)));
    assert_eq!(row["freed_share"].as_f64(), Some(0.025));
    let next = row["next"].as_str().unwrap();
    assert!(next.contains("cudaGraphExecDestroy was called for 10 of 400"), "{next}");
}
