//! Everything in a ledger, as JSON.

use crate::context::Context;
use crate::model::overview::Overview;
use crate::model::{Ledger, execs, graphs, growth, totals};
use crate::source::liveness::real_ns;
use crate::source::nvml::Books;
use crate::view::lazy::Lazy;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Pinned};
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot};
use gpumem_wire::read;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Everything<'a> {
    process: crate::model::Head,
    #[serde(flatten)]
    overview: Overview,
    host: totals::Host,
    counters: std::collections::BTreeMap<&'static str, u64>,
    samples: Vec<std::collections::BTreeMap<&'static str, u64>>,
    stacks: Lazy<'a, Stack>,
    allocations: Lazy<'a, Alloc>,
    graphs: Lazy<'a, Graph>,
    execs: Lazy<'a, Exec>,
}

#[derive(Serialize)]
struct Stack {
    stack: u32,
    frames: Vec<crate::symbols::Frame>,
    allocs: u64,
    alloc_bytes: u64,
    graphs: u64,
    execs: u64,
}

#[derive(Serialize)]
pub(super) struct Alloc {
    address: u64,
    bytes: u64,
    kind: &'static str,
    time_unix_ns: u64,
    age_ns: u64,
    serial: u64,
    tid: u32,
    tag: String,
    location: String,
    context: u16,
    stream: u16,
    flags: Vec<&'static str>,
    stack: u32,
}

#[derive(Serialize)]
struct Graph {
    handle: u64,
    serial: u64,
    nodes: u64,
    /// 0: the driver holds it.
    folded_bytes: u64,
    host_bytes_estimated: u64,
    instantiates: u64,
    age_ns: u64,
    stack: u32,
}

#[derive(Serialize)]
struct Exec {
    handle: u64,
    serial: u64,
    graph_serial: u64,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<&'static str>,
    class: String,
    nodes: std::collections::BTreeMap<&'static str, u64>,
    launches: u64,
    updates: u64,
    failed_updates: u64,
    retargets: u64,
    instantiations: u64,
    evictions: u64,
    saved_ns: u64,
    source_bytes: u64,
    host_bytes_estimated: u64,
    device_bytes_estimated: u64,
    real_bytes_estimated: u64,
    age_ns: u64,
    stack: u32,
}

pub(super) fn everything<'a>(context: &Context, ledger: &'a Ledger) -> Everything<'a> {
    let snapshot = &ledger.snapshot;
    let mut stacks: Vec<_> = snapshot.stacks.iter().collect();
    stacks.sort_by_key(|(reference, _)| **reference);
    Everything {
        process: ledger.head(),
        overview: Overview::of(ledger, &Books::default()),
        host: totals::host(&context.world, ledger),
        counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
        samples: growth::samples(ledger),
        stacks: Lazy::of(stacks, move |(&stack, slot): (&u32, &read::Stack)| Stack {
            stack,
            frames: ledger.frames(stack),
            allocs: slot.allocs,
            alloc_bytes: slot.alloc_bytes,
            graphs: slot.graphs,
            execs: slot.execs,
        }),
        allocations: Lazy::of(snapshot.allocs.iter().collect(), |alloc| Alloc::of(ledger, alloc)),
        graphs: Lazy::of(snapshot.graphs.iter().collect(), |graph| Graph::of(ledger, graph)),
        execs: Lazy::of(snapshot.execs.iter().collect(), |exec| Exec::of(ledger, exec)),
    }
}

impl Alloc {
    pub(super) fn of(ledger: &Ledger, alloc: &AllocSlot) -> Self {
        Self {
            address: alloc.addr,
            bytes: alloc.bytes,
            kind: AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
            time_unix_ns: real_ns(&ledger.snapshot.header, alloc.time_ns),
            age_ns: ledger.age(alloc.time_ns),
            serial: alloc.serial,
            tid: alloc.tid,
            tag: ledger.snapshot.text(alloc.tag).into_owned(),
            location: ledger.location(alloc),
            context: alloc.context,
            stream: alloc.stream,
            flags: Ledger::flags(alloc),
            stack: alloc.stack,
        }
    }
}

impl Graph {
    fn of(ledger: &Ledger, graph: &GraphSlot) -> Self {
        Self {
            handle: graph.handle,
            serial: graph.serial,
            nodes: graph.nodes,
            folded_bytes: graph.folded_bytes,
            host_bytes_estimated: graph.held_bytes(),
            instantiates: graph.instantiates,
            age_ns: ledger.age(graph.time_ns),
            stack: graph.stack,
        }
    }
}

impl Exec {
    fn of(ledger: &Ledger, exec: &ExecSlot) -> Self {
        Self {
            handle: exec.handle,
            serial: exec.serial,
            graph_serial: exec.graph_serial,
            state: execs::state_name(exec),
            pinned: execs::why_pinned(exec).map(Pinned::name),
            class: execs::class_name(exec),
            nodes: graphs::by_name(&exec.nodes.map(u64::from)),
            launches: exec.launches,
            updates: exec.updates,
            failed_updates: exec.failed_updates,
            retargets: exec.retargets,
            instantiations: exec.instantiations,
            evictions: exec.evictions,
            saved_ns: exec.saved_ns,
            source_bytes: exec.source_bytes,
            host_bytes_estimated: execs::held(exec).host_all(),
            device_bytes_estimated: execs::held(exec).device,
            real_bytes_estimated: exec.host_bytes.saturating_add(exec.device_bytes),
            age_ns: ledger.age(exec.time_ns),
            stack: exec.stack,
        }
    }
}
