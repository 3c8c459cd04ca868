//! Drivers newer than the tables. A newer minor version of a known major is served; its additions are left to the driver
//! and shown. A new major is only recorded, unless the selftest has written a verdict.

use gpumem_tests::harness::ledger::gpumem;
use gpumem_tests::harness::{Program, Ran, client, command, program};
use gpumem_tests::skipped::installed;
use gpumem_wire::counters;
use serde_json::Value;

const NEWER: (&str, &str) = ("SIM_DRIVER_VERSION", "13090");

fn newer(parts: &str) -> Program {
    client("newer").arg(parts).envs(&[NEWER])
}

fn head(ran: &Ran) -> Value {
    ran.ledger().gpumem("stats", &[])["process"].clone()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|line| line.as_str().expect("a text")).collect()
}

/// Runs it both ways: the same lines, no violation, everything on at the end.
#[track_caller]
fn same(program: &Program) -> Ran {
    let (native, preloaded) = (program.native().ok(), program.preloaded().ok());
    assert_eq!(preloaded.out, native.out);
    assert_eq!((preloaded.violations(), native.violations()), (vec![], vec![]));
    assert_eq!(preloaded.ours(), [""; 0]);
    let head = head(&preloaded);
    assert_eq!((&head["mode"], &head["interception"]), (&"active".into(), &"complete".into()), "{head:#}");
    assert!(head["decided"].as_str().expect("a text").starts_with("knowledge: driver 13.9 "), "{head:#}");
    preloaded
}

/// How many of the execs and blocks were ours.
fn served(ran: &Ran) -> (u64, u64) {
    let ledger = ran.ledger();
    (ledger.counter(counters::HANDLES_MADE), ledger.counter(counters::POOL_HITS))
}

/// Unknown functions get real handles, whatever their names are, and are shown. The graph cache and the pool stay on.
#[test]
fn functions_that_nobody_knows_get_real_handles() {
    let ran = same(&newer("fk"));
    for line in ["found 1", "ran 2 1 2", "then 3 4", "near 7 8", "known 20 40"] {
        assert!(ran.out.lines().any(|printed| printed == line), "{line} in {}", ran.out);
    }
    let head = head(&ran);
    let met: Vec<_> =
        ["cuGraphExecGetNodeCount", "cuStreamRun", "cuMemAllocNear"].map(|name| format!("the function {name}")).into();
    assert_eq!(texts(&head["unknown"]), met);
    let (handles, hits) = served(&ran);
    assert!(handles >= 12 && hits > 0, "{handles} handles, {hits} hits");
    let doctor = gpumem(&ran.dir, &["doctor", "--all", &ran.pid.to_string()]);
    let finding = |id: &str| {
        let all = doctor["findings"].as_array().expect("a list").iter();
        all.filter(|finding| finding["id"] == id).map(|finding| finding["finding"].to_string()).collect::<String>()
    };
    assert!(finding("mode").contains("active; decided by knowledge: driver 13.9"), "{doctor:#}");
    assert!(met.iter().all(|met| finding("unknown").contains(met)), "{doctor:#}");
}

/// A graph with nodes of an unknown kind is the driver's own and works. A handle inside the parameters of such a node
/// becomes the driver's. Other graphs are bounded.
#[test]
fn nodes_of_an_unknown_kind_pin_their_graph_alone() {
    let ran = same(&newer("nk"));
    assert!(ran.out.contains("node 1 2\nkind 9 211\n") && ran.out.contains("counted 6 0\n"), "{}", ran.out);
    assert_eq!(texts(&head(&ran)["unknown"]), ["nodes of kind 30"]);
    let (handles, hits) = served(&ran);
    assert!(handles >= 24 && hits > 0, "{handles} handles, {hits} hits");
}

/// Attributes that nobody knows stay with the graphs that have them: of captured launches, set on nodes, copied, cloned.
#[test]
fn unknown_attributes_pin_their_graphs_alone() {
    let ran = same(&newer("ak"));
    // Four graphs, each launched twice, and one launch without a graph.
    assert!(ran.out.contains("counted 0 9\n"), "{}", ran.out);
    let met = ["launches with attribute 40", "launches with attribute 41", "nodes with attribute 41"];
    assert_eq!(texts(&head(&ran)["unknown"]), met);
    let (handles, hits) = served(&ran);
    assert!(handles >= 60 && hits > 0, "{handles} handles, {hits} hits");
}

/// So do edges of an unknown type, and flags of instantiate.
#[test]
fn unknown_edges_and_flags_pin_their_graphs_alone() {
    let ran = same(&newer("ek"));
    assert!(ran.out.contains("edge 18 19\nflag 21 22\n"), "{}", ran.out);
    let met = ["an edge of type 7 from port 0 to port 0", "instantiate flags 0x40"];
    assert_eq!(texts(&head(&ran)["unknown"]), met);
    assert!(served(&ran).0 >= 24, "{:?}", served(&ran));
}

/// While the program runs, doctor and graphs show the unknown things that were met.
#[test]
fn everything_at_once_is_served_and_shown() {
    let ran = same(&newer("fnaek"));
    assert_eq!(texts(&head(&ran)["unknown"]).len(), 9);
    assert_eq!(
        same(&client("newer").arg("k").envs(&[NEWER])).ledger().gpumem("stats", &[])["process"]["unknown"],
        Value::Array(vec![])
    );
    // Natively on the newest driver that is known there are no such functions.
    let older = client("newer").arg("k").env("SIM_DRIVER_VERSION", "13050").preloaded().ok();
    assert_eq!(texts(&head(&older)["unknown"]), [""; 0]);
}

/// A driver of a major version that nobody tested is recorded only, and says so; `GPUMEM_RECORD_ONLY=0` overrides.
#[test]
fn a_new_major_is_recorded_only() {
    let small = || program("driver").env("SIM_DRIVER_VERSION", "14000");
    let ran = small().preloaded().ok();
    ran.ledger().agrees_with(&ran.json()).balanced();
    let of = head(&ran);
    assert_eq!(of["mode"], "record-only");
    assert_eq!(of["mode_reason"], "driver 14.0 is of a major version that was never tested");
    assert!(of["decided"].as_str().is_some_and(|by| by.contains("gpumem selftest --rules")), "{of:#}");
    let forced = head(&small().env("GPUMEM_RECORD_ONLY", "0").preloaded().ok());
    assert_eq!((&forced["mode"], &forced["decided"]), (&"active".into(), &"GPUMEM_RECORD_ONLY=0".into()));
    let forbidden = head(&program("driver").env("GPUMEM_RECORD_ONLY", "1").preloaded().ok());
    assert_eq!((&forbidden["mode"], &forbidden["decided"]), (&"record-only".into(), &"GPUMEM_RECORD_ONLY=1".into()));
}

/// Every minor version of a known major is served, and every older version.
#[test]
fn known_majors_are_served() {
    for version in ["11080", "12040", "12080", "13000", "13020", "13050", "13090"] {
        let of = head(&client("newer").arg("k").env("SIM_DRIVER_VERSION", version).preloaded().ok());
        assert_eq!((&of["mode"], &of["mode_reason"]), (&"active".into(), &"".into()), "{version}");
    }
}

/// A driver whose version cannot be true: one line, and record only.
#[test]
fn a_version_that_cannot_be_true_is_not_believed() {
    for version in ["0", "7", "999999999", "4294967291"] {
        let ran = client("newer").arg("k").env("SIM_DRIVER_VERSION", version).preloaded().ok();
        ran.ledger().agrees_with(&ran.json());
        let ours = ran.ours();
        assert!(
            ours.len() == 1 && ours[0].contains("which there cannot be: gpumem only records"),
            "{version}: {ours:?}"
        );
        assert_eq!(head(&ran)["mode"], "record-only", "{version}");
    }
}

/// Runtimes and drivers of different ages: a runtime newer than the driver, as with a package for forward
/// compatibility or without one, and a driver newer than the runtime. Each gives its native answers.
#[test]
fn runtimes_and_drivers_of_different_ages() {
    const SCRIPT: &str = r#"
import ctypes, sys
rt = ctypes.CDLL("libcudart.so." + sys.argv[1])
p, total = ctypes.c_void_p(), 0
for i in range(40):
    code = rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(4096 * (1 + i % 4)))
    if code: break
    code = rt.cudaMemset(p, 1, ctypes.c_size_t(4096)) or rt.cudaFree(p)
    total += 1
stream, graph, execs = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
codes = [code, rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(4096))]
codes.append(rt.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
codes.append(rt.cudaStreamBeginCapture(stream, 2))
codes.append(rt.cudaMemsetAsync(p, 3, ctypes.c_size_t(4096), stream))
codes.append(rt.cudaStreamEndCapture(stream, ctypes.byref(graph)))
codes.append(rt.cudaGraphInstantiateWithFlags(ctypes.byref(execs), graph, ctypes.c_ulonglong(0)))
codes.append(rt.cudaGraphLaunch(execs, stream))
codes.append(rt.cudaStreamSynchronize(stream))
byte = ctypes.c_ubyte()
codes.append(rt.cudaMemcpy(ctypes.byref(byte), p, ctypes.c_size_t(1), 2))
version = ctypes.c_int()
rt.cudaDriverGetVersion(ctypes.byref(version))
print(total, codes, byte.value, version.value)
"#;
    if installed("python3").is_none() {
        return;
    }
    for (runtime, driver, mode) in [
        ("12", "12040", "active"),
        ("13", "12040", "active"),
        ("13", "12080", "active"),
        ("12", "13000", "active"),
        ("12", "13090", "active"),
        ("13", "13090", "active"),
        ("12", "14000", "record-only"),
        ("13", "14000", "record-only"),
    ] {
        let python = command("python3").args(["-c", SCRIPT, runtime]).env("SIM_DRIVER_VERSION", driver);
        let (native, preloaded) = (python.native().ok(), python.preloaded().ok());
        assert_eq!((&preloaded.out, &preloaded.err), (&native.out, &native.err), "{runtime} on {driver}");
        assert!(
            native.out.starts_with("40 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0] 3 "),
            "{runtime} on {driver}: {}",
            native.out
        );
        let of = head(&preloaded);
        assert_eq!((&of["mode"], &of["interception"]), (&mode.into(), &"complete".into()), "{runtime} on {driver}");
        assert_eq!(texts(&of["unknown"]), [""; 0], "{runtime} on {driver}");
        let handles = preloaded.ledger().counter(counters::HANDLES_MADE);
        assert_eq!(handles > 0, mode == "active", "{runtime} on {driver}");
    }
}
