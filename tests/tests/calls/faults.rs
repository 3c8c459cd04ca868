//! Every kind of driver call made to fail (SIM_FAULT): the program sees the same codes and the same
//! out-parameters as natively, and nothing is recorded that is not there.

use gpumem_tests::harness::{Ran, client, program};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind};

/// Calls that are made to fail, and their errors: out of memory, a wrong value, a code that no driver has, and a few
/// that mean something to the function.
const FAULTS: &[&str] = &[
    "cuInit:1=100",
    "cuDevicePrimaryCtxRetain:1=2",
    "cuCtxCreate_v2:1=2",
    "cuCtxDestroy_v2:1=201",
    "cuStreamCreate:1=2",
    "cuStreamDestroy_v2:1=400",
    "cuMemAlloc_v2:1=2",
    "cuMemAlloc_v2:2=2",
    "cuMemAlloc_v2:2=4242",
    "cuMemAllocPitch_v2:1=2",
    "cuMemAllocManaged:1=801",
    "cuMemFree_v2:1=1",
    "cuMemFree_v2:1=700",
    "cuMemFree_v2:2=999",
    "cuMemHostAlloc:1=2",
    "cuMemAllocHost_v2:1=2",
    "cuMemFreeHost:1=1",
    "cuMemHostRegister_v2:1=712",
    "cuMemHostUnregister:1=713",
    "cuMemAllocAsync:1=2",
    "cuMemAllocFromPoolAsync:1=2",
    "cuMemFreeAsync:1=1",
    "cuMemAddressReserve:1=2",
    "cuMemCreate:1=2",
    "cuMemMap:1=1",
    "cuMemUnmap:1=1",
    "cuMemRelease:1=1",
    "cuMemAddressFree:1=1",
    "cuArrayCreate_v2:1=2",
    "cuArrayDestroy:1=400",
    "cuGraphCreate:1=2",
    "cuGraphClone:1=2",
    "cuGraphDestroy:1=1",
    "cuGraphInstantiateWithFlags:1=2",
    "cuGraphExecUpdate_v2:1=910",
    "cuGraphExecUpdate_v2:1=999",
    "cuGraphLaunch:1=2",
    "cuGraphExecDestroy:1=1",
    "cuStreamBeginCapture_v2:1=401",
    "cuMemAlloc_v2:1=2,cuMemAllocManaged:1=2,cuMemHostAlloc:1=2,cuMemCreate:1=2,cuGraphCreate:1=2",
];

/// Whichever call fails, the answers are native's and the counts the program's. This is tested without the graph cache
/// and the pool, which answer for the driver, and try again: their own calls fail in graphs/faults.rs and
/// pool/faults.rs.
#[test]
fn every_failing_call_answers_as_native() {
    for fault in FAULTS {
        let walk = client("walk").env("SIM_FAULT", *fault);
        let walk = walk.env("GPUMEM_GRAPH_CACHE", "0").env("GPUMEM_POOL", "0");
        // What is said on stderr when memory runs out is in oom_report.rs.
        let walk = walk.env("GPUMEM_OOM_REPORT", "0");
        let (native, preloaded) = (walk.native().ok(), walk.preloaded().ok());
        assert_eq!(preloaded.out, native.out, "{fault}");
        assert_eq!(preloaded.violations(), native.violations(), "{fault}");
        assert_eq!(preloaded.ours(), [""; 0], "{fault}");
        let code = fault.split_once('=').map_or("", |(_, rest)| rest.split(',').next().unwrap_or_default());
        assert!(native.out.contains(&format!("= {code}\n")), "{fault} did not happen:\n{}", native.out);
        println!("{fault}");
        preloaded.ledger().agrees_with(&preloaded.json());
    }
}

/// Without a fault nothing is left, and out-parameters are what native makes them.
#[test]
fn a_walk_without_faults_balances() {
    let walk = client("walk");
    let (native, preloaded) = (walk.native().ok(), walk.preloaded().ok());
    assert_eq!(preloaded.out, native.out);
    preloaded.ledger().agrees_with(&preloaded.json()).complete().balanced();
}

fn failures(ran: &Ran, kind: EventKind) -> Vec<(u64, i32)> {
    let ledger = ran.ledger();
    let of_kind = ledger.snapshot.events.iter().filter(|event| event.kind == kind as u8);
    of_kind.map(|event| (event.a, event.code)).collect()
}

/// Failures are in the ring of events and in the counters: how much was asked for, and the code.
#[test]
fn failures_are_told() {
    // The pool asks for a block, and then for no more than the program asked for.
    let ran = client("walk").env("SIM_FAULT", "cuMemAlloc_v2:2=2,cuMemAlloc_v2:3=2").preloaded().ok();
    assert_eq!(failures(&ran, EventKind::AllocFailed), [(70000, 2)]);
    assert_eq!(ran.ledger().counter(counters::alloc_failures(AllocKind::Device)), 1);
    let events = ran.ledger().gpumem("events", &["--problems"]);
    // That it was refused, and what the pool knows of it.
    assert_eq!(events["events_total"], 2, "{events}");

    // The second call is the cache's, after it has given back what it could.
    let fault = "cuGraphInstantiateWithFlags:1=2,cuGraphInstantiateWithFlags:2=2,cuGraphInstantiateWithFlags:3=2";
    let ran = client("walk").env("SIM_FAULT", fault).preloaded().ok();
    let instantiate: Vec<i32> = failures(&ran, EventKind::InstantiateFailed).iter().map(|event| event.1).collect();
    assert_eq!(instantiate, [2]);
    assert_eq!(ran.ledger().counter(counters::INSTANTIATE_FAILURES), 1);

    let ran = client("walk").env("SIM_FAULT", "cuMemFree_v2:1=700").preloaded().ok();
    assert_eq!(ran.ledger().counter(counters::FREE_FAILURES), 1);
}

/// A first initialisation that failed leaves nothing, and can be retried.
#[test]
fn a_failed_first_init_can_be_retried() {
    let retry = client("retry").env("SIM_FAULT", "cuInit:1=100,cuInit:2=3,cuInit:3=999");
    let (native, preloaded) = (retry.native().ok(), retry.preloaded().ok());
    assert_eq!((native.json()["tries"].as_u64(), &native.err), (Some(3), &preloaded.err));
    assert_eq!(preloaded.json(), native.json(), "and no file before it worked");
    preloaded.ledger().agrees_with(&preloaded.json()).complete().balanced();
}

/// Likewise a first allocation.
#[test]
fn a_failed_first_allocation_can_be_retried() {
    // Each of the program's tries is two of the pool's: a block, and no more than the program asked for.
    let fault = "cuMemAlloc_v2:1=2,cuMemAlloc_v2:2=2,cuMemAlloc_v2:3=2,cuMemAlloc_v2:4=2";
    let ran = client("retry").env("SIM_FAULT", fault).preloaded().ok();
    assert_eq!(ran.json()["tries"], 2);
    ran.ledger().agrees_with(&ran.json()).complete().balanced();
    assert_eq!(ran.ledger().counter(counters::alloc_failures(AllocKind::Device)), 2);
}

/// Without a device every call fails as natively, and nothing is left behind.
#[test]
fn no_device_leaves_nothing() {
    for name in ["basic", "driver", "graphs", "threads"] {
        let none = program(name).env("SIM_DEVICES", "0");
        let (native, preloaded) = (none.native(), none.preloaded());
        assert_ne!(native.code, 0);
        assert_eq!((preloaded.code, &preloaded.out, &preloaded.err), (native.code, &native.out, &native.err));
        assert!(!preloaded.dir.exists(), "{name} left something");
    }
}

/// Running out of memory in the middle: the code is native's, what was made before stays listed.
#[test]
fn out_of_memory_in_the_middle() {
    let many = client("many").args(["100", "1048576"]).env("SIM_DEVICE_MEM", "64M");
    let (native, preloaded) = (many.native(), many.preloaded());
    assert_eq!((native.code, preloaded.code), (2, 2));
    let ledger = preloaded.ledger();
    ledger.sound().complete();
    assert_eq!(failures(&preloaded, EventKind::AllocFailed), [(1 << 20, 2)]);
    let fitted = ledger.snapshot.allocs.len();
    assert!((1..=64).contains(&fitted), "{fitted} blocks of 1 MiB in 64 MiB");
    assert!(ledger.snapshot.allocs.iter().all(|alloc| alloc.bytes == 1 << 20));
}
