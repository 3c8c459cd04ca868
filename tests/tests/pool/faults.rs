//! Each driver call that the pool makes itself fails in turn (SIM_FAULT). The program goes on when a call of
//! its own is refused: whatever fails inside, contents are right, no memory is given out under work, the
//! program sees no more refusals than faults, and nothing is left behind.

use gpumem_tests::harness::{Program, Ran, program};
use gpumem_wire::counters::POOL_BARRIERS;
use std::collections::HashMap;

/// Driver calls of the pool, in one setting or another.
const CALLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxRecordEvent",
    "cuCtxSynchronize",
    "cuDeviceGetAttribute",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuThreadExchangeStreamCaptureMode",
];

const SETTINGS: &[&[(&str, &str)]] = &[
    &[],
    &[("GPUMEM_FREE", "deferred")],
    &[("GPUMEM_POOL_DECAY", "1ms"), ("GPUMEM_POOL_MAX", "4MiB")],
    &[("GPUMEM_FREE", "deferred"), ("GPUMEM_POOL_DECAY", "1ms"), ("GPUMEM_POOL_FILL", "poison")],
];

fn refused(setting: &[(&str, &str)]) -> Program {
    let start = program("pool_refused").args(CALLS.iter().copied());
    start.envs(setting)
}

/// A block of 8 bytes that is taken at this size, since the rounded size is refused, goes to the pool and stays sound.
#[test]
fn a_small_block_of_its_own_size_is_kept() {
    let ran = program("pool_contexts").env("SIM_FAULT", "cuMemAlloc_v2:2=2").preloaded().ok();
    assert_eq!(ran.ours(), [""; 0]);
    ran.ledger().sound().complete();
}

/// How often each was called.
fn calls(ran: &Ran) -> HashMap<String, u64> {
    let pair = |line: &str| line.split_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
    ran.err.lines().filter_map(pair).collect()
}

fn refusals(ran: &Ran) -> Vec<(String, u32)> {
    let lines = ran.out.lines().filter_map(|line| line.strip_prefix("refused "));
    let parts = lines.filter_map(|line| line.split_once(" = "));
    parts.map(|(call, code)| (call.to_owned(), code.parse().expect("a code"))).collect()
}

/// A call that both make fails the program's own, or ends it there: those are not of interest here.
fn is_the_programs(name: &str, ran: &Ran) -> bool {
    ran.code == 2 && ran.err.contains(&format!("{name}("))
}

fn each_call_fails(setting: &[(&str, &str)]) {
    let native = calls(&refused(&[]).native().ok());
    let plain = refused(setting).preloaded().ok();
    assert_eq!((refusals(&plain), plain.violations()), (vec![], vec![]), "{setting:?}");
    let ours = calls(&plain);
    let mut tried = 0;
    for name in CALLS {
        let of_ours = ours[*name].saturating_sub(native[*name]);
        // Some, spread over all there are, with a code of its own kind each.
        let last = ours[*name];
        for (call, code) in [(1, 999), (2, 2), (last / 2, 1), (last, 999)] {
            if call == 0 || call > last {
                continue;
            }
            let fault = format!("{name}:{call}={code}");
            let ran = refused(setting).env("SIM_FAULT", &fault).preloaded();
            if of_ours == 0 || is_the_programs(name, &ran) || ran.err.contains("pool.h") {
                continue;
            }
            tried += 1;
            assert_eq!(ran.code, 0, "{fault} {setting:?}\n{}{}", ran.out, ran.err);
            assert_eq!(ran.violations(), [""; 0], "{fault} {setting:?}");
            let seen = refusals(&ran);
            assert!(seen.len() <= 1, "one call failed: {fault} {setting:?}: {seen:?}");
            ran.ledger().sound().complete().balanced();
        }
    }
    println!("{tried} faults {setting:?}");
    assert!(tried > 8, "{tried} faults of the pool's own calls {setting:?}: {ours:?}");
}

#[test]
fn each_call_of_the_pool_fails_strict() {
    each_call_fails(SETTINGS[0]);
    each_call_fails(SETTINGS[2]);
}

#[test]
fn each_call_of_the_pool_fails_deferred() {
    each_call_fails(SETTINGS[1]);
    each_call_fails(SETTINGS[3]);
}

/// An event behind a context's work that cannot be had is one free that waits: those that follow have theirs again.
#[test]
fn an_event_that_fails_is_one_wait() {
    let waits = |ran: &Ran| ran.ledger().counter(POOL_BARRIERS);
    let plain = waits(&refused(SETTINGS[1]).preloaded().ok());
    for call in [2, 5] {
        let fault = format!("cuCtxRecordEvent:{call}=999");
        let ran = refused(SETTINGS[1]).env("SIM_FAULT", &fault).preloaded().ok();
        assert!(waits(&ran) <= plain + 2, "{fault}: {} waits, {plain} without", waits(&ran));
    }
}

/// No memory, for a while: what natively is one refusal is at most one.
#[test]
fn allocations_that_fail_for_a_while() {
    for setting in SETTINGS {
        for calls in [&[3][..], &[3, 4], &[5, 6, 7, 8, 9]] {
            let fault: Vec<_> = calls.iter().map(|call| format!("cuMemAlloc_v2:{call}=2")).collect();
            let ran = refused(setting).env("SIM_FAULT", fault.join(",")).preloaded().ok();
            let seen = refusals(&ran);
            assert!(seen.len() <= calls.len() && seen.iter().all(|refused| refused.1 == 2), "{fault:?}: {seen:?}");
            assert_eq!(ran.violations(), [""; 0], "{fault:?} {setting:?}");
            ran.ledger().sound().complete().balanced();
        }
    }
}
