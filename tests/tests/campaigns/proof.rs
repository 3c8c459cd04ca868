//! The claims of `make proof`, on the simulator.

use serde_json::Value;
use std::process::Command;

fn proof(args: &[&str]) -> (Option<i32>, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_proof")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// The ledger of a killed process has what the process held.
#[test]
fn a_killed_process_can_be_read_and_costs_are_not_measured_here() {
    let (status, out, err) = proof(&["--simulator", "record.dead_process_readable", "cost"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(status, Some(0), "{out}{err}");
    let named: Vec<(&str, &Value)> =
        lines.iter().map(|line| (line["claim"].as_str().unwrap(), &line["holds"])).collect();
    let (yes, unknown) = (Value::Bool(true), Value::Null);
    assert_eq!(
        named,
        [
            ("record.dead_process_readable", &yes),
            ("cost.call", &unknown),
            ("cost.record", &unknown),
            ("cost.record_stacks", &unknown),
            // An optimised build meets the bound.
            ("cost.cold_launch", if cfg!(debug_assertions) { &unknown } else { &yes })
        ]
    );
    for line in &lines {
        assert_eq!(line["device"], "simulator");
        for member in ["native", "preloaded", "unit", "limit"] {
            assert!(line.get(member).is_some(), "{line} has no {member}");
        }
    }
    assert_eq!(lines[0]["native"], lines[0]["preloaded"]);
    assert!(lines[0]["native"].as_i64().unwrap() > 96 << 20, "weights and caches at least: {}", lines[0]);
}

/// Every program does the same under the preload, and the ledger has the program's own counts.
#[test]
fn recording_changes_nothing() {
    let (status, out, err) = proof(&["--simulator", "record.results_equal", "record.counts_equal"]);
    assert_eq!((status, out.lines().count()), (Some(0), 2), "{out}{err}");
}

/// Every number is what its parts come to, in every view.
#[test]
fn numbers_agree() {
    let (status, out, err) = proof(&["--simulator", "--seed", "1", "stats.totals_equal"]);
    assert_eq!(status, Some(0), "{out}{err}");
}

/// If a program is flat natively, it is flat under the preload, and close to the native run.
#[test]
fn memory_stays_flat() {
    let (status, out, err) = proof(&["--simulator", "flat.host_growth", "flat.graphs_device_growth"]);
    assert_eq!((status, out.lines().count()), (Some(0), 2), "{out}{err}");
}

#[test]
fn wrong_names_are_refused() {
    let (status, _, err) = proof(&["record.nonsense"]);
    assert_eq!((status, err.as_str()), (Some(2), "proof: no claim begins with record.nonsense; --list shows them\n"));
    for wrong in [&["--fast"][..], &["--seed"], &["--seed", "many"], &["--programs", "-1"]] {
        let (status, _, err) = proof(wrong);
        assert_eq!(status, Some(2), "{wrong:?}: {err}");
    }
    let (status, out, _) = proof(&["--list"]);
    assert!(status == Some(0) && out.contains("record.results_equal"), "{out}");
}

/// The totals are right after many operations, after few, and once everything is freed.
#[test]
fn device_memory_stays_flat() {
    let (status, out, err) = proof(&["--simulator", "flat.device_growth"]);
    assert_eq!(status, Some(0), "{out}{err}");
}

/// Blocks that programs lost rank before those that something refers to, but for one, and none of these is called lost.
#[test]
fn a_search_tells_lost_blocks_from_others() {
    let done = Command::new(env!("CARGO_BIN_EXE_proof"))
        .args(["--simulator", "scan.recall", "scan.false_alarms"])
        .env("SCAN_PROGRAMS", "2")
        .output()
        .unwrap();
    let out = String::from_utf8(done.stdout).unwrap();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = format!("{out}{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!((done.status.code(), lines.len()), (Some(0), 2), "{said}");
    // A word may have the value of a lost address by chance.
    for (line, most) in lines.iter().zip([1.0, 0.0]) {
        assert!(line["native"].as_f64() > Some(20.0), "as many were planted: {said}");
        assert!(line["preloaded"].as_f64() <= Some(most) && !line["preloaded"].is_null(), "{said}");
    }
}

/// All planted writes are found, and nothing else.
#[test]
fn the_guard_finds_what_was_planted() {
    let (status, out, err) = proof(&["--simulator", "guard.finds"]);
    assert_eq!((status, out.lines().count()), (Some(0), 1), "{out}{err}");
}
