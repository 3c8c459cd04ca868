//! Memory that the driver takes for itself is shown with its call site: "nvidia-smi shows 3 GB more".

use gpumem_tests::harness::ledger::Ledger;
use gpumem_tests::harness::{Ran, artifacts, client};
use gpumem_wire::kinds::EventKind;
use serde_json::Value;
use std::process::Command;

const MIB: u64 = 1 << 20;

fn ran(of: &str) -> Ran {
    let image = std::env::temp_dir().join(format!("gm-driver-takes-{of}-{}.ptx", std::process::id()));
    let program = client("driver_takes").arg(&image).envs(&[
        ("SIM_CONTEXT_MEM", "64M"),
        ("SIM_CODE_MEM", "20M"),
        ("SIM_STACK_MEM", "4M"),
        ("SIM_STREAM_MEM", "2M"),
    ]);
    let ran = program.preloaded().ok();
    let native = program.native().ok();
    assert_eq!((&ran.out, ran.violations()), (&native.out, native.violations()));
    std::fs::remove_file(image).expect("the program wrote it");
    ran
}

/// Contexts, code that a call loads, code that the first launch loads, and larger stacks are recorded, each with its call
/// site. Memory that is taken in a capture is not recorded, and nothing is recorded twice.
#[test]
fn each_take_is_told_with_its_call_site() {
    let ran = ran("events");
    let ledger = ran.ledger();
    ledger.sound().complete();
    let said = ledger.gpumem("events", &["--kind", "driver-took"]);
    let row = |row: &Value| {
        let (site, text) = (row["site"].as_str().expect("a site"), row["text"].as_str().expect("words"));
        let what = text.split("reason: ").nth(1).and_then(|rest| rest.split([',', '(']).next()).expect("what for");
        let what = what.trim().to_owned();
        (site.split(' ').next().expect("a function").to_owned(), what, row["a"].as_u64().expect("bytes") / MIB)
    };
    let rows: Vec<_> = said["events"].as_array().expect("events").iter().map(row).collect();
    let wanted = [
        ("begin", "code", 20),
        ("stream_new", "stream", 2),
        ("load_file", "code", 20),
        ("launch_late", "first launch", 20),
        ("one_more_context", "context", 64),
        ("stream_new", "stream", 2),
        ("stream_new", "stream", 2),
        ("larger_stacks", "limit", 12),
        ("main", "code", 20),
        ("launch_hungry", "local memory", 3960),
    ];
    assert_eq!(rows, wanted.map(|(site, what, mib)| (site.to_owned(), what.to_owned(), mib)), "{said:#}");
    let local = said["events"].as_array().expect("events").last().expect("a row");
    let text = local["text"].as_str().expect("words");
    assert!(text.ends_with("as a kernel has 16.0 KiB of local memory a thread: hungry"), "{text}");
    let kept = ledger.snapshot.events.iter().filter(|event| event.kind == EventKind::DriverTook as u8);
    assert_eq!(kept.count(), wanted.len());
}

/// `gpumem stats`, as people see it.
fn shown(ledger: &Ledger, more: &[&str]) -> String {
    let done = Command::new(&artifacts().gpumem).arg("stats").args(more).arg("--file").arg(&ledger.path).output();
    String::from_utf8(done.expect("gpumem runs").stdout).expect("text")
}

/// `stats` has the memory that is left at the end, after a module was unloaded and a context has ended. Two things are not
/// explained: the first context, around which free memory cannot be asked for, and the module that was loaded in a capture.
#[test]
fn stats_explains_it() {
    let ran = ran("stats");
    let ledger = ran.ledger();
    let stats = ledger.gpumem("stats", &[]);
    let device = &stats["devices"][0];
    assert_eq!(
        (&device["taken_bytes"], &device["baseline_bytes"]),
        (&Value::from((54 + 3960) * MIB), &Value::from(64 * MIB))
    );
    let rows = stats["driver_took"].as_array().expect("rows");
    assert_eq!(
        rows.iter().map(|row| row["bytes"].as_u64().expect("bytes")).sum::<u64>(),
        (4 * 20 + 3 * 2 + 64 + 12 + 3960) * MIB
    );
    let text = shown(&ledger, &[]);
    for line in [
        "~3.9 GiB  local memory of kernels",
        "hungry has 16.0 KiB of it a thread: smaller arrays in the kernel",
        "~12.0 MiB  limits of the context",
        "~20.0 MiB  code",
        "~2.0 MiB  streams",
        "~20.0 MiB  first launches",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    assert_eq!((&device["local"]["kernel"], &device["local"]["per_thread"]), (&"hungry".into(), &(16 << 10).into()));
    let found = ledger.gpumem("doctor", &[]);
    let found = found["findings"].as_array().expect("findings").iter().find(|row| row["id"] == "local-memory");
    let words = found.and_then(|row| row["finding"].as_str()).unwrap_or_else(|| panic!("{found:?}"));
    assert!(words.contains("kernel hungry has 16.0 KiB") && words.contains("3.9 GiB"), "{words}");
    let all = shown(&ledger, &["--all"]);
    assert!(all.contains("what the driver took for itself") && all.contains("one_more_context"), "{all}");
}

/// The simulated driver takes nothing for a stream. What it takes and gives back for another thread, and what that
/// thread has of gpumem's pool, is not taken for the streams.
#[test]
fn what_another_thread_takes_meanwhile_is_not_the_drivers_own() {
    let running = client("streams_beside").env("SIM_STREAM_MEM", "0").waits().start(true);
    running.says("made all streams");
    let stats = running.gpumem(&["stats", &running.pid().to_string()]);
    let device = &stats["devices"][0];
    let parts = device["of_process"]["parts"].as_array().expect("parts").iter();
    let measured: Vec<_> = parts.filter(|part| part["how"] == "measured").collect();
    assert_eq!((measured, &device["taken_bytes"]), (vec![], &Value::from(0)), "{device:#}");
    running.finish().ok();
}
