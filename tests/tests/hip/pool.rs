//! Mistakes that a cache of device memory can make, through HIP.

use gpumem_tests::harness::Ran;
use gpumem_tests::harness::hip::program;

fn answers(ran: &Ran) -> Vec<&str> {
    ran.out.lines().filter(|line| !line.starts_with('{')).collect()
}

/// Barriers, codes, captures and contents are native's in every setting.
#[test]
fn hip_memory_answers_as_native() {
    let late = program("hip_pool").env("SIM_LAG_US", "2000");
    let native = late.native().ok();
    for setting in [
        &[][..],
        &[("GPUMEM_FREE", "deferred")],
        &[("GPUMEM_POOL_MAX", "4MiB"), ("GPUMEM_POOL_DECAY", "1ms")],
        &[("GPUMEM_POOL_MAX", "0")],
        &[("GPUMEM_QUARANTINE", "8MiB"), ("GPUMEM_POOL_FILL", "poison")],
        &[("GPUMEM_POOL", "0")],
    ] {
        let ran = late.clone().envs(setting).preloaded().ok();
        assert_eq!(answers(&ran), answers(&native), "{setting:?}");
        assert_eq!(ran.violations(), native.violations(), "{setting:?}\n{}", ran.err);
        assert_eq!(ran.ours(), [""; 0], "{setting:?}");
        ran.ledger().sound().complete().balanced();
    }
}

const SMALL: (&str, &str) = ("SIM_DEVICE_MEM", "1G");

/// A kernel that polls host memory cannot be told from any other, and a real free waits for it. What is kept is so
/// little that programs do without it, and counts as taken.
#[test]
fn hip_memory_is_had_beside_work_that_goes_on() {
    for mode in ["beside", "parts", "info", "ends"] {
        let waits = program("waits").arg(mode).env(SMALL.0, SMALL.1);
        let native = waits.clone().native().ok();
        for setting in [&[][..], &[("GPUMEM_FREE", "deferred")], &[("GPUMEM_POOL_MAX", "1GiB")]] {
            let ran = waits.clone().envs(setting).preloaded().ok();
            assert_eq!(ran.violations(), native.violations(), "{mode} {setting:?}");
            ran.ledger().sound().complete().balanced();
        }
    }
}

/// A block stays about as long as GPUMEM_POOL_DECAY says. What is due by then, a share of it, takes no whole block along.
#[test]
fn what_was_idle_for_a_moment_stays() {
    let ran = program("waits").arg("stays").env(SMALL.0, SMALL.1).env("GPUMEM_POOL_DECAY", "1h").preloaded().ok();
    assert!(ran.err.lines().any(|line| line == "went back 0"), "{}", ran.err);
    ran.ledger().sound().complete().balanced();
}

/// Memory that the program takes later leaves less for what is kept.
#[test]
fn what_hip_keeps_shrinks_at_the_programs_own_barrier() {
    let ran = program("waits").arg("shrinks").env(SMALL.0, SMALL.1).preloaded().ok();
    let back = ran.err.lines().find_map(|line| line.strip_prefix("went back ")?.parse().ok()).unwrap_or(0);
    assert!(back >= 40 << 20, "{}", ran.err);
    ran.ledger().sound().complete().balanced();
}
