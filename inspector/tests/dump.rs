//! `gpumem dump -o` writes through links, into devices and pipes, and to stdout. A dump that was cut short is told from
//! an empty process.

mod common;
use common::*;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, TableKind};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

fn one() -> Dir {
    let dir = dir();
    dir.put(me(), demo(me()));
    dir
}

fn dump(dir: &Dir, to: &Path) -> Answer {
    dir.gpumem(&["dump", "-o", to.to_str().unwrap()])
}

fn pipe(dir: &Dir) -> PathBuf {
    let path = dir.path().join("pipe");
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` is a CString: it ends in NUL and lives until mkfifo returns.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

/// True for bytes that every command can read.
fn is_dump(dir: &Dir, bytes: &[u8]) -> bool {
    let file = dir.path().join("again");
    std::fs::write(&file, bytes).unwrap();
    dir.json(&["allocs", file.to_str().unwrap()])["process"]["life"] == "dump"
}

#[test]
fn a_device_is_written_and_stays_a_device() {
    let dir = one();
    // By a link of ours: no test may risk the machine's own /dev/full.
    let full = dir.path().join("full");
    symlink("/dev/full", &full).unwrap();
    let answer = dump(&dir, &full);
    assert_eq!(answer.code, 1, "{}", answer.err);
    assert!(answer.err.contains("No space left on device"), "{}", answer.err);
    assert!(full.is_symlink() && std::fs::metadata(&full).unwrap().file_type().is_char_device());
    let null = dir.path().join("null");
    symlink("/dev/null", &null).unwrap();
    let answer = dump(&dir, &null);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(null.is_symlink() && std::fs::metadata(&null).unwrap().file_type().is_char_device());
}

#[test]
fn a_pipe_is_written_and_stays_a_pipe() {
    let dir = one();
    let pipe = pipe(&dir);
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::open(pipe).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let report = dir.json(&["dump", "-o", pipe.to_str().unwrap()]);
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    let bytes = reader.join().unwrap();
    assert_eq!(report["bytes"], bytes.len());
    assert!(is_dump(&dir, &bytes));
}

#[test]
fn a_link_is_followed_and_stays_a_link() {
    let dir = one();
    let (link, file) = (dir.path().join("link"), dir.path().join("file"));
    symlink("file", &link).unwrap();
    for before in ["there is nothing", "there is a file"] {
        let answer = dump(&dir, &link);
        assert_eq!(answer.code, 0, "{before}: {}", answer.err);
        assert!(link.is_symlink(), "{before}");
        assert!(is_dump(&dir, &std::fs::read(&file).unwrap()), "{before}");
    }
    let drafts = std::fs::read_dir(dir.path()).unwrap().flatten();
    assert_eq!(drafts.filter(|entry| entry.path().extension().is_some_and(|end| end == "tmp")).count(), 0);
    let answer = dump(&dir, dir.path());
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("Is a directory"), "{}", answer.err);
}

#[test]
fn a_dump_to_stdout_has_its_report_elsewhere() {
    let dir = one();
    for json in [&[][..], &["--json"]] {
        let mut command = gpumem();
        command.env("GPUMEM_DIR", dir.path()).args(["dump", "-o", "-"]).args(json);
        let output = command.output().unwrap();
        assert!(output.status.success());
        assert!(is_dump(&dir, &output.stdout));
        let said = String::from_utf8(output.stderr).unwrap();
        match json {
            [] => assert!(said.starts_with("wrote stdout ("), "{said}"),
            _ => {
                let report: serde_json::Value = serde_json::from_str(&said).unwrap();
                assert_eq!((&report["command"], &report["bytes"]), (&"dump".into(), &output.stdout.len().into()));
            }
        }
    }
}

#[test]
fn a_dump_that_was_cut_short_is_no_empty_process() {
    let dir = one();
    let file = dir.path().join("d");
    assert_eq!(dump(&dir, &file).code, 0);
    let whole = std::fs::metadata(&file).unwrap().len();
    let path = file.to_str().unwrap();
    assert_eq!(dir.json(&["allocs", path])["process"]["whole_bytes"], serde_json::Value::Null);
    for left in [5000, whole - 100] {
        File::options().write(true).open(&file).unwrap().set_len(left).unwrap();
        let said = format!("d is cut short: {left} of ");
        for view in ["allocs", "stats", "graphs", "events"] {
            let answer = dir.gpumem(&[view, path]);
            assert_eq!(answer.code, 1, "{view}");
            assert!(answer.err.contains(&said) && answer.err.lines().count() == 1, "{view}: {}", answer.err);
        }
        let answer = dir.gpumem(&["stats", path, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
        let should = report["process"]["whole_bytes"].as_u64().unwrap();
        // Tables end at multiples of 64.
        assert!(answer.code == 1 && should <= whole && should + 64 > whole, "{should} of {whole}");
        let answer = dir.gpumem(&["diff", path, path]);
        assert_eq!((answer.code, answer.err.lines().count()), (1, 1), "{}", answer.err);
    }
    // In the directory of ledgers it is told too.
    let id = gone();
    std::fs::write(dir.path().join(id.ledger_name()), &demo(id).finish()[..6000]).unwrap();
    let text = dir.ok(&["ps"]);
    assert!(text.contains(", cut short"), "{text}");
}

#[test]
fn a_ledger_that_is_larger_than_its_tables_is_whole() {
    let dir = dir();
    let path = dir.put(me(), demo(me()));
    let len = std::fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(len + (64 << 20)).unwrap();
    let answer = dir.gpumem(&["stats"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
}

/// A command that is typed again does not lose the baseline.
#[test]
fn the_dump_that_was_there_is_kept() {
    let dir = dir();
    dir.put(me(), demo(me()));
    let file = dir.path().join("before.gpumem");
    let name = file.to_str().unwrap();
    assert!(!dir.ok(&["dump", "-o", name]).contains("was there"));
    let first = std::fs::read(&file).unwrap();
    let said = dir.ok(&["dump", "-o", name]);
    assert!(said.contains("the dump that was there is ") && said.contains("before.gpumem~ now"), "{said}");
    assert_eq!(std::fs::read(dir.path().join("before.gpumem~")).unwrap(), first);
    // What is no dump has no second name.
    std::fs::write(&file, "notes").unwrap();
    assert!(!dir.ok(&["dump", "-o", name]).contains("was there"));
}

#[test]
fn a_dump_without_a_name_is_named_by_its_pid() {
    let (dir, work) = (dir(), tempfile::tempdir().unwrap());
    dir.put(me(), demo(me()));
    let mut command = gpumem();
    command.env("GPUMEM_DIR", dir.path()).current_dir(work.path()).arg("dump");
    assert_eq!(answer(command).code, 0);
    assert!(work.path().join(format!("gpumem-{}.gpumem", me().pid)).is_file());
}

/// The counters are read a moment after the table of live allocations, and the process goes on meanwhile.
#[test]
fn the_sums_of_a_dump_are_those_of_its_rows() {
    let kind = AllocKind::Device;
    // By the counters there are this many, of a MiB each; two are listed.
    for (made, freed) in [(3, 0), (5, 3), (4, 3), (2, 0), (1, 0)] {
        let dir = dir();
        let mut ledger = begin(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        let slot = |serial: u64| AllocSlot {
            serial,
            addr: serial << 32,
            bytes: MIB,
            kind: kind as u8,
            time_ns: monotonic_ns(),
            ..Default::default()
        };
        ledger.slots((1..=2).map(slot));
        let mut shard = vec![0; counters::PER_SHARD];
        (shard[counters::allocs(kind)], shard[counters::frees(kind)]) = (made, freed);
        (shard[counters::alloc_bytes(kind)], shard[counters::free_bytes(kind)]) = (made * MIB, freed * MIB);
        ledger.words(TableKind::Counters, &shard);
        dir.put(me(), ledger);
        let to = dir.path().join("dump");
        assert_eq!(dump(&dir, &to).code, 0);
        let said = dir.json(&["allocs", to.to_str().unwrap()]);
        let sums = [&said["live"], &said["process_live"]["count"], &said["kinds"][0]["live"]];
        assert_eq!(sums, [2, 2, 2], "{made} made, {freed} freed");
        assert_eq!([&said["bytes"], &said["process_live"]["device"]], [2 * MIB, 2 * MIB]);
        let made_and_freed = ["allocs", "frees"].map(|field| said["kinds"][0][field].as_u64().unwrap());
        assert!(made_and_freed[0] >= made && made_and_freed[1] >= freed, "{made_and_freed:?}");
    }
}

/// If records were dropped, the counters know more than the rows.
#[test]
fn the_sums_of_a_dump_have_what_was_dropped() {
    let dir = dir();
    let mut ledger = begin(me());
    let mut shard = vec![0; counters::PER_SHARD];
    (shard[counters::allocs(AllocKind::Device)], shard[counters::DROPPED_RECORDS]) = (7, 7);
    ledger.words(TableKind::Counters, &shard);
    dir.put(me(), ledger);
    let to = dir.path().join("dump");
    assert_eq!(dump(&dir, &to).code, 0);
    assert_eq!(dir.json(&["allocs", to.to_str().unwrap()])["process_live"]["count"], 7);
}
