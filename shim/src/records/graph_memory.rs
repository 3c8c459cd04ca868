//! Records memory that graph nodes allocate. A node cannot be destroyed by itself: its record ends once both its graph
//! and the graph's exec are gone. A free of its address ends what a launch allocated, and the node stays.
//!
//! Memory that a launch allocated and the graph does not free outlives both (docs/decisions/drivers.md). The driver
//! knows an allocation at its address from the launch to the free. So the driver is asked once both are gone, and the
//! record then says that the memory was left.

use super::allocations::{self, Request, belongs_to, list};
use crate::call::Call;
use crate::process::clock;
use crate::records::registry::allocations::Entry;
use crate::records::registry::graph_memory::{GraphMemory, Nodes};
use crate::records::registry::live::Class;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ContextRef};
use gpumem_wire::location::Location;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

/// Locks the nodes. `None`: no graph of the process allocates.
fn inner(shim: &Shim) -> Option<MutexGuard<'_, GraphMemory>> {
    let any = shim.registry.memory_nodes.load(Relaxed);
    any.then(|| shim.registry.graph_memory.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Records a node that allocates at an address.
pub(crate) fn added(shim: &'static Shim, call: &Call, request: &Request, addr: u64) {
    let Request { kind, bytes, extra, stream, .. } = *request;
    let (context, _) = belongs_to(shim, call.vendor, request.location);
    let stream = if stream == 0 { 0 } else { shim.registry.streams.reference(call.vendor, stream) };
    let (location, time_ns) = (Location::Nowhere.word(), clock::now_ns());
    let slot =
        AllocSlot { addr, bytes, time_ns, extra, stream, context, location, kind: kind as u8, ..Default::default() };
    let (entry, _) = list(shim, call, slot, kind);
    shim.registry.memory_nodes.store(true, Relaxed);
    let Some(mut inner) = inner(shim) else { return };
    // The driver gives out no address at which something is allocated.
    end_left(shim, &mut inner, addr);
    let is_listed = shim.registry.graphs.get(Class::Graph, extra).is_some();
    *inner.addresses.entry(addr).or_default() += 1;
    let nodes = inner.graphs.entry(extra).or_default();
    nodes.in_capture |= !is_listed && shim.registry.streams.capturing() > 0;
    nodes.all.push((addr, entry));
}

/// Records a free at an address without a record of its own. Returns true if a graph node allocates there: then the
/// free ends what a launch has allocated. During a capture the free may have become a node, and has freed nothing yet.
pub(crate) fn freed(shim: &Shim, addr: u64) -> bool {
    let Some(mut inner) = inner(shim) else { return false };
    let is_there = inner.addresses.contains_key(&addr);
    if is_there && shim.registry.streams.capturing() == 0 {
        end_left(shim, &mut inner, addr);
    }
    is_there
}

/// Ends the record of memory that a launch left at an address.
fn end_left(shim: &Shim, inner: &mut GraphMemory, addr: u64) {
    if let Some(at) = inner.left.iter().position(|&(left, _)| left == addr)
        && let Some(left) = inner.left.remove(at)
    {
        end_node(shim, inner, left);
    }
}

/// Records that a graph with such nodes was instantiated.
pub(crate) fn instantiated(shim: &Shim, graph: u64, exec: u64) {
    shim.registry.memory_nodes.store(true, Relaxed);
    if let Some(nodes) = inner(shim).as_mut().and_then(|inner| inner.graphs.get_mut(&graph)) {
        nodes.exec = exec;
    }
}

/// Records the end of a capture. `given`: the driver's graph and the program's handle for it. A failed capture leaves
/// no graph, and no call tells which one failed, so its nodes end with the last capture of the process.
pub(crate) fn capture_ended(shim: &Shim, given: Option<(u64, u64)>) {
    let Some(mut inner) = inner(shim) else { return };
    if let Some((library, graph)) = given {
        if library != graph
            && let Some(nodes) = inner.graphs.remove(&library)
        {
            nodes.all.iter().for_each(|(_, entry)| allocations::set_graph(shim, entry.slot, graph));
            inner.graphs.insert(graph, nodes);
        }
        if let Some(nodes) = inner.graphs.get_mut(&graph) {
            nodes.in_capture = false;
        }
    }
    if shim.registry.streams.capturing() == 0 {
        let failed: Vec<Nodes> = inner.graphs.extract_if(|_, nodes| nodes.in_capture).map(|(_, nodes)| nodes).collect();
        failed.into_iter().for_each(|nodes| end(shim, &mut inner, nodes));
    }
}

/// Records that a graph with such nodes became part of another. It cannot be copied, so it was moved.
pub(crate) fn moved(shim: &Shim, child: u64, parent: u64) {
    let Some(mut inner) = inner(shim) else { return };
    let Some(nodes) = inner.graphs.remove(&child) else { return };
    nodes.all.iter().for_each(|(_, entry)| allocations::set_graph(shim, entry.slot, parent));
    inner.graphs.entry(parent).or_default().all.extend(nodes.all);
}

/// Removes a graph before its real destroy: another thread may get its handle at once.
pub(crate) fn graph_going(shim: &Shim, graph: u64) -> Option<Nodes> {
    inner(shim)?.graphs.remove(&graph)
}

/// Records that a graph's real destroy returned. `is_held` asks the driver if something is allocated at an address.
pub(crate) fn graph_gone(shim: &Shim, graph: u64, nodes: Nodes, succeeded: bool, is_held: impl Fn(u64) -> bool) {
    let Some(mut inner) = inner(shim) else { return };
    match succeeded {
        false => drop(inner.graphs.insert(graph, nodes)),
        true if shim.registry.execs.get(nodes.exec).is_some() => drop(inner.execs.insert(nodes.exec, nodes)),
        true => leave(shim, inner, nodes, is_held),
    }
}

/// Records that an exec is gone. `is_held`: as in [`graph_gone`].
pub(crate) fn exec_gone(shim: &Shim, exec: u64, is_held: impl Fn(u64) -> bool) {
    let Some(mut inner) = inner(shim) else { return };
    if let Some(nodes) = inner.execs.remove(&exec) {
        return leave(shim, inner, nodes, is_held);
    }
    inner.graphs.values_mut().filter(|nodes| nodes.exec == exec).for_each(|nodes| nodes.exec = 0);
}

/// Number of left records that are checked again whenever a graph goes: another graph may free that memory.
const LOOKS: usize = 32;

/// Handles nodes whose graph and exec are gone: marks memory that launches left, and ends the other records.
fn leave(shim: &Shim, mut inner: MutexGuard<'_, GraphMemory>, nodes: Nodes, is_held: impl Fn(u64) -> bool) {
    let again = LOOKS.min(inner.left.len());
    let mut asked: Vec<(u64, Entry)> = inner.left.drain(..again).collect();
    for node in nodes.all {
        // The last node at an address stands for all of them. If another graph has a node there, the allocated memory
        // may be that graph's.
        match inner.addresses.get(&node.0) {
            Some(1) => asked.push(node),
            _ => end_node(shim, &mut inner, node),
        }
    }
    // No query is made during a capture: the next graph that goes checks these, too.
    if shim.registry.streams.capturing() > 0 {
        return inner.left.extend(asked);
    }
    // No lock is held over a driver call. A free that comes meanwhile finds nothing to end; the next look ends it.
    drop(inner);
    let (held, gone): (Vec<_>, Vec<_>) = asked.into_iter().partition(|&(addr, _)| is_held(addr));
    let Some(mut inner) = self::inner(shim) else { return };
    gone.into_iter().for_each(|node| end_node(shim, &mut inner, node));
    inner.left.extend(held.into_iter().map(|(addr, entry)| match entry.kind {
        AllocKind::GraphLeft => (addr, entry),
        _ => (addr, allocations::leave(shim, entry)),
    }));
}

/// Ends everything that belongs to a context.
pub(crate) fn end_with(shim: &Shim, context: ContextRef) {
    let Some(mut inner) = inner(shim) else { return };
    let GraphMemory { graphs, execs, left, .. } = &mut *inner;
    let of_context =
        |nodes: &mut Nodes| nodes.all.extract_if(.., |(_, entry)| entry.context == context).collect::<Vec<_>>();
    let mut all: Vec<_> = graphs.values_mut().chain(execs.values_mut()).flat_map(of_context).collect();
    let (ends, stays) = left.drain(..).partition::<Vec<_>, _>(|(_, entry)| entry.context == context);
    left.extend(stays);
    all.extend(ends);
    end(shim, &mut inner, Nodes { all, ..Nodes::default() });
}

fn end(shim: &Shim, inner: &mut GraphMemory, nodes: Nodes) {
    nodes.all.into_iter().for_each(|node| end_node(shim, inner, node));
}

fn end_node(shim: &Shim, inner: &mut GraphMemory, (addr, entry): (u64, Entry)) {
    if let Some(count) = inner.addresses.get_mut(&addr) {
        *count -= 1;
        if *count == 0 {
            inner.addresses.remove(&addr);
        }
    }
    allocations::ended(shim, entry);
}
