//! The ledger of a process that is hung, killed or gone.

use gpumem_tests::harness::run::wait_for;
use gpumem_tests::harness::{Ledger, client, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, State};
use gpumem_wire::layout::Header;
use gpumem_wire::place::ProcessId;
use serde_json::Value;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The ledger shows the objects of `held`: counts by kind, bytes by kind, graphs and execs.
#[track_caller]
fn shows_what_is_held(ledger: &Ledger, said: &Value) {
    ledger.agrees_with(said).complete();
    let mut sizes: Vec<u64> = ledger.snapshot.allocs.iter().map(|alloc| alloc.bytes).collect();
    sizes.sort_unstable();
    let mut held: Vec<u64> = (1..=20).map(|n| n << 16).chain([123456]).collect();
    held.sort_unstable();
    assert_eq!(sizes, held);
    // No address is listed twice, no block lies in another.
    let blocks: BTreeMap<u64, u64> = ledger.snapshot.allocs.iter().map(|alloc| (alloc.addr, alloc.bytes)).collect();
    assert_eq!(blocks.len(), held.len());
    assert!(blocks.iter().zip(blocks.iter().skip(1)).all(|((addr, bytes), (next, _))| addr + bytes <= *next));

    let stats = ledger.gpumem("stats", &[]);
    assert_eq!(stats["live"]["device"], (1..=20).map(|n| n << 16).sum::<u64>());
    assert_eq!(stats["live"]["host"], 123456);
    assert_eq!(stats["live"]["count"], 21);
    let allocs = ledger.gpumem("allocs", &["--all"]);
    assert_eq!((&allocs["live"], &allocs["bytes"]), (&21.into(), &held.iter().sum::<u64>().into()));
    let graphs = ledger.gpumem("graphs", &[]);
    assert_eq!(graphs["process"]["interception"], "complete");
    assert_eq!((ledger.snapshot.graphs.len(), ledger.snapshot.execs.len()), (1, 1));
}

fn summary(text: &str) -> Value {
    serde_json::from_str(text.lines().next().unwrap_or_default()).expect("the summary")
}

/// Killed in mid-work, the ledger shows the state at death.
#[test]
fn killed_process_is_readable_and_exact() {
    let running = client("held").waits().start(true);
    running.says("held");
    running.signal_until(libc::SIGKILL, 'Z');
    let ledger = running.ledger();
    shows_what_is_held(&ledger, &summary(&running.stdout()));
    assert_eq!(ledger.snapshot.header.exited_ns, 0);
    let ran = running.finish();
    assert_eq!(ran.code, 128 + libc::SIGKILL);
    assert_eq!(ran.ledger().gpumem("stats", &[])["process"]["life"], "killed");
}

/// Killed while many threads allocate and free. The list agrees with the counters, except for the record that
/// each thread was about to write.
#[test]
fn killed_in_the_midst_of_threads_is_readable() {
    const THREADS: u64 = 12;
    for _ in 0..4 {
        let running = program("threads").args([&THREADS.to_string(), "100000"]).start(true);
        wait_for("some allocations", || {
            Ledger::of_pid(&running.dir, running.pid())
                .is_some_and(|ledger| ledger.counter(counters::allocs(AllocKind::Device)) > 300)
        });
        running.signal_until(libc::SIGKILL, 'Z');
        let ledger = running.ledger();
        let counter = |of: fn(AllocKind) -> usize| ledger.counter(of(AllocKind::Device));
        let listed = ledger.snapshot.allocs.iter().filter(|alloc| alloc.kind == AllocKind::Device as u8).count() as u64;
        let live = counter(counters::allocs) - counter(counters::frees);
        assert!(listed.abs_diff(live) <= THREADS && ledger.snapshot.torn <= THREADS, "{listed} listed, {live} counted");
        assert!(ledger.snapshot.execs.len() as u64 <= THREADS);
        for command in ["allocs", "graphs", "stats", "events"] {
            ledger.gpumem(command, &[]);
        }
    }
}

/// The totals of a call stack are exact once its threads rest. There are more stacks than a thread has places for, and
/// more threads than have places of their own.
#[test]
fn what_call_stacks_led_to_is_exact() {
    const BYTES: u64 = 8192;
    for (threads, rounds) in [(1, 50), (3, 20), (60, 3)] {
        let sites = client("sites").args([threads.to_string(), rounds.to_string()]).env("GPUMEM_STACKS", "64");
        let ran = sites.preloaded().ok();
        let ledger = ran.ledger();
        ledger.agrees_with(&ran.json()).complete().balanced();
        let mut led_to: Vec<_> =
            ledger.snapshot.stacks.iter().map(|(at, stack)| (*at, stack.allocs, stack.alloc_bytes)).collect();
        led_to.sort_unstable();
        let each = (threads * rounds) as u64;
        assert_eq!(led_to.len(), 40, "{led_to:?}");
        assert!(led_to.iter().all(|led| (led.1, led.2) == (each, each * BYTES)), "{threads}: {led_to:?}");
    }
}

/// After a kill the totals are those of the threads' counters, except for the counts that each thread was about to write.
#[test]
fn what_call_stacks_led_to_outlives_the_process() {
    const THREADS: u64 = 4;
    let running = client("sites").args([&*THREADS.to_string(), "1", "for ever"]).env("GPUMEM_STACKS", "64").start(true);
    let allocs = |ledger: &Ledger| ledger.counter(counters::allocs(AllocKind::Device));
    wait_for("some allocations", || {
        Ledger::of_pid(&running.dir, running.pid()).is_some_and(|ledger| allocs(&ledger) > 5000)
    });
    running.signal_until(libc::SIGKILL, 'Z');
    let ledger = running.ledger();
    let led_to: u64 = ledger.snapshot.stacks.values().map(|stack| stack.allocs).sum();
    // A thread that was killed while it moved a place to the record may count that place twice or not at all.
    assert!(led_to.abs_diff(allocs(&ledger)) <= 2 * THREADS, "{led_to} led to, {} counted", allocs(&ledger));
}

/// The ledger of a hung process can be read, since the process has to do nothing for it. Then the process goes on.
#[test]
fn stopped_process_is_readable_and_goes_on() {
    let running = client("held").waits().start(true);
    running.says("held");
    running.signal_until(libc::SIGSTOP, 'T');
    shows_what_is_held(&running.ledger(), &summary(&running.stdout()));
    wait_for("the process to be shown as stopped", || running.gpumem(&["ps"])["processes"][0]["status"] == "stopped");
    assert_eq!(running.gpumem(&["stats"])["process"]["life"], "stopped");
    running.signal(libc::SIGCONT);
    let ran = running.finish().ok();
    ran.ledger().agrees_with(&ran.json()).balanced();
    let files: Vec<_> =
        std::fs::read_dir(&ran.dir).expect("its directory").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(files, [ran.ledger().path], "a ledger is all that is left");
}

/// Pid and start time stay over exec, and the next program holds nothing of the one before.
#[test]
fn a_program_that_became_another_one_has_ended() {
    let mut running = client("becomes").waits().start(true);
    running.says("held");
    assert_eq!(running.gpumem(&["ps"])["processes"][0]["status"], "running");
    let pid = running.pid().to_string();
    running.tell("go on");
    wait_for("the ledger to be of an ended program", || {
        running.gpumem(&["ps"])["processes"][0]["status"] == "replaced"
    });
    running.tell("cat answers");
    running.says("cat answers");
    let stats = running.gpumem(&["stats", &pid]);
    assert_eq!(stats["process"]["life"], "replaced");
    assert!(running.refused(&["set", &pid, "POOL=0"]).contains("is not running: replaced by exec"));
    let found = running.gpumem(&["doctor", &pid])["findings"].clone();
    let said =
        |id: &str| found.as_array().unwrap().iter().find(|one| one["id"] == id).map(|one| one["finding"].clone());
    let words = said("recording").unwrap_or_default().to_string();
    assert!(words.contains("the program at this pid is another now"), "{found:#}");
    assert!(said("heartbeat").is_none() && said("reach").is_some(), "{found:#}");
    assert_eq!(running.gpumem(&["clean"])["kept"][0]["why"].as_str().map(|why| why.contains("replaced")), Some(true));
    assert_eq!(running.gpumem(&["clean", "--all"])["removed"].as_array().map(Vec::len), Some(1));
    assert!(running.refused(&["ps"]).contains("no ledger"));
    running.finish().ok();
}

/// With one process to look at no pid is needed, and its numbers are plausible.
#[test]
fn stats_explain_a_running_process() {
    let running = client("held").waits().start(true);
    running.says("held");
    let stats = running.gpumem(&["stats"]);
    assert_eq!(stats["process"]["pid"], running.pid());
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number in {stats}"));
    let device = &stats["devices"][0];
    let (tracked, used) = (number(&device["tracked_bytes"]), number(&device["used_bytes"]));
    assert_eq!(tracked, (1..=20).map(|n| n << 16).sum::<u64>());
    assert!(used >= tracked && used <= number(&device["total_bytes"]), "{device}");
    assert!(number(&device["unexplained_bytes"]) <= used - tracked, "{device}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("it runs");
    let resident =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).and_then(|rest| rest.trim().strip_suffix(" kB"));
    let resident: u64 = resident.expect("VmRSS").parse::<u64>().expect("a number") << 10;
    let shown = number(&stats["host"]["rss_bytes"]);
    assert!(shown.abs_diff(resident) < 4 << 20, "{shown} shown, {resident} by the kernel");
    let threads = std::fs::read_dir(format!("/proc/{}/task", running.pid())).expect("it runs");
    let ours = threads.filter(|task| {
        let comm = task.as_ref().expect("a thread").path().join("comm");
        std::fs::read_to_string(comm).is_ok_and(|name| name == "gpumem\n")
    });
    assert_eq!(ours.count(), 1, "one thread of ours, once there is a context");
    running.finish().ok();
}

/// The directory vanishes while the process runs: it goes on, and so does its recording.
#[test]
fn vanished_directory() {
    let running = client("held").waits().start(true);
    running.says("held");
    std::fs::remove_dir_all(&running.dir).expect("the ledgers' directory");
    let ran = running.finish().ok();
    assert_eq!((ran.json()["failures"].as_u64(), ran.ours()), (Some(0), vec![]));
    // Many more records than were backed when it vanished.
    let many = client("many").arg("20000").shell("\"$@\" & sleep 0.3; rm -rf \"$GPUMEM_DIR\"; wait $!");
    let ran = many.preloaded().ok();
    assert_eq!((ran.json()["allocs"].as_u64(), ran.ours()), (Some(40000), vec![]));
}

/// A ledger of an earlier process with the same pid is neither taken for this process's nor overwritten.
#[test]
fn pid_reuse() {
    let stale = client("many").arg("7").env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    let bytes = std::fs::read(&stale.ledger().path).expect("its ledger");
    let source = stale.scratch().join("stale");
    std::fs::write(&source, &bytes).expect("a copy");
    let script = format!("mkdir -p \"$GPUMEM_DIR\"; cp {} \"$GPUMEM_DIR\"/$$-7.ledger; exec \"$@\"", source.display());
    let running = client("held").waits().shell(&script).start(true);
    running.says("held");
    let (pid, dir) = (running.pid(), &running.dir);
    let mut all = Ledger::all(dir);
    all.sort_by_key(|ledger| ledger.id.start_ticks);
    assert_eq!(all.iter().map(|ledger| ledger.id.pid).collect::<Vec<_>>(), [pid, pid]);
    assert_eq!(std::fs::read(&all[0].path).expect("the stale one"), bytes, "left as it was");
    shows_what_is_held(&all[1], &summary(&running.stdout()));
    // The pid means the process that runs.
    let stats = running.gpumem(&["stats", &pid.to_string()]);
    assert_eq!(stats["live"]["count"], 21);
    let rows = running.gpumem(&["ps", "--live"]);
    assert_eq!(rows["processes"].as_array().map(Vec::len), Some(1), "{rows}");
    running.finish().ok();
}

/// Writes a ledger of a dead process: its name is that of a process that cannot exist, above the largest pid that Linux
/// gives.
pub fn dead_ledger(dir: &Path, ledger: &[u8], n: u32) -> PathBuf {
    let mut copy = ledger.to_vec();
    copy[offset_of!(Header, pid)..][..4].copy_from_slice(&(5_000_000 + n).to_le_bytes());
    copy[offset_of!(Header, start_ticks)..][..8].copy_from_slice(&u64::from(n).to_le_bytes());
    let path = dir.join(format!("{}-{n}.ledger", 5_000_000 + n));
    std::fs::write(&path, copy).expect("a ledger");
    path
}

/// Old ledgers of dead processes are removed. The newest are kept, those of killed processes by a count of their
/// own: they show what happened, and short-lived helpers must not push them out. Files of others are left alone.
#[test]
fn stale_ledgers_are_swept() {
    let first = client("many").arg("3").env("GPUMEM_LEDGER_MAX", "1MiB").preloaded().ok();
    let source = first.ledger().path;
    let dir = first.scratch().join("many");
    std::fs::create_dir(&dir).expect("a directory");
    let exited = std::fs::read(&source).expect("a ledger");
    let put = |ledger: &[u8], n: u32| dead_ledger(&dir, ledger, n);
    for n in 1..=40 {
        put(&exited, n);
    }
    let mut killed = exited.clone();
    killed[offset_of!(Header, exited_ns)..][..8].fill(0);
    killed[offset_of!(Header, state)..][..4].copy_from_slice(&(State::Recording as u32).to_le_bytes());
    let old = SystemTime::now() - Duration::from_secs(3600);
    let killed_ones = (41..=43).map(|n| put(&killed, n)).collect::<Vec<_>>();
    for path in &killed_ones {
        std::fs::File::options().write(true).open(path).expect("it").set_modified(old).expect("its time");
    }
    for other in ["notes.txt", "x-1.ledger", "7.ledger"] {
        std::fs::write(dir.join(other), "not a ledger").expect("a file of others");
    }
    let running = client("held").dir(&dir).waits().start(true);
    running.says("held");
    let ledgers = || {
        std::fs::read_dir(&dir).expect("a directory").filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_str().and_then(ProcessId::from_ledger_name).is_some()
        })
    };
    wait_for("the sweep", || ledgers().count() <= 8 + killed_ones.len() + 1);
    assert!(killed_ones.iter().all(|path| path.exists()), "older than all that exited, and kept");
    assert!(running.ledger().id.pid == running.pid(), "its own stays");
    assert!(["notes.txt", "x-1.ledger", "7.ledger"].iter().all(|other| dir.join(other).exists()));
    running.finish().ok();
}

/// The ledger of a running process is overwritten with garbage. The process goes on.
#[test]
fn scribbled_ledger_does_not_harm_its_process() {
    use std::os::unix::fs::FileExt;
    for seed in 1..=3_u64 {
        let running = program("threads").args(["4", "100"]).start(true);
        wait_for("its ledger", || Ledger::of_pid_unread(&running.dir, running.pid()).is_some());
        let path = Ledger::of_pid_unread(&running.dir, running.pid()).expect("its ledger");
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("its ledger");
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The header with its directory, then the first pages of what follows: each twice.
        for at in (0..2).flat_map(|_| (0..1 << 20).step_by(4096)) {
            let noise: Vec<u8> = (0..4096)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as u8
                })
                .collect();
            file.write_all_at(&noise, at).expect("a write");
        }
        let ran = running.finish().ok();
        assert_eq!(ran.json()["failures"], 0);
    }
}
