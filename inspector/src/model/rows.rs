//! Allocations, graphs and execs one by one, as in JSON.

use super::{Ledger, execs, graphs};
use crate::source::liveness::real_ns;
use gpumem_wire::kinds::{AllocKind, GraphOrigin, Pinned};
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(crate) struct Alloc {
    pub address: u64,
    pub bytes: u64,
    pub kind: &'static str,
    pub time_unix_ns: u64,
    pub age_ns: u64,
    pub serial: u64,
    pub tid: u32,
    pub tag: String,
    /// Location; empty if it takes no memory of its own.
    pub location: String,
    pub context: u16,
    pub stream: u16,
    pub flags: Vec<&'static str>,
}

#[derive(Serialize)]
pub(crate) struct Graph {
    pub handle: u64,
    pub serial: u64,
    pub origin: &'static str,
    pub nodes: u64,
    /// 0 if the driver holds it.
    pub folded_bytes: u64,
    pub host_bytes_estimated: u64,
    pub instantiates: u64,
    pub age_ns: u64,
    pub last_used_age_ns: Option<u64>,
    pub tid: u32,
    pub tag: String,
    pub context: u16,
}

#[derive(Serialize)]
pub(crate) struct Exec {
    pub handle: u64,
    pub serial: u64,
    pub graph_serial: u64,
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_why: Option<&'static str>,
    /// Sixteen hexadecimal digits; empty without a class.
    pub class: String,
    pub flags: u64,
    pub nodes_total: u64,
    pub nodes: BTreeMap<&'static str, u64>,
    pub launches: u64,
    pub last_launch_age_ns: Option<u64>,
    pub updates: u64,
    pub failed_updates: u64,
    pub node_sets: u64,
    pub instantiate_ns: u64,
    /// Absent if the exec is not under the graph cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    pub retargets: u64,
    pub instantiations: u64,
    pub evictions: u64,
    pub saved_ns: u64,
    pub source_bytes: u64,
    pub host_bytes_estimated: u64,
    pub device_bytes_estimated: u64,
    /// Host and device bytes of a real exec for it, even if it has none now.
    pub real_bytes_estimated: u64,
    pub age_ns: u64,
    pub tid: u32,
    pub tag: String,
    pub context: u16,
}

impl Alloc {
    pub(crate) fn of(ledger: &Ledger, alloc: &AllocSlot) -> Self {
        Self {
            address: alloc.addr,
            bytes: alloc.bytes,
            kind: AllocKind::name_of(alloc.kind),
            time_unix_ns: real_ns(&ledger.snapshot.header, alloc.time_ns),
            age_ns: ledger.age(alloc.time_ns),
            serial: alloc.serial,
            tid: alloc.tid,
            tag: ledger.snapshot.text(alloc.tag).into_owned(),
            location: ledger.location(alloc),
            context: alloc.context,
            stream: alloc.stream,
            flags: Ledger::flags(alloc),
        }
    }
}

impl Graph {
    pub(crate) fn of(ledger: &Ledger, graph: &GraphSlot) -> Self {
        Self {
            handle: graph.handle,
            serial: graph.serial,
            origin: GraphOrigin::name_of(graph.origin),
            nodes: graph.nodes,
            folded_bytes: graph.folded_bytes,
            host_bytes_estimated: graph.held_bytes(),
            instantiates: graph.instantiates,
            age_ns: ledger.age(graph.time_ns),
            last_used_age_ns: ledger.age_of(graph.last_used_ns),
            tid: graph.tid,
            tag: ledger.snapshot.text(graph.tag).into_owned(),
            context: graph.context,
        }
    }
}

impl Exec {
    pub(crate) fn of(ledger: &Ledger, exec: &ExecSlot) -> Self {
        Self {
            handle: exec.handle,
            serial: exec.serial,
            graph_serial: exec.graph_serial,
            state: execs::state_name(exec),
            pinned: execs::why_pinned(exec).map(Pinned::name),
            pinned_why: execs::why_pinned(exec).map(Pinned::why),
            class: execs::class_name(exec),
            flags: exec.flags,
            nodes_total: u64::from(exec.nodes_total),
            nodes: graphs::by_name(&exec.nodes.map(u64::from)),
            launches: exec.launches,
            last_launch_age_ns: ledger.age_of(exec.last_launch_ns),
            updates: exec.updates,
            failed_updates: exec.failed_updates,
            node_sets: exec.node_sets,
            instantiate_ns: exec.instantiate_ns,
            hits: execs::hits(exec),
            retargets: exec.retargets,
            instantiations: exec.instantiations,
            evictions: exec.evictions,
            saved_ns: exec.saved_ns,
            source_bytes: exec.source_bytes,
            host_bytes_estimated: execs::held(exec).host_all(),
            device_bytes_estimated: execs::held(exec).device,
            real_bytes_estimated: exec.host_bytes.saturating_add(exec.device_bytes),
            age_ns: ledger.age(exec.time_ns),
            tid: exec.tid,
            tag: ledger.snapshot.text(exec.tag).into_owned(),
            context: exec.context,
        }
    }
}
