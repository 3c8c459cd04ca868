//! GPUMEM_POOL changed while a process runs: the pool steps aside, and serves again.

use gpumem_tests::harness::run::Running;
use gpumem_tests::harness::{artifacts, program};

const MIB: u64 = 1 << 20;

/// Sends the program a line. The answer is its real allocations, real frees and bytes used.
fn tell(running: &mut Running, line: &str) -> [u64; 3] {
    let before = running.stdout().lines().count();
    running.tell(line);
    gpumem_tests::harness::run::wait_for("an answer", || {
        let out = running.stdout();
        out.ends_with('\n') && out.lines().count() > before
    });
    let out = running.stdout();
    let numbers: Vec<u64> = out.lines().last().unwrap().split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{out}"))
}

fn started(free: &str) -> Running {
    let running = program("pool_aside").env("GPUMEM_FREE", free).env("GPUMEM_POOL_DECAY", "1h").waits().start(true);
    running.says("ready");
    running
}

#[test]
fn the_pool_steps_aside_and_serves_again() {
    for free in ["strict", "deferred"] {
        let mut running = started(free);
        let pid = running.pid().to_string();
        // The pool's first look at what the thread keeps may be in the way of the first.
        tell(&mut running, "pair");
        assert_eq!(tell(&mut running, "pair")[..2], [0, 0], "{free}: what was freed serves it");
        let [allocs, _, used] = tell(&mut running, "keep");
        assert_eq!(allocs, 1);
        running.gpumem(&["set", &pid, "POOL=0"]);
        assert_eq!(running.gpumem(&["stats", &pid])["pool"]["state"], "off");
        // Live memory stays, idle blocks go back to the driver, and new allocations are the driver's own.
        let [allocs, frees, now] = tell(&mut running, "pair");
        assert_eq!((allocs, frees), (1, 1), "{free}");
        assert!(now + 8 * MIB <= used, "{free}: {now} bytes used, {used} before");
        let [_, frees, now] = tell(&mut running, "drop");
        assert_eq!(frees, 1, "{free}: a block of the pool's is freed");
        assert!(now + 24 * MIB <= used, "{free}: {now} bytes used, {used} before");
        running.gpumem(&["set", &pid, "POOL=1"]);
        let [first, second] = [0, 1].map(|_| tell(&mut running, "pair"));
        assert_eq!((first[0], &second[..2]), (1, &[0, 0][..]), "{free}: it serves again");
        running.tell("end");
        let ran = running.finish().ok();
        assert_eq!(ran.violations(), [""; 0], "{free}");
        ran.ledger().sound().complete().balanced();
    }
}

/// Idle blocks go back while the device works, whichever command asks for it. Nothing waits for that work.
#[test]
fn the_pool_steps_aside_beside_work() {
    for command in [&["set", "POOL=0"][..], &["off"], &["trim"]] {
        let mut running = started("strict");
        let pid = running.pid().to_string();
        let used = tell(&mut running, "work")[2];
        let said = running.gpumem(&[&[command[0], &pid], &command[1..]].concat());
        let now = tell(&mut running, "nothing")[2];
        assert!(now + 8 * MIB <= used, "{command:?}: {now} bytes used, {used} before: {said}");
        assert_eq!(tell(&mut running, "works")[0], 600, "{command:?}: the work goes on");
        tell(&mut running, "rest");
        running.tell("end");
        let ran = running.finish().ok();
        assert_eq!(ran.violations(), [""; 0], "{command:?}");
        ran.ledger().sound().complete().balanced();
    }
}

/// Beside work a strict free waits for the work, and a deferred one does not.
#[test]
fn the_way_of_a_free_changes_while_it_runs() {
    let mut running = started("strict");
    let pid = running.pid().to_string();
    tell(&mut running, "work");
    running.gpumem(&["set", &pid, "FREE=deferred"]);
    // The program would not answer if the free waited, since only `rest` ends the work.
    for _ in 0..3 {
        tell(&mut running, "pair");
    }
    running.gpumem(&["set", &pid, "FREE=strict"]);
    tell(&mut running, "rest");
    // Blocks that waited for their event serve again.
    tell(&mut running, "pair");
    assert_eq!(tell(&mut running, "pair")[..2], [0, 0]);
    running.tell("end");
    let ran = running.finish().ok();
    // Only the three frees that did not wait.
    let violations = ran.violations();
    assert!(
        violations.len() == 3 && violations.iter().all(|one| one.contains("free_without_barrier")),
        "{violations:?}"
    );
    ran.ledger().sound().complete().balanced();
}

/// A pool that was off at the start cannot be switched on, since nothing was prepared for it.
#[test]
fn a_pool_that_was_off_at_the_start_stays_off() {
    let running = program("pool_aside").env("GPUMEM_POOL", "0").env("GPUMEM_LIMIT", "1GiB").waits().start(true);
    running.says("ready");
    let refused = running.refused(&["set", &running.pid().to_string(), "POOL=1"]);
    assert!(refused.contains("GPUMEM_POOL was 0 when the process started"), "{refused}");
    running.finish().ok();
}

/// PyTorch's allocator keeps what the program frees, so the pool keeps its blocks for a shorter time, unless the user chose one.
#[test]
fn idle_memory_goes_back_sooner_beside_pytorchs_allocator() {
    let folder = tempfile::tempdir().expect("a folder");
    let allocator = folder.path().join("libc10_cuda.so");
    let built =
        std::process::Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&allocator).status();
    assert!(built.expect("cc").success());
    for (chosen, expected) in [(None, 500_000_000_u64), (Some("10s"), 10_000_000_000)] {
        let mut started = program("pool_aside").waits();
        if let Some(chosen) = chosen {
            started = started.env("GPUMEM_POOL_DECAY", chosen);
        }
        let both = format!("{}:{}", artifacts().shim.display(), allocator.display());
        let mut running = started.env("LD_PRELOAD", both).start(true);
        running.says("ready");
        let pid = running.pid().to_string();
        tell(&mut running, "pair");
        let decay = |running: &mut Running| running.gpumem(&["stats", &pid])["pool"]["decay_ns"].as_u64();
        match chosen {
            None => gpumem_tests::harness::run::wait_for("a shorter decay", || decay(&mut running) == Some(expected)),
            Some(_) => {
                std::thread::sleep(std::time::Duration::from_millis(2500));
                assert_eq!(decay(&mut running), Some(expected), "the user's own choice stays");
            }
        }
        running.tell("end");
        running.finish().ok().ledger().sound().complete().balanced();
    }
}
