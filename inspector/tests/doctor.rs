//! Findings of `gpumem doctor` about a process, one check after another.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Interception, Mode};
use gpumem_wire::layout::{AllocSlot, EventSlot, TableKind, ThreadSlot};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;

/// Severity, finding and fix of one check of this process.
fn check(dir: &Dir, id: &str) -> (String, String, String) {
    let answer = dir.gpumem(&["doctor", "--all", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let all: Vec<_> = report["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id).collect();
    assert_eq!(all.len(), 1, "{id}: {all:?}");
    let text = |field: &str| all[0][field].as_str().unwrap_or_default().to_owned();
    (text("severity"), text("finding"), text("fix"))
}

/// The check of a ledger that was changed somehow.
fn changed(id: &str, change: impl FnOnce(&mut Composer)) -> (String, String, String) {
    let dir = dir();
    let mut ledger = demo(me());
    change(&mut ledger);
    dir.put(me(), ledger);
    check(&dir, id)
}

#[test]
fn what_is_missing_comes_with_its_reason() {
    for (state, said) in [(Interception::Partial, "partial: used before"), (Interception::None, "none: used before")] {
        let (severity, finding, fix) = changed("interception", |ledger| {
            ledger.header.interception = state as u32;
            ledger.header.interception_reason = ledger.text("used before");
        });
        assert_eq!((severity.as_str(), finding.as_str()), ("warning", said));
        assert!(!fix.is_empty());
    }
    let (severity, finding, fix) = changed("mode", |ledger| {
        ledger.header.mode = Mode::RecordOnly as u32;
        ledger.header.mode_reason = ledger.text("driver 99.9 was never tested");
    });
    assert_eq!((severity.as_str(), finding.as_str()), ("info", "record-only: driver 99.9 was never tested"));
    assert!(fix.contains("GPUMEM_RECORD_ONLY=0"), "{fix}");
    let (severity, finding, fix) = changed("complaints", |ledger| {
        ledger.header.complaints = ledger.text("GPUMEM_STAKS is unknown");
    });
    assert_eq!((severity.as_str(), finding.as_str()), ("warning", "GPUMEM_STAKS is unknown"));
    assert!(fix.contains("unset it"), "{fix}");
    let (severity, finding, fix) = changed("dropped", |ledger| {
        let mut shard = vec![0; counters::PER_SHARD];
        shard[counters::DROPPED_RECORDS] = 7;
        ledger.words(TableKind::Counters, &shard);
    });
    assert_eq!((severity.as_str(), finding.as_str()), ("warning", "7 records did not fit into the ledger"));
    assert!(fix.contains("GPUMEM_LEDGER_MAX"), "{fix}");
}

#[test]
fn threads_without_stacks_are_named() {
    // The one record without a stack in `demo` is of the main thread; two of a JIT's follow.
    let jit = |ledger: &mut Composer| {
        let name = ledger.text("jit");
        ledger.slots([ThreadSlot { tid: 77, name, ..Default::default() }]);
        let alloc = |serial, bytes| AllocSlot {
            serial,
            bytes,
            addr: serial,
            tid: 77,
            kind: AllocKind::Device as u8,
            ..Default::default()
        };
        ledger.slots([alloc(90, 4096), alloc(91, 8192)]);
    };
    let (severity, finding, fix) = changed("stacks", jit);
    let main = me().pid;
    assert_eq!(finding, format!("3 of 9 live records have no call stack: thread 77 jit, {main} main-thread"));
    assert_eq!(severity, "warning");
    assert!(fix.contains("frame pointers"), "{fix}");
    // Where the process was told to take no stacks of what is small, that is no finding.
    let (_, finding, _) = changed("stacks", |ledger| {
        jit(ledger);
        ledger.header.settings = ledger.text("GPUMEM_STACKS=32\nGPUMEM_STACK_EVERY=8192");
    });
    assert!(finding.starts_with("2 of 8 live records"), "{finding}");
    let (severity, finding, fix) = changed("stacks", |ledger| ledger.header.stack_depth = 0);
    assert_eq!((severity.as_str(), fix.as_str()), ("info", "start it with GPUMEM_STACKS above 0"), "{finding}");
}

#[test]
fn the_control_socket_is_asked() {
    let dir = dir();
    let beating = || {
        let mut ledger = demo(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        ledger
    };
    dir.put(me(), beating());
    let (severity, finding, fix) = check(&dir, "control");
    assert_eq!(severity, "warning");
    assert!(finding.starts_with("it takes no commands: there is no control socket"), "{finding}");
    assert!(fix.contains("GPUMEM_CONTROL=0"), "{fix}");
    let listener = UnixListener::bind(dir.path().join(me().socket_name())).unwrap();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(b"ok 0.1.0\n").unwrap();
        line
    });
    assert_eq!(check(&dir, "control").0, "ok");
    assert_eq!(asked.join().unwrap(), "ping\n");
}

#[test]
fn a_process_has_a_name_for_doctor_too() {
    let dir = dir();
    let mut ledger = pool::pooled(me());
    ledger.header.heartbeat_ns = monotonic_ns();
    let file = dir.put(me(), ledger);
    let findings = |target: &str| {
        let answer = dir.gpumem(&["doctor", "--json", target]);
        let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap_or_else(|_| panic!("{}", answer.err));
        let of_it = report["findings"].as_array().unwrap().iter().filter(|finding| finding["pid"] == me().pid);
        of_it.map(|finding| finding["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let by_pid = findings(&me().pid.to_string());
    assert!(by_pid.iter().any(|id| id == "stranded"), "{by_pid:?}");
    assert_eq!(findings("demo-server"), by_pid);
    assert_eq!(findings(file.to_str().unwrap()), by_pid);
    let dump = dir.path().join("dump");
    dir.ok(&["dump", "-o", dump.to_str().unwrap()]);
    assert!(findings(dump.to_str().unwrap()).iter().any(|id| id == "stranded"));
    // One that has no ledger, by the name that the system has for it.
    let program = dir.path().join("no-ledger-x");
    std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
    let _sleeper = Sleeper(std::process::Command::new(&program).arg("600").spawn().unwrap());
    let report = dir.gpumem(&["doctor", "--json", "no-ledger-x"]);
    assert!(report.out.contains("was started without libgpumem.so"), "{}{}", report.out, report.err);
    let answer = dir.gpumem(&["doctor", "nobody-is-called-this"]);
    assert_eq!(answer.code, 3, "{}", answer.err);
    assert!(answer.err.contains("\"nobody-is-called-this\" is not a pid, a file or the name of a running process"));
    let other = Sleeper::start();
    dir.put(other.id(), demo(other.id()));
    let answer = dir.gpumem(&["doctor", "demo-server"]);
    assert_eq!(answer.code, 4);
    assert!(answer.err.contains(&format!("gpumem doctor {}", other.id().pid)), "{}", answer.err);
}

/// Findings of this process, most bytes first, with the command to paste.
fn advice(ledger: Composer) -> Vec<(String, Option<u64>, String)> {
    let dir = dir();
    let mut ledger = ledger;
    ledger.header.heartbeat_ns = monotonic_ns();
    dir.put(me(), ledger);
    let answer = dir.gpumem(&["doctor", "--json", &me().pid.to_string()]);
    let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let of_it = report["findings"].as_array().unwrap().iter().filter(|finding| finding["pid"] == me().pid);
    let text = |finding: &serde_json::Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    of_it.map(|finding| (text(finding, "id"), finding["bytes"].as_u64(), text(finding, "paste"))).collect()
}

#[test]
fn what_takes_most_comes_first_with_the_command_to_paste() {
    let all = advice(pool::pooled(me()));
    let bytes: Vec<u64> = all.iter().filter_map(|(_, bytes, _)| *bytes).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b) && bytes.len() >= 2, "{all:?}");
    assert_eq!(all.iter().take(bytes.len()).filter(|(_, bytes, _)| bytes.is_some()).count(), bytes.len(), "{all:?}");
    let of = |all: &[(String, Option<u64>, String)], id: &str| {
        all.iter().find(|(its, ..)| its == id).unwrap_or_else(|| panic!("nothing of {id}")).clone()
    };
    let pid = me().pid;
    let (_, bytes, paste) = of(&all, "stranded");
    assert_eq!((bytes, paste), (Some(24 * MIB), format!("gpumem set {pid} STRANDED=spill")));
    // A program that is known to retry is pressed.
    let mut retries = pool::pooled(me());
    retries.header.settings = retries.text("GPUMEM_STRANDED_RETRIES=1");
    let all = advice(retries);
    assert_eq!(of(&all, "stranded").2, format!("gpumem set {pid} STRANDED=press"));
    // It runs out on the device: what does not fit may be spilled.
    assert_eq!(of(&all, "memory").2, format!("gpumem set {pid} OOM_FALLBACK=managed"));
    let mut tight = cache::cached(me());
    cache::thrashing(&mut tight, "GPUMEM_GRAPH_CACHE");
    let (_, bytes, paste) = of(&advice(tight), "graph-cache");
    assert_eq!(paste, format!("gpumem set {pid} GRAPH_CACHE=8"));
    assert_eq!(bytes, Some(14 * MIB), "two folded handles of 7 MiB each");
    let mut stays = pool::pooled(me());
    stays.header.settings = stays.text("GPUMEM_POOL_DECAY=0");
    stays.slots([gpumem_wire::layout::ContextSlot {
        handle: 0xc3,
        idle_bytes: 200 * MIB,
        idle_blocks: 1,
        ..Default::default()
    }]);
    let (_, bytes, paste) = of(&advice(stays), "idle");
    assert_eq!((bytes, paste), (Some(248 * MIB), format!("gpumem set {pid} POOL_DECAY=10s")));
}

/// The device has 1 GiB, and the limit is what was in the way.
#[test]
fn what_ran_out_at_the_limit_names_the_limit() {
    let at_the_limit = |limit: &str, seconds_ago: u64| {
        let mut ledger = begin(me());
        ledger.header.settings = ledger.text(limit);
        ledger.header.heartbeat_ns = monotonic_ns();
        ledger.slots([gpumem_wire::layout::ContextSlot { total_bytes: 1024 * MIB, ..Default::default() }]);
        let time_ns = monotonic_ns() - seconds_ago * SECOND;
        let event = |seq, kind, b| EventSlot { kind, seq, time_ns, a: 100 * MIB, b, tid: 7, ..Default::default() };
        ledger.slots([event(1, EventKind::LimitRefused as u8, 0), event(2, EventKind::OutOfMemory as u8, 300 * MIB)]);
        let dir = dir();
        dir.put(me(), ledger);
        let answer = dir.gpumem(&["doctor", "--json", &me().pid.to_string()]);
        let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
        let found = report["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == "memory").unwrap();
        ["severity", "finding", "paste"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
    };
    let [severity, said, paste] = at_the_limit("GPUMEM_LIMIT=384MiB", 10);
    assert!(said.starts_with("an allocation of 100.0 MiB failed at GPUMEM_LIMIT=384MiB 1"), "{said}");
    assert_eq!((severity.as_str(), paste), ("warning", format!("gpumem set {} LIMIT=450MiB", me().pid)));
    // It was raised meanwhile; it was long ago.
    assert_eq!(at_the_limit("GPUMEM_LIMIT=2GiB", 10)[0], "info");
    let [severity, _, paste] = at_the_limit("GPUMEM_LIMIT=384MiB", 420);
    assert_eq!((severity.as_str(), paste.as_str()), ("info", ""));
}

/// Seven minutes after a thrash nobody is told to do anything about it; nor where somebody has.
#[test]
fn an_advice_is_over_when_its_reason_is() {
    for (seconds_ago, changed, advised) in [(100, false, true), (420, false, false), (100, true, false)] {
        let mut ledger = cache::cached(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        let text = ledger.text("GPUMEM_GRAPH_CACHE");
        let time_ns = monotonic_ns() - seconds_ago * SECOND;
        let thrash = EventSlot { kind: EventKind::Thrash as u8, seq: 1, time_ns, text, ..Default::default() };
        let text = ledger.text("gpumem set GPUMEM_GRAPH_CACHE=64");
        let kind = EventKind::Message as u8;
        let message = EventSlot { kind, seq: 2, time_ns: time_ns + SECOND, text, ..Default::default() };
        ledger.slots([thrash].into_iter().chain(changed.then_some(message)));
        cache::count(&mut ledger, counters::THRASHES, 3);
        let dir = dir();
        dir.put(me(), ledger);
        let doctor = dir.gpumem(&["doctor", &me().pid.to_string()]);
        let told = [doctor.out, dir.ok(&["graphs"]), dir.ok(&["stats"])];
        let told = told.map(|text| text.contains("raise its bound"));
        assert_eq!(told, [advised; 3], "{seconds_ago} s ago, changed: {changed}");
    }
}

#[test]
fn the_call_site_that_grows_is_named() {
    let growth = |ledger| advice(ledger).into_iter().filter(|(id, ..)| id == "growth").collect::<Vec<_>>();
    let pid = me().pid;
    let found = growth(common::growth::leaking(me(), 120));
    assert_eq!(
        found,
        [("growth".to_owned(), Some(120 * MIB), format!("gpumem allocs {pid} --by stack --sort growth"))]
    );
    let dir = dir();
    dir.put(me(), common::growth::leaking(me(), 120));
    let text = dir.gpumem(&["doctor", &pid.to_string()]).out;
    assert!(text.contains("demo-server+0x201 grows steadily, by +60.0 MiB/min: 120.0 MiB in 120"), "{text}");
    // Seconds after the start nothing is said.
    assert_eq!(growth(common::growth::leaking(me(), 12)), [("growth".to_owned(), None, String::new())]);
}

#[test]
fn growth_is_told_by_the_samples() {
    let growing = |minutes: u64, mib_a_minute: u64| {
        let mut ledger = begin(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        let sample = |minute: u64| gpumem_wire::layout::SampleSlot {
            seq: minute,
            time_ns: monotonic_ns() - (minutes - minute) * 60 * SECOND,
            device_live: (100 + minute * mib_a_minute) * MIB,
            ..Default::default()
        };
        ledger.slots((0..=minutes).map(sample));
        advice(ledger).into_iter().find(|(id, ..)| id == "growth").unwrap()
    };
    let (_, bytes, paste) = growing(5, 20);
    assert_eq!((bytes, paste), (Some(20 * MIB), format!("gpumem leaks {}", me().pid)));
    assert_eq!(growing(5, 0).1, None);
    assert_eq!(growing(0, 20).1, None, "too little to judge");
}
