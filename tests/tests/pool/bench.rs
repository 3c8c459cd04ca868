//! The replay benchmark on the simulator: what it tells is what the driver was asked for.

use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{artifacts, command};
use serde_json::Value;
use std::process::Command;

fn poolbench(args: &[&str]) -> gpumem_tests::harness::Program {
    command(env!("CARGO_BIN_EXE_poolbench")).args(args.iter().copied())
}

#[test]
fn the_same_allocations_by_every_way() {
    let args = ["random", "--count", "400", "--max-mib", "4", "--usage-mib", "100", "--json"];
    let native = poolbench(&args).native().ok().json();
    let ordered = poolbench(&args).args(["--async"]).native().ok().json();
    let preloaded = poolbench(&args).preloaded().ok();
    // All that it took it gave back.
    preloaded.ledger().balanced();
    let preloaded = preloaded.json();
    let modes = [&native, &ordered, &preloaded].map(|found| found["mode"].as_str().unwrap());
    assert_eq!(modes, ["native", "async", "preloaded"]);
    for found in [&native, &ordered, &preloaded] {
        assert_eq!(
            (&found["failed"], &found["allocations"], &found["steps"]),
            (&Value::from(0), &Value::from(400), &Value::from(800))
        );
        assert_eq!(found["peak_requested_bytes"], native["peak_requested_bytes"]);
        assert!(found["reserved_over_requested"].as_f64().unwrap() >= 1.0, "{found}");
        assert!(found["seconds"].as_f64().unwrap() > 0.0);
    }
    let peak = native["peak_requested_bytes"].as_u64().unwrap();
    assert!((80 << 20..100 << 20).contains(&peak), "{peak}");
}

/// A trace of `gpumem record` replays the same work.
#[test]
fn a_recorded_run_can_be_replayed() {
    let scratch = Scratch::new();
    let (trace, rows) = (scratch.path().join("trace"), scratch.path().join("trace.csv"));
    let args = ["random", "--count", "300", "--max-mib", "4", "--usage-mib", "100", "--json"];
    let recorded = poolbench(&args).env("GPUMEM_ALLOC_TRACE", &trace).preloaded().ok().json();
    let exported = Command::new(&artifacts().gpumem).args(["export", "--to", "csv"]).arg(&trace).output().unwrap();
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    std::fs::write(&rows, exported.stdout).unwrap();
    let replayed = poolbench(&["trace", rows.to_str().unwrap(), "--json"]).native().ok().json();
    // One byte more, with which the first run began.
    assert_eq!(replayed["allocations"].as_u64().unwrap(), recorded["allocations"].as_u64().unwrap() + 1);
    assert_eq!(replayed["peak_requested_bytes"], recorded["peak_requested_bytes"]);
    assert_eq!(replayed["skipped"], 0);
}

#[test]
fn a_trace_is_replayed_by_its_rows() {
    let scratch = Scratch::new();
    let file = scratch.path().join("trace.csv");
    let trace = "Thread,Time,Action,Pointer,Size,Stream\n\
                 1,0,allocate,0x10,3145728,0\n2,1,allocate,0x20,1048576,0\n1,2,free,0x10,3145728,0\n2,3,allocate,0x10,2097152,0\n";
    std::fs::write(&file, trace).unwrap();
    let file = file.to_str().unwrap();
    let found = poolbench(&["trace", file, "--json"]).native().ok().json();
    assert_eq!((&found["allocations"], &found["steps"]), (&Value::from(3), &Value::from(4)));
    assert_eq!(found["peak_requested_bytes"], 4 << 20);
    std::fs::write(file, "no trace\n").unwrap();
    let refused = poolbench(&["trace", file]).native();
    assert!(refused.err.contains("line 1: 1 columns"), "{}", refused.err);
}
