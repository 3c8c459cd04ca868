//! Programs of AMD's runtime, on a simulated libamdhip64. They do the same natively and preloaded. Each
//! allocation is counted once, although the library calls its own exported names.

use gpumem_tests::harness::artifacts::artifacts;
use gpumem_tests::harness::hip::{hip, program};
use gpumem_tests::harness::run::Scratch;
use gpumem_tests::harness::{Program, Ran};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, NodeKind, Space, Vendor};
use gpumem_wire::layout::Door;
use gpumem_wire::location::Tally;
use serde_json::Value;
use std::collections::BTreeMap;

/// Members of a summary that depend on how long things take.
const VARYING: &[&str] = &["bytes_peak", "decode_seconds", "steps_per_second"];

fn comparable(ran: &Ran) -> Value {
    let mut said = ran.json();
    if let Some(members) = said.as_object_mut() {
        members.retain(|name, _| !VARYING.contains(&name.as_str()));
        let kinds = members.get_mut("kinds").and_then(Value::as_object_mut);
        kinds
            .into_iter()
            .flatten()
            .filter_map(|(_, kind)| kind.as_object_mut())
            .for_each(|kind| drop(kind.remove("peak")));
    }
    said
}

/// Runs a program in all ways. The results are the same, and the ledger has the program's counts.
#[track_caller]
fn same_in_all_ways(program: &Program) -> Ran {
    let native = program.native().ok();
    let without_stacks = program.clone().env("GPUMEM_STACKS", "0").preloaded().ok();
    let preloaded = program.preloaded().ok();
    for ran in [&without_stacks, &preloaded] {
        assert_eq!(comparable(ran), comparable(&native));
        assert_eq!(ran.violations(), native.violations());
        assert_eq!(ran.ours(), [""; 0], "nothing of ours on stderr");
        ran.ledger().agrees_with(&ran.json()).complete();
    }
    preloaded
}

macro_rules! driven {
    ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        pub const HOOKED: &[&str] = &[$(stringify!($name)),*];
    };
}
gpumem_abi::hip_functions!(driven);
#[test]
fn basic_is_counted() {
    let ran = same_in_all_ways(&program("hip_basic"));
    let ledger = ran.ledger();
    ledger.balanced();
    assert_eq!(ledger.snapshot.header.doors, Door::HipExport as u32);
    assert!(ledger.snapshot.contexts.values().all(|context| context.vendor == Vendor::Hip as u8));
}

/// Most programs never call hipInit; the first call of any other initialises HIP.
#[test]
fn the_version_of_the_runtime_is_recorded() {
    for name in ["reset", "hip_basic"] {
        let ledger = program(name).preloaded().ok().ledger();
        assert_eq!(ledger.snapshot.header.driver_version, 60_300_000, "{name}");
    }
}

/// hipMallocHost reaches hipHostMalloc inside, hipMalloc3D hipMalloc, and so on: once each.
#[test]
fn every_kind_is_counted_once() {
    let ran = same_in_all_ways(&program("hip_kinds"));
    let ledger = ran.ledger();
    ledger.balanced();
    let on_host = Tally::of(AllocKind::Async, Space::Host);
    assert_eq!((ledger.counter(on_host.allocs()), ledger.counter(on_host.free_bytes())), (1, 3 << 20));
    for (kind, count) in [
        (AllocKind::Device, 2),
        (AllocKind::Pitch, 3),
        (AllocKind::HostPinned, 4),
        (AllocKind::Array, 4),
        (AllocKind::MipmappedArray, 1),
        (AllocKind::VmmReservation, 1),
        (AllocKind::VmmMapping, 1),
    ] {
        assert_eq!(ledger.counter(counters::allocs(kind)), count, "{kind}");
        assert_eq!(ledger.counter(counters::frees(kind)), count, "frees of {kind}");
    }
    for (kind, count) in [
        (AllocKind::Device, 1),
        (AllocKind::Pitch, 2),
        (AllocKind::Managed, 1),
        (AllocKind::HostPinned, 1),
        (AllocKind::HostRegistered, 1),
        (AllocKind::Async, 1),
        (AllocKind::Array, 1),
        (AllocKind::VmmPhysical, 1),
    ] {
        assert_eq!(ledger.counter(counters::alloc_failures(kind)), count, "failures of {kind}");
    }
}

/// Functions that few programs call: their allocations are recorded, and their answers are as natively.
#[test]
fn seldom_called_functions_are_counted() {
    let (native, preloaded) = (program("newer").native().ok(), program("newer").preloaded().ok());
    assert_eq!((&preloaded.out, preloaded.violations()), (&native.out, native.violations()));
    let ledger = preloaded.ledger();
    ledger.sound().complete();
    for (kind, made, failed) in [
        (AllocKind::Device, 2, 0),
        (AllocKind::HostPinned, 1, 0),
        (AllocKind::MipmappedArray, 1, 0),
        (AllocKind::IpcImport, 0, 1),
        (AllocKind::ExternalMemory, 0, 1),
    ] {
        assert_eq!(ledger.counter(counters::allocs(kind)), made, "{kind}");
        assert_eq!(ledger.counter(counters::frees(kind)), made, "frees of {kind}");
        assert_eq!(ledger.counter(counters::alloc_failures(kind)), failed, "failures of {kind}");
    }
    assert_eq!(ledger.counter(counters::NODE_SETS), 3);
    assert_eq!(ledger.counter(counters::ENDED_WITH_CONTEXT), 1);
    assert_eq!((ledger.snapshot.streams.len(), ledger.snapshot.execs.len()), (0, 0));
}

#[test]
fn graphs_are_made_updated_and_gone() {
    same_in_all_ways(&program("hip_graphs")).ledger().balanced();
}

/// With work that runs late, so that a call of ours at the wrong time would show.
#[test]
fn no_capture_is_disturbed_when_work_lags() {
    same_in_all_ways(&program("hip_graphs").env("SIM_LAG_US", "300")).ledger().balanced();
    same_in_all_ways(&program("hip_nodes").env("SIM_LAG_US", "300")).ledger().balanced();
}

#[test]
fn nodes_of_every_kind_balance() {
    let ran = same_in_all_ways(&program("hip_nodes"));
    ran.ledger().balanced();
    // One setter and one disabled node.
    assert_eq!(ran.ledger().counter(counters::NODE_SETS), 2);
    // A node that allocates is a record until its graph and exec are gone.
    let ledger = ran.ledger();
    let node = AllocKind::GraphNode;
    let of = [counters::allocs(node), counters::frees(node), counters::alloc_bytes(node), counters::free_bytes(node)];
    let counted = of.map(|counter| ledger.counter(counter));
    assert_eq!((counted[0], counted[1], counted[2]), (1, 1, counted[3]));
}

/// Live at the end: a graph with its nodes, and one exec of each way to instantiate.
#[test]
fn live_graphs_show_their_nodes_by_kind() {
    show_their_nodes_by_kind(&program("hip_nodes"));
}

/// Up to ROCm 5.2 the kinds of nodes have other numbers: a host node has there what is a child graph's since.
#[test]
fn live_graphs_show_their_nodes_on_rocm_5_2() {
    let old = program("hip_nodes").env("SIM_HIP_VERSION", "50221153");
    same_in_all_ways(&old).ledger().balanced();
    show_their_nodes_by_kind(&old);
}

/// A ROCm of a major version that the tables were not checked against is only recorded, and that is said.
/// `GPUMEM_RECORD_ONLY=0` overrides it.
/// Every minor of those that are known is served.
#[test]
fn a_rocm_of_an_unknown_major_is_recorded_only() {
    let on = |version: &str| program("hip_graphs").env("SIM_HIP_VERSION", version);
    let head = |ran: &Ran| ran.ledger().gpumem("stats", &[])["process"].clone();
    let served = |ran: &Ran| {
        let ledger = ran.ledger();
        (ledger.counter(counters::POOL_HITS), ledger.counter(counters::HANDLES_MADE))
    };
    for (version, words) in [("90000000", "ROCm 9.0"), ("80100123", "ROCm 8.1"), ("40300000", "ROCm 4.3")] {
        let ran = same_in_all_ways(&on(version));
        let of = head(&ran);
        assert_eq!(of["mode"], "record-only", "{version}: {of:#}");
        assert_eq!(of["mode_reason"], format!("{words} is of a major version that was never tested"), "{version}");
        assert_eq!(served(&ran), (0, 0), "{version}");
        let doctor = ran.ledger().gpumem("doctor", &[]).to_string();
        assert!(doctor.contains(&format!("record-only: {words} is of a major")), "{doctor}");
        assert!(doctor.contains("GPUMEM_RECORD_ONLY=0 overrides it"), "{doctor}");
    }
    let forced = on("90000000").env("GPUMEM_RECORD_ONLY", "0").preloaded().ok();
    assert_eq!(head(&forced)["mode"], "active");
    assert!(served(&forced).1 > 0, "{:?}", served(&forced));
    for version in ["50700000", "60400000", "70900000"] {
        let ran = on(version).preloaded().ok();
        assert_eq!(head(&ran)["mode"], "active", "{version}");
        assert!(served(&ran).1 > 0, "{version}: {:?}", served(&ran));
    }
}

/// A device whose memory is the machine's says so on HIP, too.
#[test]
fn a_machines_own_memory_is_told() {
    for (setting, integrated) in [("0", false), ("1", true)] {
        let ran = program("hip_basic").env("SIM_INTEGRATED", setting).preloaded().ok();
        let devices = ran.ledger().gpumem("stats", &[])["devices"].clone();
        assert_eq!(devices[0]["integrated"], integrated, "{devices:#}");
    }
}

/// Beside CUDA, only HIP's part of the process is off with such a ROCm. CUDA's part goes on, and doctor says so.
#[test]
fn beside_cuda_a_rocm_of_an_unknown_major_is_told() {
    let path = std::env::join_paths([&hip().stage, &artifacts().stage]).expect("a path");
    let on = |version: &str| program("both").env("LD_LIBRARY_PATH", &path).env("SIM_HIP_VERSION", version);
    let head = |ran: &Ran| ran.ledger().gpumem("stats", &[])["process"].clone();
    let ran = same_in_all_ways(&on("90000000"));
    let (of, on_known) = (head(&ran), head(&on("60400000").preloaded().ok()));
    let said = "ROCm 9.0 is of a major version that was never tested: HIP is only recorded";
    assert_eq!((&of["mode"], &of["mode_reason"]), (&"active".into(), &said.into()), "{of:#}");
    assert_eq!((&on_known["mode"], &on_known["mode_reason"]), (&"active".into(), &"".into()), "{on_known:#}");
    assert!(ran.ledger().counter(counters::POOL_HITS) > 0, "CUDA's pool goes on");
    let doctor = ran.ledger().gpumem("doctor", &[]).to_string();
    assert!(doctor.contains(&format!("active, but {said}")), "{doctor}");
    // The version that is told is that of CUDA's driver, whatever HIP is there.
    assert_eq!(of["driver_version"], on_known["driver_version"]);
}

fn show_their_nodes_by_kind(program: &Program) {
    let ran = program.clone().arg("keep").preloaded().ok();
    let ledger = ran.ledger();
    ledger.agrees_with(&ran.json()).complete();
    let (graphs, execs) = (&ledger.snapshot.graphs, &ledger.snapshot.execs);
    assert_eq!(graphs.len(), 1);
    let mut execs: Vec<_> = execs.iter().collect();
    execs.sort_by_key(|exec| exec.serial);
    assert_eq!(execs.iter().map(|exec| exec.flags).collect::<Vec<_>>(), [0, 8, 8], "instantiate flags");
    assert_eq!(execs.iter().map(|exec| exec.launches).collect::<Vec<_>>(), [3, 1, 1]);
    // The child graph's two memsets count besides the child.
    let expected = [
        (NodeKind::Kernel, 1),
        (NodeKind::Memcpy, 1),
        (NodeKind::Memset, 3),
        (NodeKind::Host, 1),
        (NodeKind::Child, 1),
        (NodeKind::Empty, 1),
        (NodeKind::EventRecord, 1),
        (NodeKind::EventWait, 1),
    ];
    for exec in execs {
        let seen: BTreeMap<_, _> = (0..16)
            .filter(|&number| exec.nodes[number] > 0)
            .filter_map(|number| Some((NodeKind::from_u8(number as u8)?, exec.nodes[number])))
            .collect();
        assert_eq!(seen, BTreeMap::from(expected));
    }
}

/// A workload as llama-server's, as ggml's HIP backend would run it: four threads, one pool each.
#[test]
fn demo_balances_to_zero() {
    let args = ["--iterations", "60", "--weights", "8", "--kv", "1", "--prefill", "12", "--slots", "3"];
    let ran = same_in_all_ways(&program("hip_demo").args(args));
    ran.ledger().balanced();
    let few = ["--iterations", "40", "--weights", "1", "--kv", "1", "--prefill", "2", "--never-evict"];
    same_in_all_ways(&program("hip_demo").args(few)).ledger().balanced();
}

/// A reset ends the allocations on the device. Their frees fail as natively.
#[test]
fn reset_ends_allocations() {
    let (native, preloaded) = (program("reset").native().ok(), program("reset").preloaded().ok());
    assert_eq!(native.out, preloaded.out);
    let ledger = preloaded.ledger();
    ledger.sound().complete();
    let live: Vec<_> = ledger.snapshot.allocs.iter().map(|alloc| alloc.bytes).collect();
    assert_eq!(live, [3000]);
    assert_eq!(ledger.counter(counters::ENDED_WITH_CONTEXT), 2);
}

/// hipFree's barrier is kept, and no freed memory is touched.
#[test]
fn frees_wait_for_the_device() {
    let ran = same_in_all_ways(&program("barrier").env("SIM_LAG_US", "30000"));
    ran.ledger().balanced();
    assert_eq!(ran.violations(), [""; 0]);
}

/// The first call, by eight threads at once; again and again, since it is a race.
#[test]
fn concurrent_first_use() {
    same_in_all_ways(&program("threads")).ledger().balanced();
    for _ in 0..10 {
        let ran = program("threads").preloaded().ok();
        ran.ledger().agrees_with(&ran.json()).complete().balanced();
    }
}

/// Memory of hipMalloc can be exported. The importer's ledger lists it as an import.
#[test]
fn ipc_between_two_processes() {
    let ran = same_in_all_ways(&program("ipc"));
    ran.ledger().balanced();
    let ledgers = ran.ledgers();
    assert_eq!(ledgers.len(), 2, "one of the parent, one of the child");
    let child = ledgers.iter().find(|ledger| ledger.id.pid != ran.pid).expect("the child's");
    child.sound().complete().balanced();
    assert_eq!(child.counter(counters::allocs(AllocKind::IpcImport)), 1);
    assert_eq!(child.counter(counters::alloc_bytes(AllocKind::IpcImport)), 3 << 20);
}

/// Calls out of a file with the runtime's name are the runtime's own, on whatever thread, inside of no other call. They
/// are passed on and not recorded. Under a limit they get the runtime's own answers.
#[test]
fn calls_out_of_the_runtime_itself_are_not_the_programs() {
    let scratch = Scratch::new();
    let library = scratch.path().join("libamdhip64.so.7.own");
    std::fs::copy(hip().clients.join("libhipplugin.so"), &library).expect("a copy");
    let ran = program("plugin").arg(&library).env("GPUMEM_LIMIT", "50").preloaded().ok();
    assert_eq!(ran.json()["failures"], 0);
    assert!(!ran.dir.exists(), "the program itself has called nothing: {:?}", ran.dir);
}

/// A plugin linked to the runtime, loaded RTLD_LOCAL, unloaded and loaded again.
#[test]
fn plugin_loaded_locally() {
    same_in_all_ways(&program("plugin")).ledger().balanced();
}

/// Each official libamdhip64 since ROCm 6 needs librocprofiler-register, which looks for a profiler and is none.
#[test]
fn the_library_that_looks_for_profilers_is_none() {
    let mode = |name: &str| {
        let library = hip().clients.join(name);
        let ran =
            program("hip_basic").env("LD_PRELOAD", format!("{}:{}", artifacts().shim.display(), library.display()));
        let ran = ran.preloaded().ok();
        let head = ran.ledger().gpumem("stats", &[])["process"].clone();
        (head["mode"].as_str().unwrap_or_default().to_owned(), head["mode_reason"].to_string())
    };
    assert_eq!(mode("librocprofiler-register.so.0").0, "active");
    assert_eq!(mode("librocprofiler-sdk-roctx.so.1").0, "active");
    // PyTorch needs the first, and has the second's function itself.
    assert_eq!(mode("librocprofiler-sdk.so.1").0, "active");
    assert_eq!(mode("libtracer.so").0, "active");
    let (its, why) = mode("librocprofiler-sdk-tool.so");
    assert_eq!(its, "record-only");
    assert!(why.contains("librocprofiler-sdk-tool.so"), "{why}");
}

/// A library that defines some functions of the runtime gets the calls of these. The runtime gets all others.
#[test]
fn a_stub_in_scope_keeps_its_calls() {
    let (native, preloaded) = (program("stubbed").native().ok(), program("stubbed").preloaded().ok());
    assert_eq!(native.out, "7777 0 0x59000 0 0 1 0 0 0 0x5a000 calls 3\n");
    assert_eq!(native.out, preloaded.out);
    // The runtime's own memory is recorded, whatever becomes of the stub's.
    let ledger = preloaded.ledger();
    ledger.sound();
    for kind in [AllocKind::HostPinned, AllocKind::Managed] {
        assert_eq!((ledger.counter(counters::allocs(kind)), ledger.counter(counters::frees(kind))), (1, 1), "{kind}");
    }
}

/// Every call answers the same, with a device and without one. Without a device no file is left behind.
#[test]
fn codes_are_the_same_with_and_without_a_device() {
    for devices in ["1", "0"] {
        let run = program("codes").env("SIM_DEVICES", devices);
        let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
        let no_addresses = |ran: &Ran| {
            let out = ran.out.replace("0x5ca1ab1e", "UNTOUCHED").replace("(nil)", "NULL");
            out.lines().map(|line| line.split(" 0x").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(no_addresses(&native), no_addresses(&preloaded), "SIM_DEVICES={devices}");
        assert_eq!(preloaded.ledgers().len(), if devices == "1" { 1 } else { 0 }, "SIM_DEVICES={devices}");
        if devices == "0" {
            assert!(native.out.contains("hipMalloc(&p, 64): 101 hipErrorInvalidDevice"), "{}", native.out);
        }
    }
    for name in ["hip_basic", "hip_graphs"] {
        let run = program(name).env("SIM_DEVICES", "0");
        let (native, preloaded) = (run.native().ok(), run.preloaded().ok());
        assert_eq!((&native.out, &native.err), (&preloaded.out, &preloaded.err));
        assert_eq!(native.json()["device"], false);
        assert!(!preloaded.dir.exists(), "{name} left {:?}", preloaded.dir);
    }
}

/// The ledger has a stack for each allocation, and the module of each frame.
#[test]
fn the_inspector_shows_it() {
    let ran = program("hip_nodes").arg("keep").preloaded().ok();
    let ledger = ran.ledger();
    assert!(!ledger.snapshot.stacks.is_empty());
    let mut sites: Vec<_> = ledger.snapshot.allocs.iter().map(|alloc| alloc.stack).collect();
    sites.dedup();
    assert!(sites.iter().all(|stack| ledger.snapshot.stacks.contains_key(stack)), "each with its stack: {sites:?}");
    let modules: Vec<_> = ledger.snapshot.modules.iter().map(|module| ledger.snapshot.text(module.path)).collect();
    assert!(modules.iter().any(|path| path.ends_with("/hip_nodes")), "{modules:?}");
}
