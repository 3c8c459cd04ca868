//! Files that lie: every command ends with an answer or one clear line, never a crash, a hang or
//! raw control characters.

mod common;
use common::*;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::*;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Every view that reads a ledger.
const VIEWS: &[&[&str]] = &[
    &["allocs", "--all", "--stacks"],
    &["leaks", "--all", "--stacks"],
    &["allocs", "--by", "tag", "--all-kinds"],
    &["graphs", "--all", "--stacks"],
    &["stats", "--samples", "--all"],
    &["events"],
    &["export", "--format", "json"],
    &["export", "--format", "csv"],
    &["export", "--format", "prometheus"],
    &["export", "--to", "jsonl"],
    &["export", "--to", "folded"],
    &["export", "--to", "speedscope"],
    &["export", "--to", "trace"],
    &["graphs", "--by", "class"],
    &["graphs", "--by", "state", "--pinned", "--all"],
];

/// Exports that no terminal can show.
const BINARY: &[&[&str]] =
    &[&["export", "--to", "pprof", "-o", "/dev/null"], &["export", "--to", "memory-viz", "-o", "/dev/null"]];

fn survives(dir: &Dir, file: &Path, what: &str) {
    for view in VIEWS.iter().chain(BINARY) {
        let begin = Instant::now();
        let answer = dir.gpumem(&[view, &["--file", file.to_str().unwrap()][..]].concat());
        assert!(matches!(answer.code, 0 | 1), "{what}: {view:?} ended with {}: {}", answer.code, answer.err);
        assert!(!answer.err.contains("panicked"), "{what}: {view:?}: {}", answer.err);
        // A second at most on a quiet machine. What follows a number of the file without a bound takes minutes.
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {view:?} took {:?}", begin.elapsed());
        if answer.code == 1 {
            assert_eq!(answer.err.lines().count(), 1, "{what}: {}", answer.err);
        }
    }
}

#[test]
fn truncated_files_are_read_as_far_as_they_go() {
    let dir = dir();
    let whole = demo(gone()).finish();
    let file = dir.path().join("cut");
    for len in [0, 1, 100, 4095, 4096, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..len]).unwrap();
        survives(&dir, &file, &format!("cut at {len}"));
    }
}

#[test]
fn damage_anywhere_is_survived() {
    let dir = dir();
    let whole = demo(gone()).finish();
    let file = dir.path().join("damaged");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..12 {
        let mut bytes = whole.clone();
        for _ in 0..200 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % bytes.len();
            // The marks by which it is known stay, or there is nothing to test.
            if at >= 16 {
                bytes[at] = (random >> 32) as u8;
            }
        }
        std::fs::write(&file, &bytes).unwrap();
        survives(&dir, &file, &format!("damage {round}"));
    }
}

#[test]
fn sealed_lies_are_survived() {
    let dir = dir();
    let mut ledger = begin(gone());
    ledger.header.created_ns = u64::MAX;
    ledger.header.created_real_ns = u64::MAX;
    ledger.header.heartbeat_ns = u64::MAX;
    (ledger.header.state, ledger.header.mode, ledger.header.interception) = (u32::MAX, u32::MAX, u32::MAX);
    ledger.header.exe = u32::MAX;
    let most = |serial| AllocSlot {
        stack: u32::MAX,
        addr: u64::MAX,
        bytes: u64::MAX,
        time_ns: u64::MAX,
        serial,
        tid: u32::MAX,
        tag: u32::MAX,
        stream: u16::MAX,
        location: u16::MAX,
        context: u16::MAX,
        kind: 255,
        flags: 255,
        ..Default::default()
    };
    ledger.slots([
        most(1),
        most(u64::MAX),
        AllocSlot { kind: AllocKind::Device as u8, context: 1, ..most(2) },
        AllocSlot { kind: AllocKind::Device as u8, stack: 1, context: 1, ..most(3) },
    ]);
    ledger.slots([ContextSlot {
        used_bytes: 1,
        used_ns: u64::MAX,
        live_bytes: u64::MAX,
        peak_bytes: u64::MAX,
        exec_bytes: u64::MAX,
        vendor: 99,
        ..Default::default()
    }]);
    ledger.stack(
        0,
        StackSlot { allocs: u64::MAX, alloc_bytes: u64::MAX, graphs: u64::MAX, execs: u64::MAX, ..Default::default() },
        &[0, 1, u64::MAX],
    );
    ledger.slots([ModuleSlot {
        path: u32::MAX,
        bias: u64::MAX,
        start: 0,
        end: u64::MAX,
        build_id_len: u32::MAX,
        ..Default::default()
    }]);
    let exec = ExecSlot {
        host_bytes: u64::MAX,
        device_bytes: u64::MAX,
        launches: u64::MAX,
        updates: u64::MAX,
        nodes: [u32::MAX; 16],
        last_launch_ns: u64::MAX,
        instantiate_ns: u64::MAX,
        context: 1,
        stack: 1,
        class: u64::MAX,
        state: u64::MAX,
        source_bytes: u64::MAX,
        retargets: u64::MAX,
        instantiations: u64::MAX,
        evictions: u64::MAX,
        saved_ns: u64::MAX,
        ..Default::default()
    };
    ledger.slots((0..=5).map(|state| ExecSlot { state, ..exec }).chain([exec]));
    let graph =
        GraphSlot { host_bytes: u64::MAX, nodes: u64::MAX, instantiates: u64::MAX, stack: 1, ..Default::default() };
    ledger.slots([graph, GraphSlot { folded_bytes: u64::MAX, ..graph }]);
    ledger.slots([EventSlot {
        kind: 255,
        seq: u64::MAX,
        a: u64::MAX,
        b: u64::MAX,
        code: i32::MIN,
        ..Default::default()
    }]);
    let sample =
        |seq, value| SampleSlot { seq, time_ns: seq, device_live: value, rss: u64::MAX - value, ..Default::default() };
    ledger.slots([sample(1, 0), sample(u64::MAX, u64::MAX)]);
    ledger.words(TableKind::Counters, &vec![u64::MAX; 1024]);
    for index in [counters::HANDLES_MADE, counters::REAL_EXECS_MADE, counters::REAL_BYTES_ADDED, counters::THRASHES] {
        cache::count(&mut ledger, index, u64::MAX / 2);
    }
    let file = dir.path().join("lies");
    std::fs::write(&file, ledger.finish()).unwrap();
    survives(&dir, &file, "lies");
    for view in VIEWS {
        assert_eq!(dir.gpumem(&[view, &["--file", file.to_str().unwrap()][..]].concat()).code, 0, "{view:?}");
    }
    let file = file.to_str().unwrap();
    assert_eq!(dir.gpumem(&["diff", file, file]).code, 0);
    assert_eq!(dir.gpumem(&["dump", file, "-o", dir.path().join("copy").to_str().unwrap()]).code, 0);
}

/// Characters that reorder text, that hide in it, that have no meaning, or that look like a blank.
const HIDDEN: &str =
    "\u{202e}\u{61c}\u{200b}\u{e0041}\u{e0100}\u{ad}\u{2060}\u{2066}\u{2028}\u{feff}\u{3164}\u{fe0f}\u{a0}\u{e000}";

#[test]
fn control_characters_never_reach_the_terminal() {
    let dir = dir();
    let id = me();
    let mut ledger = begin(id);
    let evil = format!("\x1b]0;owned\x07\x1b[31m\u{9b}31m\r\n{HIDDEN}\x7fend");
    let evil = evil.as_str();
    let at = ledger.text(evil);
    let header = &mut ledger.header;
    (header.exe, header.cmdline, header.mode_reason, header.interception_reason) = (at, at, at, at);
    (header.settings, header.complaints, header.shim_version, header.mode) = (at, at, at, 2);
    header.interception = 2;
    ledger.slots([ContextSlot { name: at, ..Default::default() }]);
    ledger.slots([ThreadSlot { tid: 5, name: at, ..Default::default() }]);
    ledger.stack(0, StackSlot { allocs: 1, ..Default::default() }, &[0x1001]);
    ledger.slots([ModuleSlot { path: at, start: 0x1000, end: 0x2000, ..Default::default() }]);
    ledger.symbol(0x1001, 0, evil, evil, 1, evil);
    ledger.slots([AllocSlot {
        stack: 1,
        bytes: 5,
        tid: 5,
        tag: at,
        context: 1,
        kind: AllocKind::Device as u8,
        ..Default::default()
    }]);
    ledger.slots([ExecSlot { stack: 1, tag: at, ..Default::default() }]);
    ledger.slots([EventSlot { kind: 1, code: 2, text: at, tid: 5, ..Default::default() }]);
    let file = dir.put(id, ledger);
    let pid = id.pid.to_string();
    let more: &[&[&str]] = &[
        &["ps"],
        &["doctor", "--all"],
        &["clean"],
        &["diff", &pid, &pid],
        &["allocs", "--by", "thread"],
        &["allocs", "--by", "device"],
        &["report", "-o", "-"],
        &["export", "--to", "prometheus"],
    ];
    for view in VIEWS.iter().chain(more) {
        for json in [&[][..], &["--json"]] {
            let answer = dir.gpumem(&[view, json].concat());
            if !json.is_empty() && answer.err.contains("is no JSON; leave --json out") {
                continue;
            }
            for text in [&answer.out, &answer.err] {
                let bad = text.chars().find(|&c| c.is_control() && c != '\n' || HIDDEN.contains(c));
                assert_eq!(bad, None, "{view:?} {json:?}: {text:?}");
            }
            assert!(matches!(answer.code, 0 | 1), "{view:?}: {}", answer.err);
        }
    }
    assert!(file.exists());
}

#[test]
fn what_is_no_file_of_ours_is_left_alone() {
    let dir = dir();
    let name = |pid: u32| dir.path().join(format!("{pid}-1.ledger"));
    let pipe = std::ffi::CString::new(name(1).as_os_str().as_bytes()).unwrap();
    // SAFETY: `pipe` is a CString: it ends in NUL and lives until mkfifo returns.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink("/dev/zero", name(2)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", name(3)).unwrap();
    std::fs::create_dir(name(4)).unwrap();
    std::fs::write(name(5), vec![0xff; 9000]).unwrap();
    let mut other = demo(gone());
    other.header.version = 99;
    std::fs::write(name(6), other.finish()).unwrap();
    let report = dir.json(&["ps"]);
    let rows = report["processes"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row["status"] == "unreadable"), "{report:#}");
    assert!(rows[5]["status_text"].as_str().unwrap().contains("version 99"), "{report:#}");
    for (pid, why) in [("2", "symbolic link"), ("5", "is not a ledger or dump of gpumem"), ("6", "of the same release")]
    {
        let answer = dir.gpumem(&["allocs", &dir.path().join(format!("{pid}-1.ledger")).display().to_string()]);
        assert_eq!(answer.code, 1);
        // By its name a link may be followed; what it leads to is no ledger.
        assert!(answer.err.contains(why) || pid == "2" && answer.err.contains("not a regular file"), "{}", answer.err);
    }
}

#[test]
fn a_sparse_file_of_gigabytes_takes_no_memory() {
    let dir = dir();
    let mut bytes = demo(gone()).finish();
    // The first table claims four billion bytes, in a file that is as long.
    let at = std::mem::offset_of!(Header, tables);
    let slots = (3_u64 << 30) / 64;
    bytes[at + 16..at + 24].copy_from_slice(&slots.to_le_bytes());
    bytes[at + 24..at + 32].copy_from_slice(&slots.to_le_bytes());
    let file = dir.path().join("sparse");
    std::fs::write(&file, &bytes).unwrap();
    survives(&dir, &file, "claims more than there is");
}
