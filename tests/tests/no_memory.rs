//! The process gets no more memory: the shim stops keeping books, says so, and the program does what it does natively.

use gpumem_tests::harness::{Program, client};
use gpumem_wire::kinds::State;

/// Ends as natively; whether recording had to end.
#[track_caller]
fn runs_on(program: &Program, what: &str) -> bool {
    let (native, ran) = (program.native().ok(), program.preloaded());
    assert_eq!((ran.code, &ran.out), (0, &native.out), "{what}: {}", ran.err);
    assert_eq!(ran.violations(), native.violations(), "{what}");
    let ours = ran.ours();
    let ended = ours.iter().any(|line| line.contains("no more memory: recording ends here"));
    let not_begun = ours.iter().any(|line| line.contains("nothing is recorded"));
    assert_eq!(ours.len(), usize::from(ended || not_begun), "{what}: {ours:?}");
    // What was recorded until then can be read, and says how it ended.
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

/// vm.max_map_count is reached.
#[test]
fn no_more_mappings() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    if most.is_none_or(|most: u64| most > 1 << 20) {
        eprintln!("a process may have {most:?} mappings: too many to take them all");
        return;
    }
    for left in [0, 2, 20] {
        let program = client("no_memory").args(["maps", &left.to_string()]);
        runs_on(&program, &format!("{left} mappings"));
    }
}

/// Once the books are closed nothing is opened again from outside: nobody would know of it, and there is no memory.
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
