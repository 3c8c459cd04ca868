//! The kernel gives the process no more memory: the shim stops recording and says so. The program goes on as natively.

use gpumem_tests::harness::{Program, client};
use gpumem_tests::skipped::skipped;
use gpumem_wire::kinds::State;
use std::path::Path;

/// The program ends as natively. The answer is whether recording had to end.
#[track_caller]
fn runs_on(program: &Program, what: &str) -> bool {
    let (native, ran) = (program.native().ok(), program.preloaded());
    assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}: {}", ran.err);
    assert_eq!(ran.violations(), native.violations(), "{what}");
    let ours = ran.ours();
    let ended = ours.iter().any(|line| line.contains("no more memory: recording ends here"));
    let not_begun = ours.iter().any(|line| line.contains("nothing is recorded"));
    assert_eq!(ours.len(), usize::from(ended || not_begun), "{what}: {ours:?}");
    // The records until then can be read, and say why recording ended.
    for ledger in ran.ledgers() {
        let stopped = ledger.snapshot.header.state == State::Stopped as u32;
        assert_eq!(stopped, ended, "{what}");
        assert!(!ended || ledger.messages().iter().any(|message| message.contains("no more memory")), "{what}");
    }
    ended
}

/// RLIMIT_AS meets each of the shim's structures while it grows: tables of allocations, of stacks, of graphs.
#[test]
fn no_more_addresses() {
    let mut ended = 0;
    for kib in [0, 64, 128, 320, 512, 1024, 1500, 2048, 3000, 4096] {
        let program = client("no_memory").arg(kib.to_string()).env("GPUMEM_LEDGER_MAX", "4MiB");
        ended += u32::from(runs_on(&program, &format!("{kib} KiB")));
    }
    assert!(ended >= 7, "the limit was met {ended} times");
}

/// The same with every part of the shim at work or left out.
#[test]
fn no_more_addresses_in_any_mode() {
    let modes: &[&[(&str, &str)]] = &[
        &[("GPUMEM_POOL", "0")],
        &[("GPUMEM_GRAPH_CACHE", "0")],
        &[("GPUMEM_GRAPH_CACHE", "8")],
        &[("GPUMEM_FREE", "deferred"), ("GPUMEM_STACKS", "0")],
        &[("GPUMEM_FREED_IN_GRAPH", "1"), ("GPUMEM_STRANDED", "press")],
    ];
    for mode in modes {
        for kib in [100, 1200] {
            let program = client("no_memory").arg(kib.to_string()).env("GPUMEM_LEDGER_MAX", "4MiB").envs(mode);
            runs_on(&program, &format!("{mode:?}, {kib} KiB"));
        }
    }
}

/// Eight threads meet the limit at one time, each with something in hand.
#[test]
fn no_more_addresses_for_many_threads() {
    let ended = [600, 1500].map(|kib| {
        let program = client("no_memory").args(["threads", &kib.to_string()]);
        runs_on(&program, &format!("{kib} KiB"))
    });
    assert!(ended.contains(&true), "the limit was not met");
}

/// vm.max_map_count is reached.
#[test]
fn no_more_mappings() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    if most.is_none_or(|most: u64| most > 1 << 20) {
        let why = format_args!("a process may have {most:?} mappings: too many to take them all");
        skipped(why, "sysctl vm.max_map_count=65530");
        return;
    }
    for left in [0, 2, 20] {
        let program = client("no_memory").args(["maps", &left.to_string()]);
        runs_on(&program, &format!("{left} mappings"));
    }
}

/// Once recording has ended, pool and cache cannot be switched on from outside: nothing would be recorded, and there is no
/// memory.
#[test]
fn what_memory_closed_stays_closed() {
    let mut running = client("no_memory").args(["wait", "320"]).env("GPUMEM_LEDGER_MAX", "4MiB").waits().start(true);
    running.says("waits");
    let state = || running.ledger().snapshot.header.state;
    assert_eq!(state(), State::Stopped as u32, "the limit was not met");
    let pid = running.pid().to_string();
    for change in ["POOL=1", "GRAPH_CACHE=8", "GRAPH_CACHE=default"] {
        let refused = running.refused(&["set", &pid, change]);
        assert!(refused.contains("recording has ended"), "{change}: {refused}");
    }
    // Stepping aside is no opening.
    running.gpumem(&["off", &pid]);
    running.tell("again");
    let ran = running.finish().ok();
    assert_eq!(ran.ours().len(), 1, "{:?}", ran.ours());
}

/// System calls that fail in the shim do not change errno.
#[test]
fn a_refusal_leaves_errno_alone() {
    let native = client("errno").native().ok();
    let functions = ["mmap", "munmap", "mprotect", "madvise", "open", "malloc", "socket", "getrandom", "*"];
    let some = (1..=12).flat_map(|nth| [format!("mmap:{nth}"), format!("*:{}", 5 * nth)]);
    for what in functions.iter().map(|function| format!("{function}:1-")).chain(some) {
        let ran = client("errno").denied(&what).preloaded();
        assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}: {}", ran.err);
    }
}

/// Any system call of the shim fails while a thread with little stack makes its first call of a kind.
#[test]
fn a_refusal_takes_no_more_stack() {
    for (what, refusals) in [("memory", 12), ("graphs", 60)] {
        let native = client("small_stacks").args(["64", what]).native().ok();
        for nth in 1..=refusals {
            let ran = client("small_stacks").args(["64", what]).denied(format!("mmap:{nth}")).preloaded();
            assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}, mmap:{nth}: {}", ran.err);
        }
    }
}

/// A shim that cannot begin leaves the program what it would have without it.
#[test]
fn what_cannot_begin_gives_back_what_it_took() {
    // Private memory, bytes; open files; whether something is recorded.
    let taken = |program: Program| {
        let running = program.waits().start(true);
        running.says("held");
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("its memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        let count = |dir: &Path| std::fs::read_dir(dir).map_or(0, Iterator::count);
        (kib << 10, count(Path::new(&format!("/proc/{}/fd", running.pid()))), count(&running.dir) > 0)
    };
    let (without, files, _) = taken(client("held").env("GPUMEM_DISABLE", "1"));
    let mut met = 0;
    for nth in 1..=30 {
        let (bytes, open, recorded) = taken(client("held").denied(format!("mmap:{nth}")));
        if !recorded {
            met += 1;
            let more = bytes.saturating_sub(without);
            assert!(more < 2 << 20, "mmap:{nth}: {more} bytes more than without the shim");
            assert_eq!(open, files, "mmap:{nth}: open files");
        }
    }
    assert!(met > 10, "it began but {met} times");
}
