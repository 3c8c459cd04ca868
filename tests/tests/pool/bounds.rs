//! Savings and costs of the pool: driver calls, bytes that stay idle, and the time when they go back.

use gpumem_tests::harness::run::wait_for;
use gpumem_tests::harness::{Program, Ran, client, program};
use gpumem_wire::counters;

const MIB: u64 = 1 << 20;
/// Milliseconds after which all memory that is to go back has gone: the pool looks once a second, and a thread's cache
/// is taken in when it was not used for a second.
const PATIENCE: &str = "6000";

/// The number behind these words on stderr.
#[track_caller]
fn number(ran: &Ran, words: &str) -> u64 {
    let found = ran.err.lines().find_map(|line| line.split_once(words));
    let (_, rest) = found.unwrap_or_else(|| panic!("{words:?} in {}", ran.err));
    let text: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    text.parse().unwrap_or_else(|_| panic!("{words:?} in {}", ran.err))
}

fn with(program: Program, setting: &[(&str, &str)]) -> Ran {
    let set = program.envs(setting);
    let ran = set.preloaded().ok();
    assert_eq!(ran.violations(), [""; 0], "{setting:?}");
    ran.ledger().sound().complete().balanced();
    ran
}

/// A thousand pairs of four sizes with nothing given to the device in between ask the driver nothing.
#[test]
fn pairs_with_nothing_in_between_are_no_driver_calls() {
    for setting in [&[][..], &[("GPUMEM_FREE", "deferred")]] {
        let ran = with(program("pool_order").arg("idle"), setting);
        let [took, calls, allocs, frees] = ["took", "calls", "allocs", "frees"].map(|what| number(&ran, what));
        assert_eq!((allocs, frees), (0, 0), "{setting:?}");
        // The control thread has some questions, too.
        assert!(calls <= 8 + took / 20, "{calls} driver calls in 1000 pairs in {took} ms, {setting:?}");
        let ledger = ran.ledger();
        assert!(ledger.counter(counters::POOL_HITS) >= 1000, "{setting:?}");
    }
}

/// The driver is asked for the memory and for nothing else, and what it has given is still known.
#[test]
fn first_allocations_of_a_size_ask_for_memory_alone() {
    for setting in [&[][..], &[("GPUMEM_POOL", "0")], &[("GPUMEM_STACKS", "0")]] {
        let ran = with(program("pool_order").arg("sizes"), setting);
        let [beside, asked, took, used] = ["beside", "asked", "took", "used"].map(|what| number(&ran, what));
        // Without the pool each call asks for its context, which is no question to the device.
        let beside = if setting == [("GPUMEM_POOL", "0")] { beside - asked } else { beside };
        // The device is asked four times a second how much is used. The control thread has some questions, too.
        assert!(beside <= 12 + took / 20, "{beside} calls beside 150 allocations in {took} ms, {setting:?}");
        let known = ran.ledger().snapshot.contexts[&1].used_bytes;
        assert!(known.abs_diff(used) <= 2 * MIB, "{used} bytes are used, and {known} known, {setting:?}");
    }
}

/// Later threads get the blocks that ended threads freed, and all of these blocks go back.
#[test]
fn blocks_of_ended_threads_are_used_and_given_back() {
    let ran = with(program("pool_threads").args(["ends", PATIENCE]), &[("GPUMEM_POOL_DECAY", "50ms")]);
    assert!(number(&ran, "still used") <= 2 * MIB, "{}", ran.err);
    // The pool's own thread could be looking through what an ended thread left at the very moment.
    let alone = [("GPUMEM_POOL_DECAY", "0"), ("GPUMEM_CONTROL", "0")];
    let ran = with(program("pool_threads").arg("ends"), &alone);
    assert_eq!(number(&ran, "real allocations"), 0, "{}", ran.err);
}

/// Blocks that a thread does not use go back while it uses the rest. Each thread is listed.
#[test]
fn threads_that_go_on_give_up_what_they_do_not_use() {
    let ran = with(program("pool_threads").args(["keeps", PATIENCE]), &[("GPUMEM_POOL_DECAY", "50ms")]);
    assert!(number(&ran, "used at first") >= 32 * MIB, "{}", ran.err);
    assert!(number(&ran, "still used") <= 4 * MIB, "{}", ran.err);
    let snapshot = ran.ledger().snapshot;
    let keepers = snapshot.threads.iter().filter(|thread| snapshot.text(thread.name) == "keeper");
    assert_eq!(keepers.count(), 20);
}

/// A server that makes a thread for each request: those that came last have their names.
#[test]
fn places_of_ended_threads_are_used_again() {
    let ran = with(program("pool_threads").arg("names"), &[("GPUMEM_LEDGER_MAX", "1MiB")]);
    let snapshot = ran.ledger().snapshot;
    let names: Vec<_> = snapshot.threads.iter().map(|thread| snapshot.text(thread.name)).collect();
    assert!(names.len() < 600, "the ledger holds them all: {}", names.len());
    assert!(names.iter().any(|name| name == "the last"), "{names:?}");
}

/// Once the device is idle, all that is idle goes back; beside work, too (`pool_waits.rs`).
#[test]
fn idle_blocks_go_back_when_the_device_is_idle() {
    let base = number(&program("pool_order").arg("busy").native().ok(), "used at the end");
    for setting in [&[("GPUMEM_POOL_DECAY", "10ms")][..], &[("GPUMEM_POOL_DECAY", "50ms"), ("GPUMEM_FREE", "deferred")]]
    {
        let most = base + 2 * MIB;
        let ran = with(program("pool_order").args(["busy", PATIENCE]).env("USED_MOST", most.to_string()), setting);
        let used = number(&ran, "used at the end");
        assert!(used <= most, "{used} bytes used, natively {base}, {setting:?}");
        assert!(ran.ledger().counter(counters::POOL_RELEASED) >= 16, "{setting:?}");
    }
}

/// A kernel that runs on and on is never waited for.
#[test]
fn nothing_goes_back_under_a_kernel() {
    let ran = with(program("pool_order").arg("busy"), &[("GPUMEM_POOL_DECAY", "1h")]);
    assert_eq!(number(&ran, "frees while busy"), 0);
    let kept = number(&ran, "used at the end");
    assert!(kept >= 128 * MIB, "{kept} bytes are kept for an hour");
}

/// GPUMEM_POOL_MAX bounds what is idle; unset, a quarter of the device does.
#[test]
fn idle_bytes_stay_within_the_bound() {
    let base = number(&program("pool_order").arg("busy").native().ok(), "used at the end");
    for (name, value, bound) in
        [("GPUMEM_POOL_MAX", "32MiB", 32), ("GPUMEM_POOL_MAX", "0", 0), ("SIM_DEVICE_MEM", "256M", 64)]
    {
        let most = base + (bound + 4) * MIB;
        let busy = program("pool_order").args(["busy", PATIENCE]).env("USED_MOST", most.to_string());
        let ran = with(busy, &[(name, value), ("GPUMEM_POOL_DECAY", "0")]);
        let used = number(&ran, "used at the end");
        assert!(used <= most, "{name}={value}: {used} bytes used, natively {base}");
    }
}

/// The bound is the device's, however many contexts keep something there.
#[test]
fn contexts_of_a_device_share_its_bound() {
    for (name, value, bound) in
        [("GPUMEM_POOL_MAX", "32MiB", 32), ("GPUMEM_POOL_MAX", "0", 0), ("SIM_DEVICE_MEM", "256M", 64)]
    {
        let native = program("pool_contexts").arg("bound").env(name, value).native().ok();
        let base = number(&native, "used at the end");
        let most = base + (bound + 4) * MIB;
        let both = program("pool_contexts").args(["bound", PATIENCE]).env("USED_MOST", most.to_string());
        let ran = with(both, &[(name, value), ("GPUMEM_POOL_DECAY", "0")]);
        let used = number(&ran, "used at the end");
        assert!(used <= most, "{name}={value}: {used} bytes used, natively {base}");
        // Each is counted, by whichever way it goes.
        let counter = |of| ran.ledger().counter(of);
        let [kept, released] = [counters::POOL_KEPT, counters::POOL_RELEASED].map(counter);
        assert!(released > 0 && released <= kept, "{name}={value}: {released} given back of {kept}");
        // Not more than has to go back.
        assert!(used + 16 * MIB >= base + bound * MIB, "{name}={value}: {used} bytes used, natively {base}");
    }
}

/// A free waits for the work of its own context alone: blocks go back while another context works.
#[test]
fn idle_blocks_go_back_while_another_context_works() {
    let base = number(&program("pool_contexts").arg("idle").native().ok(), "used at the end");
    for free in ["strict", "deferred"] {
        let most = base + 2 * MIB;
        let both = program("pool_contexts").args(["idle", PATIENCE]).env("USED_MOST", most.to_string());
        let ran = with(both, &[("GPUMEM_POOL_DECAY", "50ms"), ("GPUMEM_FREE", free)]);
        let used = number(&ran, "used at the end");
        assert!(used <= most, "{free}: {used} bytes used, natively {base}");
    }
}

/// A request that would fail even if all idle memory went back is refused at once: giving back waits for work.
#[test]
fn a_request_that_cannot_fit_waits_for_nothing() {
    program("pool_contexts").arg("much").native().ok();
    for free in ["strict", "deferred"] {
        let ran = with(program("pool_contexts").arg("much"), &[("GPUMEM_FREE", free), ("GPUMEM_POOL_DECAY", "0")]);
        let ledger = ran.ledger();
        assert_eq!(ledger.counter(counters::POOL_RELEASED), 0, "{free}: nothing went back for it");
    }
}

/// GPUMEM_POOL=0 leaves every call to the driver.
#[test]
fn switched_off_it_is_off() {
    let ran = with(program("pool_order").arg("idle"), &[("GPUMEM_POOL", "0")]);
    assert_eq!(["allocs", "frees"].map(|what| number(&ran, what)), [1000, 1000]);
    let ledger = ran.ledger();
    assert_eq!([counters::POOL_HITS, counters::POOL_KEPT].map(|of| ledger.counter(of)), [0, 0]);
}

/// A device whose memory is the machine's says so. What is kept there is kept from every program: a sixteenth of it is
/// the most, in place of a quarter.
#[test]
fn less_is_kept_of_a_machines_own_memory() {
    let kept = |setting: &[(&str, &str)]| {
        let mut running = client("moods").env("SIM_DEVICE_MEM", "1G").envs(setting).waits().start(true);
        running.says("serving");
        // More than what either may keep is live, and freed.
        running.tell("near");
        running.tell("rest");
        // What is idle is told once a second.
        let rested = || running.ledger().snapshot.contexts[&1].live_bytes < 16 * MIB;
        wait_for("a rest", rested);
        let beat = || running.ledger().snapshot.header.heartbeat_ns;
        for _ in 0..2 {
            let before = beat();
            wait_for("a look", || beat() > before);
        }
        let ran = running.finish().ok();
        let device = ran.ledger().gpumem("stats", &[])["devices"][0].clone();
        let context = ran.ledger().snapshot.contexts[&1];
        assert!(context.peak_bytes >= 400 * MIB, "{}", context.peak_bytes);
        (device["integrated"] == true, context.idle_peak_bytes)
    };
    let (integrated, most) = kept(&[]);
    assert!(!integrated && most > 128 * MIB, "{most}");
    let (integrated, most) = kept(&[("SIM_INTEGRATED", "1")]);
    assert!(integrated && (32 * MIB..=80 * MIB).contains(&most), "{most}");
    // What the user says holds there, too.
    let (_, most) = kept(&[("SIM_INTEGRATED", "1"), ("GPUMEM_POOL_MAX", "256MiB")]);
    assert!(most > 128 * MIB, "{most}");
}
