//! What `gpumem doctor` says of a process, one check after another.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Interception, Mode};
use gpumem_wire::layout::{AllocSlot, TableKind, ThreadSlot};
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
    assert_eq!((severity.as_str(), finding.as_str()), ("warning", "7 records did not fit"));
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
fn what_is_no_pid_is_no_riddle() {
    let answer = dir().gpumem(&["doctor", "demo"]);
    assert_eq!(answer.code, 2);
    assert!(answer.err.contains("a pid is a number: gpumem ps lists them"), "{}", answer.err);
}
