//! Allocation traces: complete, in order, readable whatever became of the process, one for each.

use gpumem_tests::harness::run::{Scratch, wait_for};
use gpumem_tests::harness::{Ran, artifacts, client, command, program};
use gpumem_tests::skipped::{ROOT, skipped};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::trace::{self, Action, Trace};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

fn read(path: &Path) -> Trace {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    trace::read(&file).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the bytes that are live after the trace, by kind and address. Every free has its allocation before it, and
/// no address is given out twice.
#[track_caller]
fn live(trace: &Trace) -> HashMap<(AllocKind, u64), u64> {
    let mut live = HashMap::new();
    let mut undone = HashMap::new();
    for (index, record) in trace.records.iter().enumerate() {
        let key = (record.kind, record.addr);
        match record.action {
            Action::Alloc => assert_eq!(live.insert(key, record.bytes), None, "record {index}: {record:?}"),
            Action::Free => {
                assert_eq!(live.remove(&key), Some(record.bytes), "record {index}: {record:?}");
                undone.insert(key, record.bytes);
            }
            Action::Unfreed => assert_eq!(live.insert(key, undone[&key]), None, "record {index}: {record:?}"),
            Action::Failed => assert_eq!(record.addr, 0),
        }
    }
    live
}

fn count(trace: &Trace, kinds: &[AllocKind], action: Action) -> u64 {
    trace.records.iter().filter(|record| record.action == action && kinds.contains(&record.kind)).count() as u64
}

/// Each kind that a program counts is in the trace as often, with as many bytes.
#[track_caller]
fn agrees(trace: &Trace, ran: &Ran) {
    use AllocKind::*;
    let said = &ran.json()["kinds"];
    for (name, kinds) in [
        ("device", &[Device, Pitch][..]),
        ("host", &[HostPinned]),
        ("registered", &[HostRegistered]),
        ("managed", &[Managed]),
        ("async", &[Async]),
        ("array", &[Array, MipmappedArray]),
        ("vmm", &[VmmPhysical]),
    ] {
        let number = |what: &str| said[name][what].as_u64().unwrap_or(0);
        assert_eq!(count(trace, kinds, Action::Alloc), number("allocs"), "{name} in {said}");
        let frees = count(trace, kinds, Action::Free) - count(trace, kinds, Action::Unfreed);
        assert_eq!(frees, number("frees"), "frees of {name} in {said}");
        let of_kind = trace.records.iter().filter(|r| r.action == Action::Alloc && kinds.contains(&r.kind));
        assert_eq!(of_kind.map(|record| record.bytes).sum::<u64>(), number("bytes"), "bytes of {name} in {said}");
    }
}

#[test]
fn every_family_is_in_the_trace_and_it_balances() {
    for name in ["basic", "driver", "errors", "stranded_pool"] {
        let scratch = Scratch::new();
        let path = scratch.path().join("trace");
        let ran = program(name).env("GPUMEM_ALLOC_TRACE", &path).preloaded().ok();
        assert_eq!(ran.ours(), [""; 0]);
        let trace = read(&path);
        agrees(&trace, &ran);
        assert_eq!((trace.torn, trace.header.stopped, trace.header.pid), (0, 0, ran.pid));
        if name != "errors" {
            assert_eq!(live(&trace), HashMap::new(), "{name} frees all");
        }
        let stacks = trace.records.iter().filter(|record| record.action == Action::Alloc && record.stack == 0);
        assert_eq!(stacks.count(), 0, "{name}: every allocation has its site");
        let ledger = ran.ledger();
        assert!(trace.records.iter().all(|record| ledger.snapshot.stacks.len() >= record.stack as usize));
        // Dated by the clock that the header ties to the time of day.
        let first = trace.records.first().expect("a record");
        assert!(first.time_ns >= trace.header.created_ns);
    }
}

#[test]
fn threads_that_swap_addresses_stay_in_order() {
    for free in ["strict", "deferred"] {
        let scratch = Scratch::new();
        let path = scratch.path().join("trace");
        let ran = program("threads").env("GPUMEM_ALLOC_TRACE", &path).env("GPUMEM_FREE", free).preloaded().ok();
        let trace = read(&path);
        agrees(&trace, &ran);
        assert_eq!(live(&trace), HashMap::new());
        let threads: std::collections::HashSet<u32> = trace.records.iter().map(|record| record.tid).collect();
        assert!(threads.len() > 2, "{threads:?}");
    }
}

#[test]
fn a_killed_process_leaves_what_it_did() {
    let scratch = Scratch::new();
    let path = scratch.path().join("trace");
    let running = client("held").env("GPUMEM_ALLOC_TRACE", &path).waits().start(true);
    running.says("held");
    running.signal_until(libc::SIGKILL, 'Z');
    let trace = read(&path);
    assert_eq!(trace.torn, 0);
    let device: u64 = live(&trace).iter().filter(|((kind, _), _)| *kind == AllocKind::Device).map(|(_, b)| b).sum();
    assert_eq!(device, (1..=20).map(|n| n << 16).sum::<u64>());
    assert_eq!(running.finish().code, 128 + libc::SIGKILL);
}

/// Killed while threads allocate: what is there is whole, but for what each was about to write.
#[test]
fn a_process_killed_at_work_leaves_whole_records() {
    let scratch = Scratch::new();
    let path = scratch.path().join("trace");
    let running = client("many").env("GPUMEM_ALLOC_TRACE", &path).waits().start(true);
    wait_for("records", || {
        File::open(&path).ok().and_then(|file| trace::read(&file).ok()).is_some_and(|t| t.records.len() > 50)
    });
    running.signal_until(libc::SIGKILL, 'Z');
    let trace = read(&path);
    assert!(trace.torn <= 16, "{} records are missing", trace.torn);
    assert!(trace.records.iter().all(|record| record.bytes > 0 && record.tid > 0));
    drop(running);
}

fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trace"))).collect()
}

/// Each process that uses the GPU writes a trace of its own, and writes into no other trace.
#[test]
fn children_write_their_own() {
    let scratch = Scratch::new();
    let path = scratch.path().join("trace");
    let ran = program("fork").env("GPUMEM_ALLOC_TRACE", &path).preloaded().ok();
    let files = traces(scratch.path());
    assert_eq!(files.len(), ran.ledgers().len(), "{files:?}");
    let mut pids = Vec::new();
    for file in &files {
        let trace = read(file);
        assert_eq!((trace.torn, live(&trace)), (0, HashMap::new()), "{}", file.display());
        let pid = trace.header.pid;
        let name = file.to_string_lossy();
        assert!(*file == path || name.contains(&format!(".{pid}")), "{name} of {pid}");
        if pid == ran.pid {
            agrees(&trace, &ran);
        } else {
            assert_eq!(count(&trace, &[AllocKind::Device], Action::Alloc), 1);
        }
        pids.push(pid);
    }
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), files.len());
}

#[test]
fn without_the_variable_or_a_gpu_nothing_is_written() {
    let scratch = Scratch::new();
    let path = scratch.path().join("trace");
    command("/bin/true").env("GPUMEM_ALLOC_TRACE", &path).preloaded().ok();
    program("basic").env("GPUMEM_ALLOC_TRACE", "").preloaded().ok();
    assert_eq!(traces(scratch.path()), Vec::<PathBuf>::new());
}

/// If a trace cannot be written, gpumem says so in one line, and the program runs as without a trace.
#[test]
fn a_place_that_cannot_be_written_to_is_told() {
    let ran = program("basic").env("GPUMEM_ALLOC_TRACE", "/no/such/folder/trace").preloaded().ok();
    let [line] = ran.ours()[..] else { panic!("{:?}", ran.ours()) };
    assert!(line.contains("/no/such/folder/trace: cannot write an allocation trace there: No such file"), "{line}");
}

/// A full disk, from the start or on the way, is no SIGBUS: the trace ends and says so, the program goes on.
#[test]
fn a_full_disk_ends_the_trace_and_not_the_program() {
    if command("unshare").args(["-m", "true"]).native().code != 0 {
        skipped("a small file system can be mounted by root alone", ROOT);
        return;
    }
    for (size, records) in [("64k", 0), ("1m", 1), ("3m", 3)] {
        let scratch = Scratch::new();
        let small = scratch.path().join("small");
        std::fs::create_dir(&small).expect("a folder");
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs \"$SMALL\" || exit 99
             \"$@\"; code=$?; cp \"$SMALL\"/trace \"$SAVED\"; exit $code"
        );
        let many = client("many").arg("20000").env("GPUMEM_ALLOC_TRACE", small.join("trace"));
        let many = many.env("SMALL", &small).env("SAVED", scratch.path());
        let ran = many.shell(&format!("exec unshare -m sh -c '{script}' sh \"$@\"")).preloaded().ok();
        let trace = read(&scratch.path().join("trace"));
        let piece = 16384;
        assert_eq!(trace.records.len() / piece, records, "{size}: {} records", trace.records.len());
        assert_eq!(trace.header.stopped, libc::ENOSPC as u64, "{size}");
        let [line] = ran.ours()[..] else { panic!("{size}: {:?}", ran.ours()) };
        assert!(line.contains("the allocation trace ends here: No space left") && line.contains("runs on"), "{line}");
        let ledgers = ran.ledgers();
        assert!(ledgers[0].messages().iter().any(|message| message.contains("the allocation trace ends here")));
    }
}

fn gpumem(dir: &Path, args: &[&str]) -> std::process::Output {
    let mut gpumem = Command::new(&artifacts().gpumem);
    gpumem.current_dir(dir).env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", &artifacts().stage);
    gpumem
        .env("GPUMEM_DIR", dir.join("ledgers"))
        .env("GPUMEM_LIB", &artifacts().shim)
        .args(args)
        .output()
        .expect("gpumem runs")
}

#[test]
fn a_trace_is_exported_as_text() {
    let scratch = Scratch::new();
    let basic = artifacts().programs.join("basic");
    let trace = scratch.path().join("trace");
    let paths = [&trace, &basic].map(|path| path.to_str().expect("UTF-8"));
    let ran = gpumem(scratch.path(), &["run", "--alloc-trace", paths[0], "--", paths[1]]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    std::fs::write(scratch.path().join("mine"), "precious").expect("a file");
    let exported = gpumem(scratch.path(), &["export", "--to", "csv", "./trace"]);
    assert!(exported.status.success() && exported.stderr.is_empty());
    let text = String::from_utf8(exported.stdout).expect("UTF-8");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    let (mut live, mut rows) = (HashMap::new(), 0);
    for line in lines {
        let [thread, time, action, pointer, size, stream] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        assert!(thread.parse::<u32>().is_ok() && pointer.starts_with("0x"), "{line}");
        assert!(time.len() == 15 && time.as_bytes()[8] == b'.', "{line}");
        assert!(stream == "0" || stream.starts_with("0x"), "{line}");
        let size: u64 = size.parse().expect("bytes");
        match action {
            "allocate" => assert_eq!(live.insert(pointer.to_owned(), size), None),
            "free" => assert_eq!(live.remove(pointer), Some(size)),
            _ => panic!("{line}"),
        }
        rows += 1;
    }
    assert!(live.is_empty() && rows > 10);
    for (args, code) in [(&["export", "--to", "csv", "none"][..], 3), (&["export", "--to", "csv", "./mine"], 1)] {
        assert_eq!(gpumem(scratch.path(), args).status.code(), Some(code), "{args:?}");
    }
}
