//! Memory that processes share, in ledgers made by hand: who is believed, and what nobody can mean.

mod common;
use common::skipped::{ROOT, skipped};
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::kinds::{AllocKind, SharedKind};
use gpumem_wire::layout::{AllocSlot, SharedSlot};
use gpumem_wire::place::ProcessId;
use serde_json::{Value, json};

/// A user who is nobody here.
const OTHER: u32 = 54_321;

fn row(kind: SharedKind, bytes: u64) -> SharedSlot {
    SharedSlot { hash: [7; 16], bytes, time_ns: monotonic_ns(), serial: 4711, kind: kind as u8, ..Default::default() }
}

/// A process that has exported a block, and freed it.
fn exporter(id: ProcessId, bytes: u64) -> Composer {
    let mut ledger = demo(id);
    ledger.slots([row(SharedKind::Exported, bytes)]);
    ledger
}

/// One that has it open.
fn importer(id: ProcessId, bytes: u64) -> Composer {
    let mut ledger = demo(id);
    ledger.slots([row(SharedKind::Imported, bytes)]);
    let kind = AllocKind::IpcImport as u8;
    ledger.slots([AllocSlot { bytes, time_ns: monotonic_ns(), serial: 4711, kind, ..Default::default() }]);
    ledger
}

fn shared(dir: &Dir, id: ProcessId) -> Value {
    dir.json(&["leaks", &id.pid.to_string()])["sharing"].take()
}

#[test]
fn a_pair_is_told_in_both_processes_and_ends_with_either() {
    let (dir, one, other) = (dir(), Sleeper::start(), Sleeper::start());
    dir.put(one.id(), exporter(one.id(), 64 * MIB));
    let file = dir.put(other.id(), importer(other.id(), 64 * MIB));
    let said = shared(&dir, one.id());
    assert_eq!((&said["exported"][0]["pid"], &said["exported"][0]["freed"]), (&json!(other.id().pid), &json!(true)));
    let said = shared(&dir, other.id());
    assert_eq!((&said["imported"][0]["pid"], &said["imported"][0]["freed"]), (&json!(one.id().pid), &json!(true)));
    // What a dump says nobody holds any more, nor what a dead process has left.
    let dump = dir.path().join("dump");
    dir.ok(&["dump", file.to_str().unwrap(), "-o", dump.to_str().unwrap()]);
    let said = dir.json(&["leaks", dump.to_str().unwrap()])["sharing"].take();
    assert_eq!((&said["imported"][0]["bytes"], &said["imported"][0]["pid"]), (&json!(64 * MIB), &Value::Null));
    let dead = other.id();
    drop(other);
    assert_eq!(shared(&dir, one.id()), Value::Null);
    assert_eq!(dir.json(&["leaks", file.to_str().unwrap()])["sharing"]["imported"][0]["pid"], Value::Null, "{dead:?}");
}

/// A row that names no live record of an import was closed; one that is exported lives while it has a record.
#[test]
fn a_row_is_worth_what_its_record_is() {
    let (dir, one, other) = (dir(), Sleeper::start(), Sleeper::start());
    let mut live = exporter(one.id(), 64 * MIB);
    live.slots([AllocSlot { bytes: 64 * MIB, serial: 4711, kind: 1, context: 1, ..Default::default() }]);
    dir.put(one.id(), live);
    dir.put(other.id(), importer(other.id(), 64 * MIB));
    assert_eq!(shared(&dir, one.id())["exported"][0]["freed"], false);
    let mut closed = demo(other.id());
    closed.slots([row(SharedKind::Imported, 64 * MIB)]);
    dir.put(other.id(), closed);
    assert_eq!((shared(&dir, one.id()), shared(&dir, other.id())), (Value::Null, Value::Null));
}

#[test]
fn a_ledger_of_another_user_is_in_no_pair() {
    let (dir, one, other) = (dir(), Sleeper::start(), Sleeper::start());
    dir.put(one.id(), exporter(one.id(), 64 * MIB));
    let forged = dir.put(other.id(), importer(other.id(), 64 * MIB));
    if let Err(error) = std::os::unix::fs::chown(&forged, Some(OTHER), Some(OTHER)) {
        return skipped(format_args!("files cannot be given away: {error}"), ROOT);
    }
    assert_eq!(shared(&dir, one.id()), Value::Null);
    // The same, of a process that nobody can see.
    let id = ProcessId { pid: 1_000_000_000, start_ticks: 1 };
    let mut elsewhere = importer(id, 64 * MIB);
    elsewhere.header.pid_ns = 1;
    elsewhere.header.heartbeat_ns = monotonic_ns();
    dir.put(id, elsewhere);
    assert_eq!(shared(&dir, one.id()), Value::Null);
}

/// Two ledgers that contradict each other are told, in a line each.
#[test]
fn a_contradiction_is_one_line() {
    let (dir, one, other, third) = (dir(), Sleeper::start(), Sleeper::start(), Sleeper::start());
    dir.put(one.id(), exporter(one.id(), 64 * MIB));
    dir.put(other.id(), importer(other.id(), 512 * MIB));
    let text = dir.ok(&["leaks", &one.id().pid.to_string()]);
    let said = format!("exported 64.0 MiB and pid {} has 512.0 MiB of it open", other.id().pid);
    assert_eq!(text.replace("\n  ", " ").matches(&said).count(), 1, "{text}");
    dir.put(other.id(), importer(other.id(), 64 * MIB));
    dir.put(third.id(), exporter(third.id(), 64 * MIB));
    for id in [one.id(), other.id()] {
        let text = dir.ok(&["leaks", &id.pid.to_string()]).replace("\n  ", " ");
        assert_eq!(text.matches("each say that they exported what pid").count(), 1, "{text}");
        assert!(!text.contains("freed,") && !text.contains("has freed"), "{text}");
    }
}

/// A command answers whatever the rows say.
#[test]
fn rows_that_nothing_wrote_end_no_command() {
    let (dir, one, other) = (dir(), Sleeper::start(), Sleeper::start());
    let wild = |id: ProcessId| {
        let mut ledger = importer(id, u64::MAX);
        let rows = (0..20_000_u32).map(|at| SharedSlot {
            stack: at.wrapping_mul(0x9e37_79b9),
            hash: [(at % 3) as u8; 16],
            addr: u64::from(at) << 52,
            bytes: u64::MAX >> (at % 64),
            time_ns: u64::MAX - u64::from(at),
            serial: u64::from(at % 7),
            context: at as u16,
            kind: (at % 5) as u8,
            ..Default::default()
        });
        ledger.slots(rows);
        let kind = AllocKind::IpcImport as u8;
        let bytes = u64::MAX;
        ledger.slots((0..7).map(|serial| AllocSlot { bytes, serial, kind, stack: u32::MAX, ..Default::default() }));
        dir.put(id, ledger);
    };
    wild(one.id());
    wild(other.id());
    for id in [one.id(), other.id()] {
        for command in ["leaks", "stats", "doctor", "allocs"] {
            let answer = dir.gpumem(&[command, &id.pid.to_string()]);
            assert!(!answer.out.is_empty() && answer.code < 2, "{command}: {} {}", answer.code, answer.err);
        }
    }
}
