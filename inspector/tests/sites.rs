//! Call sites in the views: a wrapper that everything goes through is followed by its callers.

mod common;
use common::*;
use gpumem_inspector::compose::Composer;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind};
use gpumem_wire::layout::{AllocSlot, EventSlot, ExecSlot, GraphSlot, StackSlot, TableKind};
use serde_json::{Value, json};

const WRAP: u64 = APP + 0x100;
const LOAD: u64 = APP + 0x200;
const KV: u64 = APP + 0x300;
const SLOT: u64 = APP + 0x400;
const GROW: u64 = APP + 0x500;
const MAIN: u64 = APP + 0x600;

/// Callers of one wrapper, each with one allocation of so many MiB.
fn ledger(callers: &[(&[u64], u64)]) -> Composer {
    let mut composer = begin(me());
    module(&mut composer, "/opt/app", APP, 0x10_0000, APP);
    module(&mut composer, "/usr/lib/libcudart.so.12", CUDA, 0x10_0000, CUDA);
    for (index, (callers, mib)) in callers.iter().enumerate() {
        let frames = [&[CUDA + 0x10, WRAP], *callers, &[MAIN]].concat();
        let totals = StackSlot { hash: index as u64, allocs: 1, alloc_bytes: mib * MIB, ..Default::default() };
        composer.stack(index, StackSlot { graphs: 1, execs: 1, ..totals }, &frames);
        let (stack, serial) = (index as u32 + 1, index as u64);
        composer.slots([AllocSlot {
            stack,
            serial,
            addr: serial + 1,
            bytes: mib * MIB,
            kind: AllocKind::Device as u8,
            ..Default::default()
        }]);
        composer.slots([GraphSlot { stack, serial, host_bytes: mib * 1024, ..Default::default() }]);
        composer.slots([ExecSlot { stack, serial, host_bytes: mib * 1024, ..Default::default() }]);
    }
    composer
}

const CALLERS: &[(&[u64], u64)] = &[(&[LOAD], 64), (&[KV, SLOT], 8), (&[KV, GROW], 4), (&[KV, GROW], 2)];

fn texts(rows: &Value, field: &str) -> Vec<String> {
    rows.as_array().unwrap().iter().map(|row| row[field].as_str().unwrap().to_owned()).collect()
}

const SITES: [&str; 3] =
    ["app+0x100 ← app+0x200", "app+0x100 ← app+0x300 ← app+0x400", "app+0x100 ← app+0x300 ← app+0x500"];

#[test]
fn every_view_names_a_site_alike() {
    let dir = dir();
    dir.put(me(), ledger(CALLERS));
    let report = dir.json(&["allocs"]);
    assert_eq!(texts(&report["rows"], "key"), SITES);
    assert_eq!(report["rows"][2]["live"], 2, "stacks that are alike are one site");
    assert_eq!(report["rows"][2]["total_bytes"], 6 * MIB);
    assert_eq!(report["rows"][0]["site"]["module_address"], 0x100, "the innermost frame");
    // A site keeps its name where the others are filtered out.
    assert_eq!(texts(&dir.json(&["allocs", "--min-size", "60MiB"])["rows"], "key"), SITES[..1]);
    assert_eq!(texts(&dir.json(&["allocs", "--all", "-n", "3"])["rows"], "site"), SITES);
    assert_eq!(texts(&dir.json(&["allocs", "--by", "stack", "-n", "3"])["rows"], "key"), SITES);
    let graphs = dir.json(&["graphs", "--all"]);
    assert_eq!(texts(&graphs["groups"], "key"), SITES);
    assert_eq!(texts(&graphs["execs"], "site")[..3], SITES);
    assert_eq!(texts(&graphs["graphs"], "site")[..3], SITES);
    let csv = dir.ok(&["export", "--format", "csv"]);
    assert!(SITES.iter().all(|site| csv.contains(&format!(",{site}\n"))), "{csv}");
}

#[test]
fn an_event_has_its_sites_name() {
    let dir = dir();
    let mut composer = ledger(CALLERS);
    // A stack that only ever failed to allocate.
    let refused = StackSlot { hash: 9, ..Default::default() };
    composer.stack(CALLERS.len(), refused, &[CUDA + 0x10, WRAP, GROW, MAIN]);
    let event = |seq, kind: EventKind, stack| EventSlot { seq, kind: kind as u8, stack, a: MIB, ..Default::default() };
    composer.slots([event(0, EventKind::StrandedSite, 1), event(1, EventKind::AllocFailed, 5)]);
    let mut shard = vec![0; counters::PER_SHARD];
    shard[counters::STRANDED_ADDED] = MIB;
    composer.words(TableKind::Counters, &shard);
    dir.put(me(), composer);
    let stranded = dir.json(&["stats"])["pool"]["stranded"].clone();
    assert_eq!(texts(&stranded, "site"), SITES[..1]);
    for view in [&["stats"][..], &["doctor"]] {
        let out = dir.gpumem(view).out;
        assert!(out.contains(SITES[0]), "{view:?}: {out}");
    }
    let named = [SITES[0], "app+0x100 ← app+0x500"];
    assert_eq!(texts(&dir.json(&["events"])["events"], "site"), named);
    // A filter does not change a name.
    assert_eq!(texts(&dir.json(&["events", "--kind", "alloc-failed"])["events"], "site"), named[1..]);
}

#[test]
fn one_caller_alone_is_not_named() {
    let dir = dir();
    dir.put(me(), ledger(&CALLERS[..1]));
    assert_eq!(texts(&dir.json(&["allocs"])["rows"], "key"), ["app+0x100"]);
    // The freed have their part in a name: it does not change as they come and go.
    let mut with_freed = ledger(&CALLERS[..1]);
    let freed = StackSlot { hash: 9, allocs: 3, alloc_bytes: 3 * MIB, ..Default::default() };
    with_freed.stack(1, freed, &[WRAP, KV, MAIN]);
    dir.put(me(), with_freed);
    let freed = dir.json(&["allocs", "--freed"]);
    assert_eq!(texts(&freed["rows"], "key"), ["app+0x100 ← app+0x200", "app+0x100 ← app+0x300"]);
    let live = dir.json(&["allocs"]);
    assert_eq!((&live["rows_total"], &live["rows"][0]["key"]), (&json!(1), &freed["rows"][0]["key"]));
}

#[test]
fn diff_names_both_sides_together() {
    let dir = dir();
    let file = |name: &str, ledger: Composer| {
        let path = dir.path().join(name);
        std::fs::write(&path, ledger.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // Alone, the first would have no caller in its name.
    let before = file("before", ledger(&CALLERS[..1]));
    let after = file("after", ledger(CALLERS));
    for by in ["address", "function"] {
        let report = dir.json(&["diff", &before, &after, "--match-by", by]);
        assert_eq!(texts(&report["allocs"], "site"), SITES[1..], "{by}: the first has not changed");
        assert_eq!(report["allocs"][1]["bytes_change"], 6 * MIB);
        assert_eq!(texts(&report["graphs"], "site"), SITES[1..], "{by}");
    }
}

#[test]
fn the_standard_library_of_cpp_is_no_caller() {
    let dir = dir();
    let mut composer = ledger(&[(&[KV, LOAD], 64), (&[KV, SLOT], 8)]);
    for (address, name) in [
        (WRAP, "Buffer::Buffer(unsigned long)"),
        (KV, "std::__detail::_MakeUniq<Buffer>::__single_object std::make_unique<Buffer, int>(int&&)"),
        (LOAD, "load()"),
        (SLOT, "slot()"),
        (MAIN, "main"),
    ] {
        composer.symbol(address, 0, name, "a.cpp", 1, "/opt/app");
    }
    dir.put(me(), composer);
    let keys = texts(&dir.json(&["allocs"])["rows"], "key");
    assert_eq!(keys, ["Buffer::Buffer a.cpp:1 ← load a.cpp:1", "Buffer::Buffer a.cpp:1 ← slot a.cpp:1"]);
}
