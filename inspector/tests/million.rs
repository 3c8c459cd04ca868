//! A snapshot of a million live allocations is read, grouped by site and shown in 200 ms. Times mean something in
//! a release build only: `cargo test --release -p gpumem-inspector --test million -- --ignored --nocapture`.

mod common;
use common::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot, StackSlot};
use gpumem_wire::place::ProcessId;
use std::time::{Duration, Instant};

/// As many stacks as a large program has, each 32 deep.
const STACKS: u32 = 5000;

fn large(id: ProcessId, allocs: u64) -> gpumem_inspector::compose::Composer {
    let mut composer = begin(id);
    for library in 0..200 {
        let start = CUDA + library * 0x100_0000;
        module(&mut composer, &format!("/usr/lib/lib{library}.so"), start, 0x100_0000, start);
    }
    for stack in 0..STACKS {
        let frame = |depth: u64| CUDA + (u64::from(stack) * 7919 + depth * 104_729) % (200 * 0x100_0000);
        let frames: Vec<u64> = (0..32).map(frame).collect();
        composer.stack(
            stack as usize,
            StackSlot { allocs: 200, hash: u64::from(stack), ..Default::default() },
            &frames,
        );
    }
    composer.slots((0..allocs).map(|serial| AllocSlot {
        stack: (serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % STACKS + 1,
        addr: 0x7000_0000_0000 + serial * 4096,
        bytes: 4096 + serial % 64 * 512,
        time_ns: serial,
        serial,
        kind: AllocKind::Device as u8,
        ..Default::default()
    }));
    composer
}

#[test]
fn ten_thousand_add_up() {
    let dir = dir();
    let path = dir.put(gone(), large(gone(), 10_000));
    let sites = dir.json(&["allocs", path.to_str().unwrap()]);
    let sum =
        |field: &str| sites["rows"].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("live"), sites["live"].as_u64().unwrap()), (10_000, 10_000));
    assert_eq!(sum("bytes"), (0..10_000_u64).map(|serial| 4096 + serial % 64 * 512).sum::<u64>());
}

#[test]
#[ignore = "measures time: for a release build on a quiet machine"]
fn a_million_take_at_most_200_ms() {
    let dir = dir();
    let path = dir.put(gone(), large(gone(), 1_000_000));
    let path = path.to_str().unwrap();
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        dir.ok(&["allocs", path]);
        best = best.min(start.elapsed());
    }
    println!("gpumem allocs of 1000000 allocations: {best:?}");
    for args in [&["stats", path][..], &["graphs", path], &["allocs", path, "--all"], &["ps"]] {
        let start = Instant::now();
        dir.ok(args);
        println!("gpumem {}: {:?}", args[0], start.elapsed());
    }
    assert!(best <= Duration::from_millis(200), "{best:?}");
}

/// How long a process has computed so far.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    // SAFETY: sysconf takes a number and has no effect.
    let each = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Duration::from_millis(ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 1000 / each).sum())
}

#[test]
#[ignore = "measures time: for a release build on a quiet machine"]
fn top_of_a_million_allocations_and_ten_thousand_graphs_takes_a_small_share() {
    let (dir, sleeper) = (dir(), Sleeper::start());
    let mut ledger = large(sleeper.id(), 1_000_000);
    let graph = |serial: u64| GraphSlot {
        stack: (serial % u64::from(STACKS)) as u32 + 1,
        handle: 0x1_0000 + serial * 64,
        serial,
        nodes: 100,
        host_bytes: 10_000,
        ..Default::default()
    };
    ledger.slots((0..10_000).map(graph));
    ledger.slots((0..10_000).map(|serial| ExecSlot {
        stack: (serial % u64::from(STACKS)) as u32 + 1,
        handle: 0x9000_0000 + serial * 64,
        serial: 10_000 + serial,
        graph_serial: serial,
        host_bytes: 50_000,
        nodes_total: 100,
        ..Default::default()
    }));
    dir.put(sleeper.id(), ledger);
    let log = dir.path().join("log");
    for (tab, key) in [("overview", "1"), ("allocations", "2"), ("graphs", "3"), ("events", "5")] {
        let mut top = terminal::Running::start(&dir, &["top", &sleeper.id().pid.to_string(), "-vv"], &log);
        std::thread::sleep(Duration::from_secs(2));
        top.press(key);
        // Names are looked up at first.
        std::thread::sleep(Duration::from_secs(6));
        let (begin, used) = (Instant::now(), processor_time(top.pid()));
        std::thread::sleep(Duration::from_secs(20));
        let share = (processor_time(top.pid()) - used).as_secs_f64() / begin.elapsed().as_secs_f64();
        top.press("q");
        top.end();
        let said = std::fs::read_to_string(&log).unwrap();
        // What a look computes: what it waits for a processor is not its own.
        let looks = said.lines().filter_map(|line| line.strip_suffix(" ms of a core")?.rsplit(' ').next());
        let mut looks: Vec<u64> = looks.map(|ms| ms.parse().unwrap()).collect();
        let first = looks[0];
        looks.sort_unstable();
        let (middle, most) = (looks[looks.len() / 2], looks[looks.len() - 1]);
        println!(
            "{tab}: {} looks, the first {first} ms, median {middle} ms, longest {most} ms; {:.1} % of a core",
            looks.len(),
            share * 100.0
        );
        assert!(middle <= 200, "{looks:?}");
        assert!(share < 0.05, "{share}");
    }
}
