//! Ledgers through a recorder, its lines through a reader: what comes out is what went in.

use super::line::{Begin, Line, Made, RowOf, Stack, Tick, VERSION};
use super::{Recorder, Recording};
use crate::compose::Composer;
use crate::model::Ledger;
use crate::model::course::Of;
use crate::source::choose::Opened;
use crate::source::world::World;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, StackSlot};
use gpumem_wire::read::Snapshot;
use std::io::Write;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// A ledger at a second: for each stack what it ever made, and the sizes of its live allocations.
fn ledger(second: u64, stacks: &[(u64, Vec<u64>)]) -> Ledger {
    let mut composer = Composer::new();
    (composer.header.created_ns, composer.header.created_real_ns) = (SECOND, 1000 * SECOND);
    (composer.header.pid, composer.header.dumped_ns) = (7, (second + 1) * SECOND);
    let mut serial = 0;
    for (stack, (made, live)) in stacks.iter().enumerate() {
        let slot = StackSlot { allocs: *made, alloc_bytes: made * MIB, hash: stack as u64 + 1, ..Default::default() };
        composer.stack(stack, slot, &[0x1000 + stack as u64, 0x2000]);
        composer.slots(live.iter().map(|&bytes| {
            serial += 1;
            let (kind, addr) = (AllocKind::Device as u8, serial << 32);
            // The serial of an allocation stays its own.
            let serial = bytes * 1000 + stack as u64;
            AllocSlot { stack: stack as u32 + 1, addr, bytes, serial, kind, time_ns: SECOND, ..Default::default() }
        }));
    }
    read(composer.finish())
}

fn read(bytes: Vec<u8>) -> Ledger {
    let snapshot = Snapshot::read(&bytes[..]).unwrap().unwrap();
    Ledger::of(&World::here(None), Opened { snapshot, path: "none".into(), process: None })
}

fn taken(recording: &mut Recording, lines: &[Line]) {
    for line in lines {
        recording.take(serde_json::to_string(line).unwrap().as_bytes()).unwrap();
    }
}

/// What the stack of a number held at each tick.
fn held(recording: &Recording, stack: u32) -> Vec<u64> {
    let course = recording.course();
    let row = course.held.rows.into_iter().find(|row| row.kind == Of::Site && row.stack == stack);
    row.map(|row| row.values).unwrap_or_default()
}

#[test]
fn what_was_live_comes_back_through_two_files() {
    let looks = [
        vec![(1, vec![10]), (0, vec![])],
        vec![(3, vec![10, 20 * MIB]), (1, vec![5])],
        // The first one frees its large one, and the second all, while a file ends.
        vec![(4, vec![10]), (9, vec![])],
        vec![(4, vec![10, 11]), (9, vec![])],
    ];
    let mut recording = Recording::default();
    let first = ledger(0, &looks[0]);
    let mut recorder = Recorder::new(&first, SECOND, MIB);
    taken(&mut recording, &[recorder.begin()]);
    for (second, look) in looks.iter().enumerate() {
        if second == 2 {
            recorder.next_file();
            taken(&mut recording, &[recorder.begin()]);
        }
        taken(&mut recording, &recorder.tick(&ledger(second as u64, look)));
    }
    assert_eq!(recording.times, (1000..1004).map(|second| second * SECOND).collect::<Vec<_>>());
    assert_eq!(held(&recording, 1), [10, 10 + 20 * MIB, 10, 21]);
    assert_eq!(held(&recording, 2), [0, 5, 0, 0]);
    let large: Vec<_> = recording.large.iter().map(|large| (large.made.bytes, large.freed_unix_ns)).collect();
    assert_eq!(large, [(20 * MIB, Some(1002 * SECOND))]);
    let course = recording.course();
    let flame = recording.flame(&course);
    // What it made before the first look was not made while it was recorded.
    let weights: Vec<_> =
        flame.stacks.iter().map(|stack| (stack.weight.live, stack.weight.peak, stack.weight.churn)).collect();
    assert_eq!(weights, [(21, 10 + 20 * MIB, 3 * MIB), (0, 5, 9 * MIB)]);
    assert_eq!(flame.stacks[0].weight.growth, 11);
}

/// Ten minutes of a program that makes a million calls a second at 500 call sites take 5 MB at most.
#[test]
fn ten_minutes_of_a_million_calls_a_second_are_small() {
    const SITES: u64 = 500;
    let mut out = GzEncoder::new(Vec::new(), Compression::new(7));
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    let mut made = vec![0_u64; SITES as usize];
    let mut recorder = None;
    // A tenth of the time: what a second takes does not depend on how many there were.
    for second in 0..60 {
        let look = made.iter_mut().map(|made| {
            *made += 1_900 + next(200);
            // Some thousand are live, of all sizes.
            (*made, (0..next(8)).map(|_| 256 << next(10)).collect())
        });
        let ledger = ledger(second, &look.collect::<Vec<_>>());
        let recorder = recorder.get_or_insert_with(|| Recorder::new(&ledger, SECOND, MIB));
        for line in recorder.tick(&ledger) {
            serde_json::to_writer(&mut out, &line).unwrap();
            out.write_all(b"\n").unwrap();
        }
        out.flush().unwrap();
    }
    let bytes = out.finish().unwrap().len();
    assert!(bytes * 10 < 5_000_000, "{bytes} bytes in a minute");
}

/// The tables of a ledger that is being written are read one after another: what should say a stack may have been read
/// before.
#[test]
fn a_stack_that_comes_late_is_told_when_it_is_there() {
    let mut composer = Composer::new();
    (composer.header.created_ns, composer.header.created_real_ns, composer.header.pid) =
        (1, SECOND, std::process::id());
    let alloc =
        |bytes| AllocSlot { stack: 1, tag: 4, serial: 1, bytes, addr: 1, kind: 1, time_ns: 1, ..Default::default() };
    composer.slots([alloc(2 * MIB)]);
    let mut early = read(composer.finish());
    // As of a process that runs.
    early.status.life = crate::source::liveness::Life::Running;
    let mut recorder = Recorder::new(&early, SECOND, MIB);
    let lines = recorder.tick(&early);
    assert!(!lines.iter().any(|line| matches!(line, Line::Row(_) | Line::Stack(_))), "{lines:?}");
    let mut late = ledger(5, &[(1, vec![2 * MIB])]);
    late.status.life = crate::source::liveness::Life::Running;
    let mut recording = Recording::default();
    taken(&mut recording, &[recorder.begin()]);
    taken(&mut recording, &lines);
    taken(&mut recording, &recorder.tick(&late));
    assert_eq!(recording.labels(1).len(), 2);
    assert_eq!(held(&recording, 1), [0, 2 * MIB]);
    // One that never comes is told without.
    let lines: Vec<Line> = (0..2).flat_map(|_| Recorder::tick(&mut recorder, &early)).collect();
    assert!(lines.iter().any(|line| matches!(line, Line::Row(row) if row.kind == Of::Tag)), "{lines:?}");
}

/// What has ended gave its last sign of life before the last look: that look is told all the same.
#[test]
fn no_look_goes_back_in_time() {
    let first = ledger(9, &[(1, vec![10])]);
    let mut recorder = Recorder::new(&first, SECOND, MIB);
    let mut recording = Recording::default();
    taken(&mut recording, &[recorder.begin()]);
    taken(&mut recording, &recorder.tick(&first));
    taken(&mut recording, &recorder.tick(&ledger(8, &[(1, vec![10, 11])])));
    assert_eq!((recording.skipped, held(&recording, 1)), (0, vec![10, 21]));
}

fn json(line: &Line) -> String {
    serde_json::to_string(line).unwrap()
}

#[test]
fn lines_that_refer_to_nothing_are_skipped() {
    let mut recording = Recording::default();
    assert!(recording.take(b"{\"tick\":{}}").is_err(), "no first line");
    let begin = Begin { version: VERSION, ..Begin::default() };
    let newer = Line::GpumemRecording(Begin { version: VERSION + 1, ..begin.clone() });
    assert!(recording.take(json(&newer).as_bytes()).unwrap_err().contains("version 2"));
    taken(&mut recording, &[Line::GpumemRecording(begin.clone())]);
    let stack = |id, frames: Vec<u32>, site| Line::Stack(Stack { id, frames, site });
    let tick = |unix_ns, rows, freed| Line::Tick(Tick { unix_ns, rows, freed, ..Tick::default() });
    taken(
        &mut recording,
        &[
            Line::Frames(vec!["f".into()]),
            stack(1, vec![0, 7, u32::MAX], 99),
            Line::Row(RowOf { id: 4, kind: Of::Site, stack: 1, ..RowOf::default() }),
            Line::Row(RowOf { id: 5, kind: Of::Site, stack: 2, ..RowOf::default() }),
            tick(10, vec![(4, i64::MIN, 0, 0, 0), (5, 8, 1, 0, 0), (9, 1, 1, 1, 1)], vec![3]),
            // Back in time.
            tick(10, vec![(5, 1, 1, 1, 1)], vec![]),
            tick(11, vec![(4, i64::MAX, 0, 0, 0), (4, i64::MAX, 0, 0, 0), (4, 9, 0, 0, 0)], vec![]),
        ],
    );
    recording.take(b"{\"of a later version\":1}").unwrap();
    recording.take(b"no JSON").unwrap();
    assert_eq!((recording.times.as_slice(), recording.skipped), (&[10, 11][..], 3));
    assert_eq!(held(&recording, 1), [0, u64::MAX]);
    assert_eq!(held(&recording, 2), [8, 8]);
    assert_eq!(recording.labels(1).len(), 1);
    let other = Line::GpumemRecording(Begin { pid: 9, ..begin });
    assert!(recording.take(json(&other).as_bytes()).unwrap_err().contains("another recording"));
    let course = recording.course();
    assert_eq!(recording.flame(&course).stacks.len(), 2);
}

#[test]
fn a_line_is_no_longer_in_memory_than_it_may_be() {
    let mut recording = Recording::default();
    taken(&mut recording, &[Line::GpumemRecording(Begin { version: VERSION, ..Begin::default() })]);
    let made = vec!["{}"; 100_000].join(",");
    recording.take(format!("{{\"tick\":{{\"unix_ns\":5,\"made\":[{made}]}}}}").as_bytes()).unwrap();
    assert_eq!(recording.large, [super::reader::Large { made: Made::default(), freed_unix_ns: None }]);
    recording.take(format!("{{\"summary\":{{\"holders\":[{made}]}}}}").as_bytes()).unwrap();
    assert_eq!(recording.summary.unwrap().holders.len(), 1000);
}
