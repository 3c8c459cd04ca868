//! `gpumem leaks` and `gpumem doctor` recommend the same settings, and nothing that is in force already.

mod common;
use common::growth::{Row, leaking, sampled};
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, ExecState, GrowthKind, Pinned};
use gpumem_wire::layout::{AllocSlot, ContextSlot, EventSlot, ExecSlot, StackSlot, exec_state};
use serde_json::Value;

/// Returns the advice of both commands on the call site that grows most: the command or the words.
fn said(ledger: Composer) -> [String; 2] {
    let dir = dir();
    dir.put(me(), ledger);
    let leaks = dir.json(&["leaks"])["suspects"][0]["next"].as_str().unwrap_or_default().to_owned();
    let [_, paste, fix] = found(&dir, &[], "growth");
    [leaks, if paste.is_empty() { fix } else { paste }]
}

/// Returns a finding of `gpumem doctor`: its severity, its command, and its other advice.
fn found(dir: &Dir, more: &[&str], id: &str) -> [String; 3] {
    let pid = me().pid.to_string();
    let answer = dir.gpumem(&[&["doctor", "--json"], more, &[&pid]].concat());
    let report: Value = serde_json::from_str(&answer.out).unwrap();
    let found = report["findings"].as_array().unwrap().iter().find(|found| found["id"] == id).unwrap();
    ["severity", "paste", "fix"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
}

/// The site that leaks strands 40 MiB, of which some may be freed since; with variables from the start and later ones.
fn strands(started: &str, changed: &str, freed: u64) -> Composer {
    let mut ledger = leaking(me(), 120);
    let time_ns = monotonic_ns() - 2 * SECOND;
    let kind = EventKind::StrandedSite as u8;
    ledger.slots([EventSlot { kind, seq: 1, time_ns, a: 40 * MIB, b: 4, stack: 2, ..Default::default() }]);
    let mut shard = vec![0; counters::PER_SHARD];
    (shard[counters::STRANDED_ADDED], shard[counters::STRANDED_REMOVED]) = (40 * MIB, freed);
    ledger.words(gpumem_wire::layout::TableKind::Counters, &shard);
    (ledger.header.settings, ledger.header.changes) = (ledger.text(started), ledger.text(changed));
    ledger
}

#[test]
fn a_site_that_strands_is_cured_by_what_is_not_at_work_yet() {
    let pid = me().pid;
    let set = |value: &str| format!("gpumem set {pid} STRANDED={value}");
    let look = format!("gpumem allocs {pid} --by stack --sort growth");
    assert_eq!(said(strands("", "", 0)), [set("spill"), set("spill")]);
    // One that is known to retry is pressed.
    assert_eq!(said(strands("GPUMEM_STRANDED_RETRIES=1", "", 0)), [set("press"), set("press")]);
    // It is at work: what grows on is something else.
    for mode in ["spill", "press"] {
        let changed = format!("GPUMEM_STRANDED={mode}");
        assert_eq!(said(strands("", &changed, 0)), [look.clone(), look.clone()], "{mode}");
        assert_eq!(said(strands(&changed, "", 0)), [look.clone(), look.clone()], "{mode}");
    }
    // All that was stranded is freed by now.
    assert_eq!(said(strands("", "", 40 * MIB)), [look.clone(), look]);
    // One without a control thread takes no command.
    let mut silent = strands("", "", 0);
    silent.header.heartbeat_ns = 0;
    let start = "start it with GPUMEM_STRANDED=spill";
    let [leaks, doctor] = said(silent);
    assert!(leaks == start && doctor.starts_with(start), "{leaks:?} {doctor:?}");
}

/// Graphs of one call site that become more, a sample a second, all of them the driver's own.
fn graphs(started: &str, changed: &str) -> Composer {
    let mut ledger = begin(me());
    let now = monotonic_ns();
    (ledger.header.heartbeat_ns, ledger.header.created_ns) = (now, now - 121 * SECOND);
    module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
    ledger.stack(0, StackSlot { execs: 120, ..Default::default() }, &[APP + 0x101]);
    let state = exec_state(ExecState::Native, Pinned::Off);
    let exec = |n: u64| ExecSlot {
        stack: 1,
        serial: n,
        handle: n,
        host_bytes: MIB,
        time_ns: now - (120 - n) * SECOND,
        state,
        ..Default::default()
    };
    ledger.slots((0..120).map(exec));
    let times: Vec<u64> = (0..120).map(|n| now - (120 - n) * SECOND).collect();
    let held = (0..120).map(|n| (n * MIB, n)).collect();
    sampled(&mut ledger, &times, &[Row { kind: GrowthKind::Graphs, key: 1, held }]);
    (ledger.header.settings, ledger.header.changes) = (ledger.text(started), ledger.text(changed));
    ledger
}

#[test]
fn graphs_that_grow_are_bounded_by_what_is_not_in_force_yet() {
    let pid = me().pid;
    let fault = "cudaGraphExecDestroy is never called for the execs of demo-server+0x101".to_owned();
    let until = |bound: String| format!("{fault}; until it is: {bound}");
    let without = |what: &str| until(format!("start it without {what}: the graph cache bounds what graphs take"));
    let set = || until(format!("gpumem set {pid} GRAPH_CACHE=512"));
    for (started, changed, wanted) in [
        ("GPUMEM_GRAPH_CACHE=0", "", without("GPUMEM_GRAPH_CACHE=0")),
        // It could not be turned on while it ran.
        ("GPUMEM_GRAPH_CACHE=0", "GPUMEM_GRAPH_CACHE=512", without("GPUMEM_GRAPH_CACHE=0")),
        ("GPUMEM_GRAPH_CACHE=00", "", without("GPUMEM_GRAPH_CACHE=00")),
        ("GPUMEM_RECORD_ONLY=1", "", without("GPUMEM_RECORD_ONLY=1")),
        ("GPUMEM_GRAPH_CACHE=4096", "", set()),
        ("GPUMEM_GRAPH_CACHE=4096", "GPUMEM_GRAPH_CACHE=512", fault.clone()),
        ("", "GPUMEM_GRAPH_CACHE=0", set()),
        // It was off for a while: what was made then stays the driver's.
        ("", "GPUMEM_GRAPH_CACHE=512", fault.clone()),
        ("", "GPUMEM_GRAPH_CACHE=64", fault.clone()),
    ] {
        // Doctor has what can be pasted apart from the fault.
        let doctor = if wanted == set() { format!("gpumem set {pid} GRAPH_CACHE=512") } else { wanted.clone() };
        assert_eq!(said(graphs(started, changed)), [wanted, doctor], "{started:?} {changed:?}");
    }
}

/// The finding of a check of this process.
fn finding(ledger: Composer, id: &str) -> [String; 3] {
    let dir = dir();
    dir.put(me(), ledger);
    found(&dir, &["--all"], id)
}

/// `gpumem off` and `gpumem set` turn the pool and the graph cache off; the same command turns them on again.
#[test]
fn doctor_names_the_command_for_what_a_command_turned_off() {
    let pid = me().pid;
    let pool = |started: &str, changed: &str| {
        let mut ledger = demo(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        (ledger.header.settings, ledger.header.changes) = (ledger.text(started), ledger.text(changed));
        finding(ledger, "pool")
    };
    let info = "info".to_owned();
    assert_eq!(pool("", "GPUMEM_POOL=0"), [info.clone(), format!("gpumem set {pid} POOL=1"), String::new()]);
    let without = "start it without GPUMEM_POOL=0, so that freed memory is kept for the next allocation";
    assert_eq!(pool("GPUMEM_POOL=0", ""), [info.clone(), String::new(), without.into()]);
    let cache = |started, changed| finding(graphs(started, changed), "graph-cache");
    let paste = format!("gpumem set {pid} GRAPH_CACHE=512");
    assert_eq!(cache("", "GPUMEM_GRAPH_CACHE=0"), [info.clone(), paste, String::new()]);
    let without = "start it without GPUMEM_GRAPH_CACHE=0: the graph cache bounds what graphs take";
    assert_eq!(cache("GPUMEM_GRAPH_CACHE=0", ""), [info, String::new(), without.into()]);
}

/// An allocation of 100 MiB was refused at the limit, while 300 MiB were live. The device has 1 GiB.
fn refused(limit: &str, ran_out: bool) -> Composer {
    let mut ledger = begin(me());
    (ledger.header.settings, ledger.header.changes) = (ledger.text("GPUMEM_LIMIT=384MiB"), ledger.text(limit));
    ledger.header.heartbeat_ns = monotonic_ns();
    ledger.slots([ContextSlot { total_bytes: 1024 * MIB, ..Default::default() }]);
    let time_ns = monotonic_ns() - 10 * SECOND;
    let event = |seq, kind: EventKind, b| EventSlot {
        kind: kind as u8,
        seq,
        time_ns,
        a: 100 * MIB,
        b,
        tid: 7,
        ..Default::default()
    };
    ledger.slots([event(1, EventKind::LimitRefused, 0)]);
    if ran_out {
        ledger.slots([event(2, EventKind::OutOfMemory, 300 * MIB)]);
    }
    let mut shard = vec![0; counters::PER_SHARD];
    shard[counters::LIMIT_REFUSALS] = 1;
    ledger.words(gpumem_wire::layout::TableKind::Counters, &shard);
    ledger.slots([live(1, 300 * MIB)]);
    ledger
}

/// Device memory of the context.
fn live(serial: u64, bytes: u64) -> AllocSlot {
    let (addr, kind) = (0x7000_0000_0000 + serial * 0x100_0000_0000, AllocKind::Device as u8);
    AllocSlot { serial, addr, bytes, context: 1, kind, ..Default::default() }
}

#[test]
fn a_refusal_says_whose_limit_it_was() {
    let dir = dir();
    let mut ledger = begin(me());
    let event = |seq, b| EventSlot { kind: EventKind::LimitRefused as u8, seq, a: MIB, b, ..Default::default() };
    ledger.slots([event(1, 0), event(2, 1)]);
    dir.put(me(), ledger);
    let answer = dir.json(&["events"]);
    let whose = ["this process", "its group"].map(|whose| format!("1.0 MiB refused: over the limit of {whose}"));
    assert_eq!([0, 1].map(|at| answer["events"][at]["text"].as_str().unwrap()), whose);
}

/// A leak may fill the limit, so the call site that holds most is named beside a larger limit.
#[test]
fn who_holds_most_is_named_if_memory_runs_out() {
    let with_a_holder = |mut ledger: Composer| {
        module(&mut ledger, "/opt/demo/demo-server", APP, 0x10_0000, APP);
        ledger.stack(0, StackSlot { allocs: 62, ..Default::default() }, &[APP + 0x101]);
        ledger.slots((100..162).map(|serial| AllocSlot { stack: 1, ..live(serial, 10 * MIB) }));
        let dir = dir();
        dir.put(me(), ledger);
        let answer = dir.gpumem(&["doctor", "--json", &me().pid.to_string()]);
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        let found = report["findings"].as_array().unwrap().iter().find(|found| found["id"] == "memory").unwrap();
        ["finding", "fix"].map(|field| found[field].as_str().unwrap().to_owned())
    };
    let mut no_limit = refused("GPUMEM_LIMIT=", false);
    let (kind, time_ns) = (EventKind::OutOfMemory as u8, monotonic_ns() - 3 * SECOND);
    no_limit.slots([EventSlot { kind, seq: 3, time_ns, a: MIB, b: 900 * MIB, tid: 9, ..Default::default() }]);
    for ledger in [refused("", true), refused("", false), no_limit] {
        let [said, fix] = with_a_holder(ledger);
        let holder = "demo-server+0x101 holds most now: 620.0 MiB in 62 allocations, 67 % of the live device memory";
        assert!(said.ends_with(holder), "{said}");
        assert!(fix.contains(&format!("gpumem allocs {}", me().pid)), "{fix}");
    }
}

#[test]
fn a_limit_that_was_raised_since_is_not_to_be_raised_again() {
    let raise = format!("gpumem set {} LIMIT=450MiB", me().pid);
    for ran_out in [true, false] {
        let [severity, paste, _] = finding(refused("", ran_out), "memory");
        assert_eq!((severity.as_str(), &paste), ("warning", &raise), "{ran_out}");
        for raised in ["GPUMEM_LIMIT=450MiB", "GPUMEM_LIMIT=1GiB", "GPUMEM_LIMIT="] {
            let [severity, paste, fix] = finding(refused(raised, ran_out), "memory");
            assert_eq!((severity.as_str(), paste.as_str(), fix.as_str()), ("info", "", ""), "{raised} {ran_out}");
        }
    }
    // The check of the limit itself does not advise another value beside it.
    let mut nearly_full = refused("", true);
    nearly_full.slots([live(2, 50 * MIB)]);
    let [severity, paste, fix] = finding(nearly_full, "limit");
    assert_eq!((severity.as_str(), paste.as_str(), fix.as_str()), ("warning", "", ""));
    // What cannot be raised any further is not advised: the device has no more.
    let mut full = refused("GPUMEM_LIMIT=1GiB", false);
    full.slots([live(2, 700 * MIB)]);
    let [severity, paste, fix] = finding(full, "limit");
    assert_eq!((severity.as_str(), paste.as_str()), ("warning", ""));
    assert!(fix.contains("the device has no more than 1.0 GiB"), "{fix}");
}

/// Spilling that was switched on after memory ran out has not failed.
#[test]
fn spilling_that_was_switched_on_since_has_not_failed() {
    let ran_out = |changed: Option<u64>| {
        let mut ledger = begin(me());
        ledger.header.heartbeat_ns = monotonic_ns();
        let time_ns = monotonic_ns() - 10 * SECOND;
        let kind = EventKind::OutOfMemory as u8;
        ledger.slots([EventSlot { kind, seq: 1, time_ns, a: 100 * MIB, b: 300 * MIB, ..Default::default() }]);
        let Some(later) = changed else { return ledger };
        ledger.header.changes = ledger.text("GPUMEM_OOM_FALLBACK=managed");
        let (kind, text) = (EventKind::Message as u8, ledger.text("gpumem set GPUMEM_OOM_FALLBACK=managed"));
        let time_ns = time_ns - 5 * SECOND + later * SECOND;
        ledger.slots([EventSlot { kind, seq: 2, time_ns, text, ..Default::default() }]);
        ledger
    };
    let set = format!("gpumem set {} OOM_FALLBACK=managed", me().pid);
    let [severity, paste, _] = finding(ran_out(None), "memory");
    assert_eq!((severity.as_str(), paste), ("warning", set));
    let [severity, _, fix] = finding(ran_out(Some(0)), "memory");
    assert!(severity == "warning" && fix.ends_with("spilling failed too"), "it was on before: {fix}");
    let [severity, _, fix] = finding(ran_out(Some(10)), "memory");
    assert_eq!((severity.as_str(), fix.as_str()), ("info", ""), "it was switched on since");
}
