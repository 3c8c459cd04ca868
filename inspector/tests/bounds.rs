//! The memory that an answer takes follows from the bytes that the file stores: [`most_memory`], as docs/ledger.md
//! states it. Each of these files once cost gigabytes.

mod common;
use common::skipped::skipped;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::layout::*;
use gpumem_wire::read::Source;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// docs/ledger.md: "128 MiB, and 64 bytes for each byte that the file stores".
fn most_memory(stored: u64) -> u64 {
    128 * MIB + 64 * stored
}

/// Address space that a program takes which does nothing yet.
const PROGRAM: u64 = 256 * MIB;

/// Runs a command under that limit; every one that looks at the file has to end in an answer.
fn within(args: &[&str], stored: u64) -> (i32, String) {
    let most = PROGRAM + most_memory(stored);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    let mut command: Command = gpumem();
    command.args(args).stdout(Stdio::null());
    // SAFETY: between fork and exec only async-signal-safe functions may run. setrlimit is a bare
    // system call, and the closure owns the rlimit that is read.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let answer = answer(command);
    (answer.code, answer.err)
}

/// Every view, and what else reads ledgers.
fn every_answer_is_within(dir: &Dir, file: &Path) {
    let stored = File::open(file).unwrap().stored().unwrap();
    let name = file.to_str().unwrap();
    let views: &[&[&str]] = &[
        &["allocs"],
        &["allocs", "--all", "-n", "0"],
        &["allocs", "--all", "--json"],
        &["allocs", "--stacks", "--json"],
        &["allocs", "--by", "thread", "--json"],
        &["allocs", "--by", "tag", "-n", "0"],
        &["leaks"],
        &["leaks", "--all", "--stacks", "--json"],
        &["graphs", "--all", "--json"],
        &["stats", "--all", "--json"],
        &["events", "-n", "0"],
        &["events", "--json"],
        &["export", "--format", "json"],
        &["export", "--format", "csv"],
        &["export", "--format", "prometheus"],
        &["export", "--to", "jsonl"],
        &["export", "--to", "folded"],
        &["export", "--to", "speedscope"],
        &["export", "--to", "pprof"],
        &["export", "--to", "memory-viz"],
        &["export", "--to", "trace"],
        &["report", "-o", "-"],
        &["report", "--json"],
        &["dump", "-o", "/dev/null"],
    ];
    for view in views {
        let (code, err) = within(&[view, &["--no-symbols", name][..]].concat(), stored);
        // What is out of proportion may be ended, in words.
        assert!(code == 0 || code == 1 && err.contains("out of proportion"), "{view:?}: {code} {err}");
    }
    let (code, err) = within(&["diff", name, name, "--json"], 2 * stored);
    assert_eq!(code, 0, "{err}");
    let (code, err) = within(&["doctor", name, "--json"], stored);
    assert!(matches!(code, 0 | 1), "doctor: {code} {err}");
    let dir = dir.path().to_str().unwrap();
    for args in [&["ps", "--dir", dir][..], &["clean", "--dry-run", "--dir", dir], &["doctor", "--dir", dir]] {
        let (code, err) = within(args, stored);
        assert!(matches!(code, 0 | 1), "{args:?}: {code} {err}");
    }
}

fn put(dir: &Dir, composer: Composer) -> std::path::PathBuf {
    dir.put(gone(), composer)
}

/// 4 GiB that hold next to nothing, with tables as long as the file.
fn sparse(dir: &Dir) -> std::path::PathBuf {
    let path = put(dir, demo(gone()));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).unwrap();
    // Each table moves to a share of its own, and claims all of it.
    let tables = std::mem::offset_of!(Header, tables);
    let count = u32::from_le_bytes(header[std::mem::offset_of!(Header, tables_len)..][..4].try_into().unwrap());
    let share = (4_u64 << 30) / u64::from(count) / 4096 * 4096;
    for index in 0..count as usize {
        let desc = &mut header[tables + index * 40..][..40];
        let word = |at: usize| u64::from_le_bytes(desc[at..at + 8].try_into().unwrap());
        let (slot, offset, used) = (u64::from(u32::from_le_bytes(desc[4..8].try_into().unwrap())), word(8), word(24));
        let mut bytes = vec![0; (slot * used) as usize];
        file.read_exact_at(&mut bytes, offset).unwrap();
        let to = 4096 + index as u64 * share;
        let far = 16 << 20;
        file.write_all_at(&bytes, to + far).unwrap();
        let slots = (share - 4096) / slot;
        for (at, number) in [(8, to + far), (16, slots - far / slot), (24, slots - far / slot)] {
            desc[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
    }
    file.write_all_at(&header, 0).unwrap();
    file.set_len(4 << 30).unwrap();
    path
}

#[test]
fn a_sparse_ledger_costs_what_it_stores() {
    let dir = dir();
    let path = sparse(&dir);
    // Two of them in one directory.
    sparse(&dir);
    let stored = File::open(&path).unwrap().stored().unwrap();
    if stored > 64 * MIB {
        skipped(format_args!("{} does not tell holes", path.display()), "TMPDIR on another file system");
        return;
    }
    every_answer_is_within(&dir, &path);
    assert_eq!(dir.json(&["allocs", path.to_str().unwrap()])["live"], 3, "and what it stores is read");
}

#[test]
fn texts_that_share_their_bytes_cost_what_they_store() {
    let dir = dir();
    let mut composer = begin(gone());
    // Wherever a text begins in these, it says that it is as long as a text may be.
    let anchor = composer.text(&"\u{7f}".repeat(1 << 20));
    composer.slots((0..8_000_u32).map(|n| {
        let at = anchor + n * 100;
        SymbolSlot {
            address: 0x1000 + u64::from(n),
            function: at,
            file: at + 30,
            module: at + 60,
            ..Default::default()
        }
    }));
    composer.slots((0..8_000_u32).map(|n| AllocSlot {
        tag: anchor + n * 90,
        stack: n + 1,
        kind: 1,
        ..Default::default()
    }));
    composer.slots((0..8_000_u32).map(|n| EventSlot { text: anchor + n * 80, kind: 1, ..Default::default() }));
    composer.slots((0..8_000_u32).map(|n| ThreadSlot { tid: n, name: anchor + n * 70, ..Default::default() }));
    for n in 0..2_000 {
        let frames: Vec<u64> = (0..4).map(|frame| 0x1000 + (n * 4 + frame) as u64).collect();
        composer.stack(n, StackSlot { allocs: 1, ..Default::default() }, &frames);
    }
    every_answer_is_within(&dir, &put(&dir, composer));
}

#[test]
fn one_long_text_at_every_place_costs_one_text() {
    let dir = dir();
    let mut composer = begin(gone());
    let long = composer.text(&"long ".repeat(13_000));
    composer.slots((0..2_000_u64).map(|n| SymbolSlot {
        address: 0x1000 + n,
        function: long,
        file: long,
        module: long,
        ..Default::default()
    }));
    composer.slots((0..30_u32).map(|n| AllocSlot { tag: long, stack: n + 1, kind: 1, tid: n, ..Default::default() }));
    composer.slots((0..2_000_u32).map(|n| ThreadSlot { tid: n, name: long, ..Default::default() }));
    composer.slots((0..2_000).map(|_| ModuleSlot { path: long, start: 0x1000, end: 0x9000, ..Default::default() }));
    composer.slots((0..20).map(|_| ExecSlot { tag: long, stack: 1, ..Default::default() }));
    for n in 0..30 {
        let frames: Vec<u64> = (0..4).map(|frame| 0x1000 + (n * 4 + frame) as u64).collect();
        composer.stack(n, StackSlot { allocs: 1, graphs: 1, ..Default::default() }, &frames);
    }
    every_answer_is_within(&dir, &put(&dir, composer));
}

#[test]
fn stacks_that_share_their_frames_cost_what_they_store() {
    let dir = dir();
    let mut composer = begin(gone());
    composer.stack(0, StackSlot { allocs: 1, ..Default::default() }, &vec![0x1001; 1024]);
    composer.slots_at(
        (1..20_000)
            .map(|n| (n, StackSlot { first_frame: 0, frames: 1024, hash: n as u64, allocs: 1, ..Default::default() })),
    );
    composer.slots((0..10_000_u32).map(|n| AllocSlot { stack: n + 1, bytes: 1, kind: 1, ..Default::default() }));
    every_answer_is_within(&dir, &put(&dir, composer));
}

#[test]
fn a_chain_of_inlined_functions_has_an_end() {
    let dir = dir();
    let mut composer = begin(gone());
    composer.stack(0, StackSlot { allocs: 1, ..Default::default() }, &vec![0x1001; 1024]);
    (0..2_000).for_each(|n| composer.symbol(0x1001, n, "f", "f.c", 1, "app"));
    composer.slots((0..20).map(|_| AllocSlot { stack: 1, bytes: 1, kind: 1, ..Default::default() }));
    let path = put(&dir, composer);
    every_answer_is_within(&dir, &path);
    let row = &dir.json(&["allocs", "--all", "--stacks", "-n", "1", path.to_str().unwrap()])["rows"][0];
    assert_eq!(row["stack"].as_array().unwrap().len(), 1024 * 100, "a hundred at an address");
}

#[test]
fn allocations_are_shown_one_by_one() {
    let dir = dir();
    let mut composer = demo(gone());
    composer.slots((0..20_000_u64).map(|n| AllocSlot {
        addr: n << 9,
        bytes: n,
        kind: 1,
        context: 1,
        ..Default::default()
    }));
    let path = put(&dir, composer);
    let stored = File::open(&path).unwrap().stored().unwrap();
    // Less than half of what the rows alone once took.
    let few = stored / 64;
    for args in [&["allocs", "--all", "-n", "0"][..], &["allocs", "--all", "--json"], &["export", "--format", "json"]] {
        let (code, err) = within(&[args, &[path.to_str().unwrap()][..]].concat(), few);
        assert_eq!(code, 0, "{args:?}: {err}");
    }
}
