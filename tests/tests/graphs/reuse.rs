//! Addresses that come back, and objects with two names, while few real execs stand for many handles: streams with
//! the address of an earlier one, default streams of several threads, nodes of clones and of graphs inside graphs,
//! execs that the driver refused to set. Each client runs natively and preloaded and checks its own
//! results. The tests check the reports of the simulator and the cache's counters.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::{Ledger, Program, Ran, artifacts, command};
use gpumem_wire::counters::*;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A client that these tests alone have, compiled once.
fn built(name: &'static str, once: &'static OnceLock<PathBuf>) -> Program {
    let file = once.get_or_init(|| {
        let dir = artifacts().clients.with_file_name("reuse");
        std::fs::create_dir_all(&dir).expect("a folder for clients");
        // Other processes may run the one that is there.
        let (file, new) = (dir.join(name), dir.join(format!("{name}.{}", std::process::id())));
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fno-omit-frame-pointer", "-I"]);
        cc.arg(repository().join("tests/programs")).arg("-o").arg(&new);
        cc.arg(repository().join("tests/programs/clients").join(name).with_extension("c"));
        cc.arg("-L").arg(&artifacts().stage).args(["-l:libcuda.so.1", "-pthread", "-ldl"]);
        let done = cc.output().expect("a C compiler");
        assert!(done.status.success(), "{cc:?}\n{}", String::from_utf8_lossy(&done.stderr));
        std::fs::rename(&new, &file).expect("its place");
        file
    });
    command(file)
}

fn streams(mode: &str) -> Program {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built("graph_streams", &BUILT).arg(mode)
}

fn captures() -> Program {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built("graph_captures", &BUILT)
}

fn joins() -> Program {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built("graph_joins", &BUILT)
}

fn nodes(mode: &str) -> Program {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    built("graph_nodes", &BUILT).arg(mode)
}

/// Runs a program natively, and preloaded with these caps, with and without folding. The results are the same, no rule
/// of the driver is broken, and nothing is left. The answer is the preloaded runs.
#[track_caller]
fn same(program: &Program, caps: &[u32]) -> Vec<(Ran, Ledger)> {
    let native = program.native().ok();
    assert_eq!(native.violations(), [""; 0], "natively");
    let mut all = Vec::new();
    for &cap in caps {
        for fold in ["0", "1"] {
            let bounded = program.clone().env("GPUMEM_GRAPH_CACHE", cap.to_string());
            let ran = bounded.env("GPUMEM_GRAPH_FOLD", fold).preloaded().ok();
            let how = format!("cap {cap}, fold {fold}");
            assert_eq!(ran.out, native.out, "{how}");
            let ledger = clean(&ran, &how);
            ledger.agrees_with(&ran.json());
            all.push((ran, ledger));
        }
    }
    all
}

/// No rule was broken, nothing was printed, and no handle is left.
#[track_caller]
fn clean(ran: &Ran, how: &str) -> Ledger {
    assert_eq!(ran.violations(), [""; 0], "{how}");
    assert_eq!(ran.ours(), [""; 0], "{how}");
    let ledger = ran.ledger();
    ledger.complete();
    for (made, ended) in [
        (EXECS_CREATED, EXECS_DESTROYED),
        (HANDLES_MADE, HANDLES_ENDED),
        (PINNED_MADE, PINNED_ENDED),
        (SOURCE_BYTES_ADDED, SOURCE_BYTES_REMOVED),
    ] {
        assert_eq!(ledger.counter(made), ledger.counter(ended), "{how}");
    }
    ledger
}

/// Real execs that the driver had when the program asked it.
#[track_caller]
fn live_execs(ran: &Ran) -> u64 {
    let line = ran.err.lines().find_map(|line| line.strip_prefix("live_execs ")).expect("what the driver has");
    line.parse().expect("a number")
}

/// A handle was launched on a stream that is then destroyed, and its exec goes to another handle. A new stream gets the
/// old one's address. The handle's next launch on the new stream still has to wait for its last launch.
#[test]
fn a_stream_at_an_old_address_is_another() {
    let reused = streams("address").env("SIM_REUSE_HANDLES", "1").env("GPUMEM_GRAPH_IDLE", "0");
    let ran = same(&reused, &[1, 2]);
    assert!(ran[0].0.out.contains("the same address: 1"), "{}", ran[0].0.out);
    assert!(ran[2].1.counter(RETARGETS) >= 2, "with room for two, execs change hands");
}

/// A thread that looks for an exec queries no stream that another thread has destroyed, nor one that is destroyed during
/// the query.
#[test]
fn no_thread_asks_a_stream_that_is_gone() {
    for (_, ledger) in same(&streams("threads").env("SIM_LAG_US", "200"), &[1, 6]) {
        assert!(ledger.counter(RETARGETS) > 100, "{}", ledger.counter(RETARGETS));
    }
}

/// Afterwards nothing captures any more, so completed execs can be recognised, and the bound holds.
#[test]
fn captures_on_streams_of_one_name_end_one_by_one() {
    for (ran, ledger) in same(&captures(), &[4]) {
        assert!(live_execs(&ran) <= 4, "{}", live_execs(&ran));
        assert!(ledger.counter(RETARGETS) >= 12, "{}", ledger.counter(RETARGETS));
    }
}

/// A look that has begun is over before the stream becomes part of a capture, which it would have ended.
#[test]
fn a_stream_that_joins_a_capture_is_not_looked_at() {
    let slow: Vec<String> = (1..40).map(|call| format!("cuStreamQuery:{call}+250000")).collect();
    same(&joins().env("SIM_FAULT", slow.join(",")), &[2]);
}

/// The nodes are found if the original was folded, and also if it was not.
#[test]
fn nodes_of_a_captured_graph_are_found_in_its_clone() {
    same(&nodes("clone"), &[1, 512]);
}

/// A cooperative node takes no parameters in one block, as the program never gave them.
#[test]
fn cooperative_nodes_follow_an_update_while_they_run() {
    same(&nodes("running"), &[1, 512]);
}

/// If the driver refuses to set a node of an exec whose launch is pending, the driver's own update decides. If that fails
/// too, and the exec cannot be set back, another exec takes its place, and is launched behind it as well.
#[test]
fn launches_keep_their_order_where_an_exec_cannot_follow_an_update() {
    const SET: &str = "cuGraphExecKernelNodeSetParams_v2";
    let refused =
        [format!("{SET}:1=1"), format!("{SET}:1=1,cuGraphExecUpdate_v2:1=910"), format!("{SET}:1=1,{SET}:2=1")];
    for (faults, [failed, others]) in refused.iter().zip([[0, 0], [1, 0], [0, 1]]) {
        let ran = nodes("running").env("SIM_FAULT", faults).preloaded().ok();
        let ledger = clean(&ran, faults);
        assert_eq!(ledger.counter(UPDATE_FAILURES), failed, "{faults}");
        assert_eq!(ledger.counter(REAL_EXECS_MADE), 1 + others, "{faults}");
    }
}

/// The same where nothing can tell when the last launch is over, should another exec have to take the place of one that
/// can neither follow nor be set back: then the driver's own update is asked, which keeps the exec.
#[test]
fn launches_keep_their_order_where_no_event_can_be_left() {
    const SET: &str = "cuGraphExecKernelNodeSetParams_v2";
    for mode in ["legacy", "thread"] {
        same(&nodes(mode), &[1, 512]);
        for (faults, failed) in
            [(format!("{SET}:1=1,{SET}:2=1"), 0), (format!("{SET}:1=1,cuGraphExecUpdate_v2:1=910"), 1)]
        {
            let ran = nodes(mode).env("SIM_FAULT", &faults).preloaded().ok();
            let ledger = clean(&ran, &faults);
            let counters = [UPDATE_FAILURES, REAL_EXECS_MADE].map(|of| ledger.counter(of));
            assert_eq!(counters, [failed, 1], "{mode}, {faults}");
        }
    }
}

#[test]
fn the_graph_inside_a_node_can_be_instantiated_and_set() {
    same(&nodes("child"), &[1, 512]);
}

/// An exec is to go to another handle and the driver refuses a node's parameters, so a new exec is made. Then the driver
/// refuses to disable a node in the new one. No handle gets an exec that is partly set for another handle.
#[test]
fn an_exec_that_could_not_be_set_serves_nobody() {
    let mut fallbacks = 0;
    // The second retarget is the first that disables nodes. The fault hits its calls, and some around them.
    for (set, enabled) in [4, 6, 7].into_iter().flat_map(|set| (4..=7).map(move |enabled| (set, enabled))) {
        let faults = format!("cuGraphExecKernelNodeSetParams_v2:{set}=999,cuGraphNodeSetEnabled:{enabled}=999");
        let faulty = nodes("refused").env("SIM_FAULT", &faults).env("GPUMEM_GRAPH_CACHE", "1");
        let ran = faulty.preloaded().ok();
        fallbacks += clean(&ran, &faults).counter(FALLBACK_INSTANTIATES);
    }
    assert!(fallbacks >= 12, "each refusal was met: {fallbacks}");
    same(&nodes("refused"), &[1]);
}
