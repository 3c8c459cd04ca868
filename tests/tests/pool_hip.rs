//! What a cache of device memory can get wrong, through HIP.

#[path = "hip/support.rs"]
mod support;

use gpumem_tests::harness::Ran;
use support::program;

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
