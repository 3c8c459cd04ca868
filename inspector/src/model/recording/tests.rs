//! Passes ledgers through a recorder and its lines through a reader: the result equals the input.

use super::line::{Begin, Line, Made, RowOf, Stack, Tick, VERSION};
use super::{Recorder, Recording};
use crate::compose::Composer;
use crate::model::Ledger;
use crate::model::course::Of;
use crate::source::choose::Opened;
use crate::source::world::World;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpumem_wire::kinds::{AllocKind, EventKind};
use gpumem_wire::layout::{AllocSlot, EventSlot, StackSlot};
use gpumem_wire::read::Snapshot;
use std::io::Write;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// Returns a ledger at a second: for each stack the number ever made and the sizes of its live allocations.
fn ledger(second: u64, stacks: &[(u64, Vec<u64>)]) -> Ledger {
    read(composer(second, stacks).finish())
}

fn composer(second: u64, stacks: &[(u64, Vec<u64>)]) -> Composer {
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
            // An allocation keeps its serial.
            let serial = bytes * 1000 + stack as u64;
            AllocSlot { stack: stack as u32 + 1, addr, bytes, serial, kind, time_ns: SECOND, ..Default::default() }
        }));
    }
    composer
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

/// Returns the bytes that a stack held at each tick.
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
        // The first stack frees its large allocation, and the second frees all, while a file ends.
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
    // Memory made before the first look does not count as churn of the recording.
    let weights: Vec<_> =
        flame.stacks.iter().map(|stack| (stack.weight.live, stack.weight.peak, stack.weight.churn)).collect();
    assert_eq!(weights, [(21, 10 + 20 * MIB, 3 * MIB), (0, 5, 9 * MIB)]);
    assert_eq!(flame.stacks[0].weight.growth, 11);
}

/// A generator of numbers that do not compress.
fn random() -> impl FnMut(u64) -> u64 {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    move |most| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    }
}

/// Returns the size of ten minutes, from the first seconds: the rest is like the second half of these.
fn ten_minutes(mut look: impl FnMut(u64) -> Ledger) -> usize {
    let mut out = GzEncoder::new(Vec::new(), Compression::new(7));
    const LOOKS: u64 = 24;
    let (mut recorder, mut half) = (None, 0);
    for second in 0..LOOKS {
        let ledger = look(second);
        let recorder = recorder.get_or_insert_with(|| Recorder::new(&ledger, SECOND, MIB));
        for line in recorder.tick(&ledger) {
            serde_json::to_writer(&mut out, &line).unwrap();
            out.write_all(b"\n").unwrap();
        }
        out.flush().unwrap();
        if second + 1 == LOOKS / 2 {
            half = out.get_ref().len();
        }
    }
    let all = out.finish().unwrap().len();
    all + (all - half) * (600 - LOOKS as usize) / (LOOKS as usize / 2)
}

/// Ten minutes of a program that makes a million calls a second at 500 call sites take 5 MB at most.
#[test]
fn ten_minutes_of_a_million_calls_a_second_are_small() {
    let mut next = random();
    let mut made = vec![0_u64; 500];
    let bytes = ten_minutes(|second| {
        let look = made.iter_mut().map(|made| {
            *made += 1_900 + next(200);
            // Some thousand are live, of all sizes.
            (*made, (0..next(8)).map(|_| 256 << next(10)).collect())
        });
        ledger(second, &look.collect::<Vec<_>>())
    });
    assert!(bytes < 5_000_000, "{bytes} bytes");
}

/// The limit also holds if every allocation is a large one and all others fail.
#[test]
fn ten_minutes_of_large_allocations_and_of_failures_are_small() {
    let mut next = random();
    let mut made = vec![0_u64; 500];
    let mut failed = 0;
    let bytes = ten_minutes(|second| {
        let look = made.iter_mut().map(|made| {
            *made += 1_900 + next(200);
            // No allocation that is live at one look was live at the look before.
            (*made, (0..8).map(|_| MIB + next(MIB)).collect())
        });
        let mut composer = composer(second, &look.collect::<Vec<_>>());
        composer.slots((0..2048).map(|_| {
            failed += 1;
            let kind = EventKind::LimitRefused as u8;
            let time_ns = (second + 1) * SECOND + failed;
            EventSlot { seq: failed, time_ns, a: next(1 << 40), kind, ..Default::default() }
        }));
        read(composer.finish())
    });
    assert!(bytes < 5_000_000, "{bytes} bytes");
}

/// Allocations that do not fit at one look are written at a later one; only those that never fit are missing.
#[test]
fn what_does_not_fit_at_one_look_is_told_at_the_next() {
    let sizes = |from: u64, count: u64| (0..count).map(|n| MIB + from + n).collect::<Vec<_>>();
    let mut recording = Recording::default();
    let mut recorder = Recorder::new(&ledger(0, &[]), SECOND, MIB);
    taken(&mut recording, &[recorder.begin()]);
    let mut looks = |seconds: std::ops::Range<u64>, live: &[u64]| {
        for second in seconds {
            taken(&mut recording, &recorder.tick(&ledger(second, &[(9, live.to_vec())])));
        }
        (recording.large.len() as u64, recording.left_out)
    };
    assert_eq!(looks(0..1, &sizes(0, 5000)), (2000, 3000));
    assert_eq!(looks(1..3, &sizes(0, 5000)), (5000, 0));
    // More than ten thousand wait at once, and some are freed before their turn.
    let (told, left_out) = looks(3..10, &sizes(100_000, 20_000));
    assert_eq!(told + left_out, 25_000);
    assert!(left_out > 5_000, "{left_out}");
    assert_eq!(looks(10..11, &[]), (told, left_out));
    // A new file lists all live allocations, however much was written before.
    let told_before = told;
    recorder.next_file();
    taken(&mut recording, &[recorder.begin()]);
    taken(&mut recording, &recorder.tick(&ledger(11, &[(9, sizes(200_000, 1500))])));
    assert_eq!(recording.large.len() as u64, told_before + 1500);
}

/// The tables of a live ledger are read one after another: the table of stacks may have been read too early.
#[test]
fn a_stack_that_comes_late_is_told_when_it_is_there() {
    let mut composer = Composer::new();
    (composer.header.created_ns, composer.header.created_real_ns, composer.header.pid) =
        (1, SECOND, std::process::id());
    let alloc =
        |bytes| AllocSlot { stack: 1, tag: 4, serial: 1, bytes, addr: 1, kind: 1, time_ns: 1, ..Default::default() };
    composer.slots([alloc(2 * MIB)]);
    let mut early = read(composer.finish());
    // As for a running process.
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
    // A row whose stack never comes is written without it.
    let lines: Vec<Line> = (0..2).flat_map(|_| Recorder::tick(&mut recorder, &early)).collect();
    assert!(lines.iter().any(|line| matches!(line, Line::Row(row) if row.kind == Of::Tag)), "{lines:?}");
}

/// A dead process gave its last sign of life before the last look: that look is written all the same.
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
            // A time that goes back.
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
