//! A process whose device memory is on the host: every view says so.

mod common;

use common::growth::{Row, dumped, leaking, sampled};
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::{AllocKind, EventKind, GrowthKind, Parking};
use gpumem_wire::layout::{AllocSlot, EventSlot, StackSlot};
use serde_json::{Value, json};

/// Makes a process a parked one, since so many seconds.
fn parked(mut ledger: Composer, state: Parking, seconds: u64) -> Composer {
    let now = monotonic_ns();
    ledger.header.heartbeat_ns = now;
    (ledger.header.parking, ledger.header.parking_ns) = (state as u64, now - seconds * SECOND);
    ledger.header.parked_bytes = if state == Parking::Parked { 100 * MIB } else { 0 };
    ledger
}

/// The directory of a process that runs.
fn of(ledger: Composer) -> Dir {
    let dir = dir();
    dir.put(me(), ledger);
    dir
}

#[test]
fn a_parked_process_holds_nothing_on_its_device() {
    let dir = of(parked(demo(me()), Parking::Parked, 12));
    let me = me().pid.to_string();
    let ps = dir.json(&["ps"]);
    let row = &ps["processes"][0];
    assert_eq!(
        (&row["status"], &row["live"]["device"], &row["live"]["parked"]),
        (&json!("parked"), &json!(0), &json!(100 * MIB))
    );
    let text = squeeze(&dir.ok(&["ps"]));
    assert!(text.contains(" parked 12 s ago complete active 0 B "), "{text}");
    assert!(
        text.contains(&format!("pid {me}: 100.0 MiB of its device memory are on the host; gpumem resume {me}")),
        "{text}"
    );
    let stats = dir.json(&["stats", &me]);
    let head = &stats["process"];
    assert_eq!((&head["life"], &head["parked_bytes"]), (&json!("parked"), &json!(100 * MIB)));
    assert!(head["ago_ns"].as_u64().unwrap() >= 12 * SECOND, "{head}");
    let device = &stats["devices"][0];
    for field in ["tracked_bytes", "idle_bytes", "graph_bytes", "taken_bytes"] {
        assert_eq!(device[field], 0, "{field}");
    }
    assert_eq!(
        (&device["unexplained_bytes"], &device["of_process"]["counted_bytes"]),
        (&Value::Null, &json!(0)),
        "{device}"
    );
    for view in ["stats", "leaks", "allocs", "graphs", "events"] {
        // 12 s, and a few more on a machine with much to do.
        let text = dir.ok(&[view, &me]);
        let head = text.lines().next().unwrap();
        assert!(
            head.contains(", parked 1") && head.contains(" s ago with 100.0 MiB on the host, recorded for "),
            "{view}: {head}"
        );
        assert!(!text.contains("not explained"), "{view}: {text}");
    }
    let text = dir.ok(&["allocs", &me]);
    assert!(
        text.contains("3 allocations live: 0 B device, 16.0 MiB host, 100.0 MiB on the host while parked"),
        "{text}"
    );
}

#[test]
fn a_process_that_is_being_parked_still_holds_its_memory() {
    let dir = of(parked(demo(me()), Parking::Quiet, 3));
    let row = &dir.json(&["ps"])["processes"][0];
    assert_eq!(
        (&row["status"], &row["live"]["device"], &row["live"]["parked"]),
        (&json!("being-parked"), &json!(96 * MIB), &json!(0))
    );
    let text = dir.ok(&["stats", &me().pid.to_string()]);
    assert!(text.contains(", being parked for 3"), "{text}");
}

/// A process that was killed on the host while it was parked leaves the ledger of a killed process.
#[test]
fn a_process_that_was_killed_while_it_was_parked_is_a_killed_one() {
    let dir = dir();
    let dead = gone();
    dir.put(dead, parked(demo(dead), Parking::Parked, 12));
    let row = &dir.json(&["ps"])["processes"][0];
    assert_eq!((&row["status"], &row["live"]["parked"]), (&json!("killed"), &json!(0)));
}

#[test]
fn the_doctor_says_since_when_and_how_to_resume() {
    let finding = |state| {
        let dir = of(parked(demo(me()), state, 12));
        let answer = dir.gpumem(&["doctor", "--json", &me().pid.to_string()]);
        let report: Value = serde_json::from_str(&answer.out).unwrap_or_else(|_| panic!("{}", answer.err));
        report["findings"].as_array().unwrap().iter().find(|found| found["id"] == "parking").cloned().unwrap()
    };
    let found = finding(Parking::Parked);
    assert_eq!(found["severity"], "info", "{found}");
    let said = found["finding"].as_str().unwrap();
    assert!(said.starts_with("parked 12") && said.contains("100.0 MiB"), "{said}");
    assert_eq!(found["fix"], format!("gpumem resume {}", me().pid));
    assert_eq!(finding(Parking::Quiet)["severity"], "info");
    assert_eq!(finding(Parking::Running)["severity"], "ok");
}

/// A leak of a MiB a second for two minutes, between which the process was parked for ten: the rate is that of the time
/// that it ran.
#[test]
fn time_parked_is_no_growth_and_no_gap() {
    const PARKED: u64 = 600;
    let mut ledger = leaking(me(), 1);
    let now = ledger.header.heartbeat_ns;
    ledger.header.created_ns = now - (PARKED + 121) * SECOND;
    // A sample a second, but none while it was parked, half a minute before the end.
    let at = |n: u64| now - (120 - n) * SECOND - if n < 90 { PARKED * SECOND } else { 0 };
    let times: Vec<u64> = (0..120).map(at).collect();
    let held = (0..120_u64).map(|n| (n * MIB, n)).collect();
    let mut fresh = begin(me());
    (fresh.header.created_ns, fresh.header.heartbeat_ns) = (ledger.header.created_ns, now);
    module(&mut fresh, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    fresh.stack(0, StackSlot { allocs: 120, first_ns: at(0), ..Default::default() }, &[APP + 0x101]);
    let slot = |n: u64| AllocSlot {
        stack: 1,
        serial: n,
        addr: 0x7000_0000_0000 + n * 0x1000_0000,
        bytes: MIB,
        time_ns: at(n) - SECOND / 2,
        kind: AllocKind::Device as u8,
        ..Default::default()
    };
    fresh.slots((1..120).map(slot));
    sampled(&mut fresh, &times, &[Row { kind: GrowthKind::Site, key: 1, held }]);
    let resumed = EventSlot {
        kind: EventKind::Resumed as u8,
        time_ns: at(90) - SECOND / 4,
        a: 90 * MIB,
        b: PARKED * SECOND,
        ..Default::default()
    };
    fresh.slots([resumed]);
    let dir = dir();
    let file = dir.put(me(), dumped(fresh)).display().to_string();
    let report = dir.json(&["leaks", &file]);
    let row = &report["suspects"][0];
    assert_eq!(row["verdict"], "grows-steadily", "{row:#}");
    let rate = row["bytes_per_minute"].as_f64().unwrap() / MIB as f64;
    assert!((59.0..61.0).contains(&rate), "{rate} MiB a minute");
    let seconds = |value: &Value| value.as_u64().unwrap() / SECOND;
    assert_eq!(seconds(&row["sampled_ns"]), 119, "{row:#}");
    let minute = &row["growth"][0];
    assert_eq!(
        (&minute["since"], seconds(&minute["over_ns"]), &minute["bytes_change"]),
        (&json!("1 min"), 60, &json!(59 * MIB))
    );
    let text = dir.ok(&["leaks", &file]);
    assert!(!text.contains("stood still"), "{text}");
    assert!(text.contains("parked for 10 min"), "{text}");
}
