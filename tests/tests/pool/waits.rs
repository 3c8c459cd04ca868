//! Nothing waits where the driver would not: memory is asked for beside work that goes on until the program ends it.

use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters::POOL_RELEASED;

const SMALL: (&str, &str) = ("SIM_DEVICE_MEM", "1G");

fn waits(mode: &str) -> Program {
    program("pool_waits").arg(mode).env(SMALL.0, SMALL.1).env("SIM_DEVICES", "2")
}

fn as_natively(mode: &str, settings: &[&[(&str, &str)]]) {
    let native = waits(mode).native().ok();
    for setting in settings {
        let ran = waits(mode).envs(setting).preloaded().ok();
        assert_eq!(ran.violations(), native.violations(), "{setting:?}");
        ran.ledger().sound().complete().balanced();
    }
}

const BOTH: &[&[(&str, &str)]] = &[&[], &[("GPUMEM_FREE", "deferred")]];

/// A device without frees in the order of a stream, where real frees wait for work.
const NO_STREAMS: &[&[(&str, &str)]] =
    &[&[("SIM_MEMORY_POOLS", "0")], &[("SIM_MEMORY_POOLS", "0"), ("GPUMEM_FREE", "deferred")]];

/// Kept memory goes back although a kernel runs that waits for the host.
#[test]
fn memory_is_had_beside_work_that_goes_on() {
    as_natively("beside", BOTH);
}

#[test]
fn memory_in_many_pieces_is_had_beside_work_that_goes_on() {
    as_natively("parts", BOTH);
}

#[test]
fn memory_of_every_kind_is_had_beside_work_that_goes_on() {
    as_natively("kinds", BOTH);
}

/// Kept memory makes room within a limit, too.
#[test]
fn memory_is_had_within_a_limit_beside_work_that_goes_on() {
    let limit = ("GPUMEM_LIMIT", "900MiB");
    as_natively("beside", &[&[limit], &[limit, ("GPUMEM_FREE", "deferred")]]);
}

/// If nothing is freed without waiting, little is kept.
#[test]
fn memory_is_had_beside_work_where_every_free_waits() {
    for mode in ["beside", "parts", "kinds"] {
        as_natively(mode, NO_STREAMS);
    }
}

/// A thread that runs out on one device does not wait for another that runs out elsewhere.
#[test]
fn a_device_does_not_wait_for_another() {
    as_natively("devices", BOTH);
}

/// A program that captures all the time has the memory that it freed.
#[test]
fn memory_is_had_within_a_capture() {
    as_natively("captured", BOTH);
}

/// Kept memory goes back on a device that rests, and costs no memory of the host.
#[test]
fn idle_memory_goes_back_without_host_memory() {
    let flat = || program("pool_flat").args(["400", "15000"]).env("GPUMEM_POOL_DECAY", "50ms");
    let said = |ran: &Ran, what: &str| -> u64 {
        let number = ran.err.lines().find_map(|line| line.rsplit_once(what)?.1.trim().parse().ok());
        number.unwrap_or_else(|| panic!("{}", ran.err))
    };
    let (native, preloaded) = (flat().native().ok(), flat().preloaded().ok());
    assert!(said(&preloaded, "in the end") <= said(&native, "in the end") + (4 << 20), "{}", preloaded.err);
    let (host, most) = (said(&preloaded, "host"), said(&native, "host") * 102 / 100 + (4 << 20));
    assert!(host <= most, "{host} bytes, at most {most}");
}

fn used(ran: &Ran) -> u64 {
    let number = ran.err.lines().find_map(|line| line.strip_prefix("used at the end ")?.parse().ok());
    number.unwrap_or_else(|| panic!("{}", ran.err))
}

/// A free of ours that waits holds up no other device's: the first one takes far longer than the program.
#[test]
fn idle_memory_goes_back_beside_a_free_of_another_device_that_waits() {
    let most = used(&waits("stuck").native().ok()) + (204 << 20);
    let stuck = waits("stuck").arg("15000").env("USED_MOST", most.to_string()).env("GPUMEM_POOL_DECAY", "50ms");
    let ran = stuck.env("SIM_FAULT", "cuMemFree_v2:1+120000000").preloaded().ok();
    assert!(used(&ran) <= most, "{} of {most}", used(&ran));
}

/// Kept memory goes back in time, on a device that never rests.
#[test]
fn idle_memory_goes_back_beside_work_that_goes_on() {
    let most = used(&waits("decay").native().ok()) + (4 << 20);
    for free in ["strict", "deferred"] {
        let decays = waits("decay").arg("6000").env("USED_MOST", most.to_string());
        let ran = decays.env("GPUMEM_POOL_DECAY", "50ms").env("GPUMEM_FREE", free).preloaded().ok();
        assert!(used(&ran) <= most, "{free}: {}", ran.err);
        assert_eq!(ran.violations(), [""; 0], "{free}");
    }
}

/// Work may begin between the look at an idle device and the free that follows it. That free then waits, and nobody
/// waits for it.
#[test]
fn memory_is_had_beside_work_that_begins_while_blocks_go_back() {
    for free in ["strict", "deferred"] {
        // How often blocks go back depends on the machine.
        let went_back = ["100", "400", "1600"].iter().any(|rounds| {
            let begins = waits("between").arg(rounds).env("GPUMEM_POOL_DECAY", "2ms").env("GPUMEM_FREE", free);
            let ran = begins.preloaded().ok();
            let ledger = ran.ledger();
            ledger.sound().complete().balanced();
            ledger.counter(POOL_RELEASED) > 0
        });
        assert!(went_back, "{free}: nothing went back");
    }
}

/// A block's size is not what a request is refused for.
#[test]
fn the_last_bytes_are_had() {
    as_natively("small", BOTH);
}
