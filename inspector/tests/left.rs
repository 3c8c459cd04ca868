//! Files that dead processes have left: ledgers of other versions, and doctor's findings about a process that is gone.

mod common;
use common::*;
use gpumem_wire::counters;
use gpumem_wire::layout::TableKind;
use gpumem_wire::place::ProcessId;
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A ledger of another layout, last written so long ago.
fn other_version(dir: &Dir, id: ProcessId, ago: Duration) -> PathBuf {
    let mut ledger = demo(id);
    ledger.header.version = 99;
    let path = dir.put(id, ledger);
    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - ago).unwrap();
    path
}

fn dead(pid: u32) -> ProcessId {
    ProcessId { pid, start_ticks: 1 }
}

fn findings(dir: &Dir, args: &[&str]) -> Vec<Value> {
    let answer = dir.gpumem(&[&["doctor", "--json"], args].concat());
    let report: Value = serde_json::from_str(&answer.out).unwrap_or_else(|_| panic!("{}", answer.err));
    report["findings"].as_array().unwrap().clone()
}

#[test]
fn the_living_are_listed_without_dead_ledgers_of_other_versions() {
    let dir = dir();
    other_version(&dir, dead(999_991), Duration::ZERO);
    std::fs::write(dir.path().join("999992-1.ledger"), "broken").unwrap();
    assert_eq!(dir.json(&["ps"])["processes"].as_array().unwrap().len(), 2);
    other_version(&dir, dead(999_993), Duration::ZERO);
    let text = dir.ok(&["ps"]);
    assert!(
        text.ends_with(
            "2 ledgers of ended processes, written by other versions of gpumem: gpumem clean removes them after a day\n"
        ),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1 + 1 + 1 + 1, "heading, the broken one, its reason, the others: {text}");
    let none = dir.gpumem(&["ps", "--live"]);
    assert_eq!(none.code, 3);
    assert!(
        none.err.contains("no process with libgpumem.so is running") && !none.err.contains("no ledger"),
        "{}",
        none.err
    );
    other_version(&dir, me(), Duration::ZERO);
    let report = dir.json(&["ps", "--live"]);
    let rows = report["processes"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["pid"], &rows[0]["status"]), (1, &json!(me().pid), &json!("unreadable")));
}

/// Ledgers that ended less than a day ago are removed only by another command, so that one is named.
#[test]
fn the_command_that_removes_young_ledgers_is_named() {
    let dir = dir();
    dir.put(dead(999_991), demo(dead(999_991)));
    let all = findings(&dir, &[]);
    let stale = all.iter().find(|found| found["id"] == "stale-ledgers").unwrap();
    assert!(stale["fix"].as_str().unwrap().contains("gpumem clean --all removes all"), "{stale}");
    assert!(dir.ok(&["clean"]).contains("kept"));
    assert!(dir.ok(&["clean", "--all"]).contains("removed"));
}

#[test]
fn what_cannot_be_read_is_listed_last() {
    let dir = dir();
    other_version(&dir, dead(999_990), Duration::ZERO);
    dir.put(dead(999_991), demo(dead(999_991)));
    let report = dir.json(&["ps"]);
    let pids: Vec<_> = report["processes"].as_array().unwrap().iter().map(|row| row["pid"].clone()).collect();
    assert_eq!(pids, [999_991, 999_990]);
}

#[test]
fn doctor_has_one_line_for_dead_ledgers_of_other_versions() {
    let dir = dir();
    for pid in 999_991..999_995 {
        other_version(&dir, dead(pid), Duration::ZERO);
    }
    std::fs::write(dir.path().join("999996-1.ledger"), "broken").unwrap();
    let ours = |found: &&Value| found["id"] == "ledger" || found["id"] == "stale-ledgers";
    let all = findings(&dir, &[]);
    let told: Vec<_> = all.iter().filter(ours).filter(|found| found["severity"] != "ok").collect();
    assert_eq!(told.len(), 2, "{told:?}");
    let (other, broken) = (told[0], told[1]);
    assert_eq!((&other["id"], &other["severity"]), (&json!("stale-ledgers"), &json!("info")));
    assert!(
        other["finding"]
            .as_str()
            .unwrap()
            .starts_with("4 ledgers of ended processes, written by other versions of gpumem"),
        "{other}"
    );
    assert!(other["fix"].as_str().unwrap().contains("gpumem clean"), "{other}");
    assert_eq!((&broken["severity"], &broken["pid"]), (&json!("warning"), &json!(999_996)));
    // Of a process that runs it is an error: nothing of it can be seen.
    other_version(&dir, me(), Duration::ZERO);
    let all = findings(&dir, &[]);
    let live = all.iter().find(|found| found["pid"] == me().pid).unwrap();
    assert_eq!((&live["id"], &live["severity"]), (&json!("ledger"), &json!("error")));
    assert!(live["finding"].as_str().unwrap().contains("its layout is version 99"), "{live}");
    // Who asks for a dead one gets its answer.
    let all = findings(&dir, &["999991"]);
    let asked = all.iter().find(|found| found["pid"] == 999_991).unwrap();
    assert_eq!((&asked["id"], &asked["severity"]), (&json!("ledger"), &json!("warning")));
}

#[test]
fn clean_removes_dead_ledgers_of_other_versions_after_a_day() {
    let dir = dir();
    let recent = other_version(&dir, dead(999_991), DAY / 2);
    let old = other_version(&dir, dead(999_992), DAY * 2);
    let live = other_version(&dir, me(), DAY * 2);
    // Out of sight, in a container that shares the directory, and alive: somebody listens.
    let elsewhere = other_version(&dir, dead(999_993), DAY * 2);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join(dead(999_993).socket_name())).unwrap();
    let report = dir.json(&["clean", "--dry-run"]);
    assert_eq!(report["removed"].as_array().unwrap().len(), 1, "{report:#}");
    let text = dir.ok(&["clean"]);
    assert!(text.contains("layout version 99, its process has ended, written "), "{text}");
    assert!(!old.exists() && recent.exists() && live.exists() && elsewhere.exists(), "{text}");
    dir.ok(&["clean", "--all"]);
    assert!(!recent.exists() && live.exists() && elsewhere.exists());
}

#[test]
fn doctor_tells_the_end_of_a_dead_process() {
    let dir = dir();
    let id = dead(999_991);
    let mut killed = pool::pooled(id);
    let mut shard = vec![0; counters::PER_SHARD];
    shard[counters::DROPPED_RECORDS] = 7;
    killed.words(TableKind::Counters, &shard);
    dir.put(id, killed);
    let finding = |pid: &str, id: &str| {
        let found = findings(&dir, &[pid]).into_iter().find(|found| found["id"] == id && !found["pid"].is_null());
        let found = found.unwrap_or_else(|| panic!("nothing of {id}"));
        assert_eq!(found["pid"].to_string(), pid);
        (found["severity"].as_str().unwrap().to_owned(), found["finding"].as_str().unwrap().to_owned())
    };
    let (severity, said) = finding("999991", "recording");
    assert_eq!(severity, "warning");
    assert!(
        said.starts_with("demo-server ended without exit handlers (killed or _exit) ")
            && said.ends_with(" ago; its ledger was not closed"),
        "{said}"
    );
    assert_eq!(finding("999991", "dropped"), ("warning".into(), "7 records did not fit into the ledger".into()));
    assert_eq!(finding("999991", "stranded").0, "warning");
    let (severity, said) = finding("999991", "left");
    assert_eq!(severity, "info");
    assert!(said.starts_with("when it ended it held ") && said.contains(" allocation"), "{said}");

    let id = dead(999_992);
    let mut exited = begin(id);
    exited.header.exited_ns = exited.header.created_ns + 10 * SECOND;
    dir.put(id, exited);
    let (severity, said) = finding("999992", "recording");
    assert!(severity == "info" && said.starts_with("demo-server exited "), "{said}");
    assert_eq!(finding("999992", "left"), ("ok".into(), "it had freed everything".into()));
    assert_eq!(dir.gpumem(&["doctor", "999992"]).code, dir.gpumem(&["doctor"]).code);
    // Nobody asked for it: nothing is said.
    assert!(findings(&dir, &[]).iter().all(|found| found["pid"].is_null()));
}

#[test]
fn a_relative_directory_is_refused_as_the_shim_does() {
    let place = tempfile::tempdir().unwrap();
    let runtime = place.path().join("gpumem");
    for (dir, pid) in [(place.path().join("here"), 999_991), (runtime, 999_992)] {
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(dead(pid).ledger_name()), demo(dead(pid)).finish()).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = gpumem();
        command.env("GPUMEM_DIR", "here").env("XDG_RUNTIME_DIR", place.path()).current_dir(place.path()).args(args);
        answer(command)
    };
    let answer = run(&["ps", "--json"]);
    assert!(answer.out.contains("999992") && !answer.out.contains("999991"), "{}", answer.out);
    assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
    assert!(answer.err.contains("GPUMEM_DIR=\"here\" is refused: allowed is an absolute path"), "{}", answer.err);
    let doctor = run(&["doctor"]);
    let said = doctor.out.lines().chain(doctor.err.lines()).filter(|line| line.contains("GPUMEM_DIR=\"here\""));
    assert_eq!(said.count(), 1, "{}{}", doctor.out, doctor.err);
    // Who names it on the command line means it.
    let answer = run(&["--dir", "here", "ps", "--json"]);
    assert!(answer.out.contains("999991") && answer.err.is_empty(), "{}{}", answer.out, answer.err);
}

#[test]
fn what_runs_is_told_before_what_another_version_left() {
    let dir = dir();
    other_version(&dir, dead(1), Duration::ZERO);
    other_version(&dir, me(), Duration::ZERO);
    let answer = dir.gpumem(&["allocs"]);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains(&me().ledger_name()), "{}", answer.err);
}

/// The cause of a process's death stands above everything else that its views say.
#[test]
fn a_process_that_died_of_too_little_memory_says_so_first() {
    use gpumem_wire::kinds::EventKind;
    use gpumem_wire::layout::EventSlot;
    // The time between the refusal and the end counts, however long ago that was.
    for (seconds_before, ended, told) in [
        (0, 0, Some("it ended less than a second after ")),
        (2, 0, Some("it ended 2.0 s after ")),
        (60, 0, None),
        (8, 3, None),
    ] {
        let (dir, id) = (dir(), gone());
        let mut ledger = demo(id);
        let end = monotonic_ns() - ended * SECOND;
        (ledger.header.heartbeat_ns, ledger.header.exited_ns) = (end, end);
        ledger.slots([EventSlot {
            seq: 7,
            time_ns: end - seconds_before * SECOND,
            kind: EventKind::OutOfMemory as u8,
            a: 999 * MIB,
            b: 96 * MIB,
            context: 1,
            stack: 1,
            ..Default::default()
        }]);
        dir.put(id, ledger);
        for command in ["leaks", "stats"] {
            let text = dir.ok(&[command]);
            let second = text.lines().nth(1).unwrap_or_default();
            let said = told.is_some_and(|told| {
                second.starts_with(&format!("warning: {told}it ran out of memory: 999.0 MiB, asked for by "))
                    && second.ends_with(", with 96.0 MiB live")
            });
            assert_eq!(said, told.is_some(), "{command}: {text}");
            assert!(told.is_some() || !second.contains("ran out of memory"), "{command}: {text}");
        }
        assert_eq!(dir.json(&["leaks"])["process"]["out_of_memory"].is_string(), told.is_some());
    }
}

/// Two findings have one cause, the limit: one of them says what to do, and only once.
#[test]
fn a_process_that_died_at_its_limit_is_told_one_larger_limit() {
    use gpumem_wire::kinds::{AllocKind, EventKind};
    use gpumem_wire::layout::{AllocSlot, ContextSlot, EventSlot};
    let (dir, id) = (dir(), gone());
    let mut ledger = begin(id);
    ledger.header.settings = ledger.text("GPUMEM_LIMIT=384MiB");
    let end = monotonic_ns() - SECOND;
    (ledger.header.heartbeat_ns, ledger.header.exited_ns) = (end, end);
    ledger.slots([ContextSlot { total_bytes: 1024 * MIB, ..Default::default() }]);
    ledger.slots([AllocSlot { bytes: 380 * MIB, kind: AllocKind::Device as u8, context: 1, ..Default::default() }]);
    let event = |seq, kind, b| EventSlot { kind, seq, time_ns: end, a: 100 * MIB, b, tid: 7, ..Default::default() };
    ledger.slots([event(1, EventKind::LimitRefused as u8, 0), event(2, EventKind::OutOfMemory as u8, 380 * MIB)]);
    dir.put(id, ledger);
    let answer = dir.gpumem(&["doctor", "--json", &id.pid.to_string()]);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let of = |id: &str| {
        let all = report["findings"].as_array().unwrap();
        let found = all.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {}", answer.out));
        ["severity", "fix"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
    };
    assert!(of("memory")[1].starts_with("start it with GPUMEM_LIMIT=540MiB"), "{:?}", of("memory"));
    assert_eq!(of("limit"), ["warning", ""]);
}
