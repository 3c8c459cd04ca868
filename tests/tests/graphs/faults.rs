//! Each driver call that the graph cache makes itself fails in turn (SIM_FAULT). The client goes on when a
//! call of its own is refused, and judges what its launches leave: whatever fails inside, the results are
//! right, the program sees no error that its own call could not give, and nothing is left behind.

use gpumem_tests::harness::{Program, Ran, client};
use gpumem_wire::counters::*;
use std::collections::HashMap;

/// Driver calls of the cache. Those that only a thread in another context needs are among them; the per-thread twins
/// are not.
const CALLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncGetModule",
    "cuFuncGetParamInfo",
    "cuGraphAddDependencies_v2",
    "cuGraphAddEmptyNode",
    "cuGraphAddHostNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphClone",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecUpdate_v2",
    "cuGraphGetNodes",
    "cuGraphHostNodeGetParams",
    "cuGraphInstantiateWithFlags",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphLaunch",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetType",
    "cuGraphNodeSetEnabled",
    "cuPointerGetAttributes",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

const LIVE: &[&str] = &["live_execs", "live_graphs", "live_events"];
const OUT_OF_MEMORY: i32 = 2;
const CAP: u64 = 2;

fn refused() -> Program {
    client("graph_refused").args(CALLS.iter().chain(LIVE).copied())
}

fn cached(fold: &str) -> Program {
    refused().env("GPUMEM_GRAPH_CACHE", CAP.to_string()).env("GPUMEM_GRAPH_IDLE", "0").env("GPUMEM_GRAPH_FOLD", fold)
}

/// The driver's own counts at the end.
fn numbers(ran: &Ran) -> HashMap<String, u64> {
    let pair = |line: &str| line.split_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
    ran.err.lines().filter_map(pair).collect()
}

/// Calls of the program that were refused, with their codes.
fn refusals(ran: &Ran) -> Vec<(String, i32)> {
    let lines = ran.out.lines().filter_map(|line| line.strip_prefix("refused "));
    let parts = lines.filter_map(|line| line.split_once(" = "));
    parts.map(|(call, code)| (call.to_owned(), code.parse().expect("a code"))).collect()
}

/// All is over: handles, graphs, the real execs but those that are kept for others.
#[track_caller]
fn nothing_left(ran: &Ran, what: &str) {
    assert_eq!((ran.violations(), ran.ours()), (vec![], vec![""; 0]), "{what}");
    let ledger = ran.ledger();
    ledger.sound().complete();
    let left = |made, ended| ledger.counter(made) - ledger.counter(ended);
    let handles = [(EXECS_CREATED, EXECS_DESTROYED), (HANDLES_MADE, HANDLES_ENDED), (PINNED_MADE, PINNED_ENDED)];
    assert_eq!(handles.map(|(made, ended)| left(made, ended)), [0; 3], "handles left: {what}");
    assert_eq!(left(GRAPHS_CREATED, GRAPHS_DESTROYED), 0, "graphs left: {what}");
    assert_eq!(left(SOURCE_BYTES_ADDED, SOURCE_BYTES_REMOVED), 0, "sources left: {what}");
    assert!(left(REAL_EXECS_MADE, REAL_EXECS_ENDED) <= CAP, "real execs left: {what}");
}

/// Runs it with a fault; what came of it, and what the driver says it has at the end.
#[track_caller]
fn with_fault(fold: &str, fault: &str) -> (Ran, HashMap<String, u64>) {
    let ran = cached(fold).env("SIM_FAULT", fault).preloaded();
    let what = format!("fold {fold}, {}", &fault[..fault.len().min(80)]);
    assert_eq!(ran.code, 0, "{what}\n{}{}", ran.out, ran.err);
    nothing_left(&ran, &what);
    let numbers = numbers(&ran);
    let destroys = |name: &str| u64::from(fault.starts_with(name)) * numbers[name];
    // Objects that the driver itself refuses to destroy stay. Execs may be kept, with their graph and events.
    let rules = [
        ("live_execs", CAP + destroys("cuGraphExecDestroy")),
        ("live_graphs", CAP + destroys("cuGraphDestroy")),
        ("live_events", 2 * CAP + destroys("cuEventDestroy_v2")),
    ];
    for (name, most) in rules {
        assert!(numbers[name] <= most, "{name} {}: {what}", numbers[name]);
    }
    (ran, numbers)
}

/// The first, second and fifth call of each.
fn each_call_fails_once(fold: &str) {
    let native = numbers(&refused().native().ok());
    let plain = cached(fold).preloaded().ok();
    nothing_left(&plain, "without a fault");
    assert_eq!(refusals(&plain), []);
    let ours = numbers(&plain);
    for name in CALLS {
        // Whether there is anything to wait for depends on how far the device is.
        assert!(ours[*name] > 0 || *name == "cuStreamWaitEvent", "{name} is not called, so nothing is shown of it");
        for (call, code) in [(1, 2), (2, 999), (5, 1)] {
            if ours[*name] < call {
                continue;
            }
            let fault = format!("{name}:{call}={code}");
            let (ran, _) = with_fault(fold, &fault);
            let seen = refusals(&ran);
            assert!(seen.len() <= 1, "one call failed: {fault}: {seen:?}");
            for (call, seen) in &seen {
                assert!([code, OUT_OF_MEMORY].contains(seen), "{call} gave {seen}: {fault}");
                // A call of the cache's own may fail one of the program's that needs what it was to do.
                // A folded graph has to be built for the call that clones it.
                let needs = ["cuGraphLaunch", "cuGraphExecUpdate_v2", "cuGraphClone"].contains(&call.as_str());
                assert!(native[*name] > 0 || needs, "{call} was refused: {fault}");
            }
        }
    }
}

/// The driver refuses to tell of the parameter behind a kernel's last, with the status 1. Another parameter may be refused
/// once with the same status.
#[test]
fn a_parameter_that_is_refused_once_is_not_the_end() {
    let asked = numbers(&cached("0").preloaded().ok())["cuFuncGetParamInfo"];
    for call in 1..=asked.min(16) {
        let (ran, _) = with_fault("0", &format!("cuFuncGetParamInfo:{call}=1"));
        assert_eq!(refusals(&ran), [], "call {call}");
    }
}

#[test]
fn each_call_fails_once_with_graphs_kept() {
    each_call_fails_once("0");
}

#[test]
fn each_call_fails_once_with_graphs_folded() {
    each_call_fails_once("1");
}

/// Functions that only the cache calls fail at each call. The cache does without them, and the program sees nothing.
#[test]
fn what_only_the_cache_calls_may_always_fail() {
    let native = numbers(&refused().native().ok());
    for fold in ["0", "1"] {
        for name in CALLS.iter().filter(|name| native[**name] == 0) {
            let fault: Vec<_> = (1..400).map(|call| format!("{name}:{call}=2")).collect();
            let (ran, _) = with_fault(fold, &fault.join(","));
            assert_eq!(refusals(&ran), [], "{name}, fold {fold}");
        }
    }
}

/// There is no memory, and trimming, which should give some back, fails as well.
#[test]
fn memory_that_cannot_be_given_back() {
    for relief in ["", ",cuDeviceGraphMemTrim:1=1", ",cuCtxGetDevice:1=201", ",cuGraphExecDestroy:2=1"] {
        for calls in [&[3][..], &[3, 4], &[3, 4, 5, 6, 7, 8]] {
            let fault: Vec<_> = calls.iter().map(|call| format!("cuGraphInstantiateWithFlags:{call}=2")).collect();
            let (ran, _) = with_fault("1", &(fault.join(",") + relief));
            // As natively: instantiating fails where there is no memory.
            let codes: Vec<_> = refusals(&ran).into_iter().filter(|refused| refused.1 != OUT_OF_MEMORY).collect();
            assert_eq!(codes, [], "{calls:?}{relief}");
            assert!(ran.ledger().counter(OOM_RETRIES) > 0, "{calls:?}{relief}");
        }
    }
}

/// Failing calls of the program that the cache answers leave right counts as well.
#[test]
fn failing_graph_calls_are_counted() {
    const FAULTS: &[&str] = &[
        "cuGraphCreate:1=2",
        "cuGraphClone:1=2",
        "cuGraphDestroy:1=1",
        "cuGraphInstantiateWithFlags:1=2",
        "cuGraphInstantiateWithFlags:1=999",
        "cuGraphExecUpdate_v2:1=910",
        "cuGraphExecUpdate_v2:1=999",
        "cuGraphLaunch:1=2",
        "cuGraphLaunch:1=999",
        "cuGraphExecDestroy:1=1",
        "cuStreamBeginCapture_v2:1=401",
    ];
    for fault in FAULTS {
        let walk = client("walk").env("SIM_FAULT", *fault);
        let (native, ours) = (walk.native().ok(), walk.preloaded().ok());
        assert_eq!(ours.violations(), native.violations(), "{fault}");
        assert_eq!(ours.ours(), [""; 0], "{fault}");
        println!("{fault}");
        ours.ledger().agrees_with(&ours.json()).complete();
        // Only calls about graphs may end better than natively.
        let others = |ran: &Ran| -> Vec<String> {
            let other = |line: &&str| !line.contains("cuGraph") && !line.starts_with('{');
            ran.out.lines().filter(other).map(str::to_owned).collect()
        };
        assert_eq!(others(&ours), others(&native), "{fault}");
    }
}
