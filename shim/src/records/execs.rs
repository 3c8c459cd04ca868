//! Records executable graphs.

use super::{contexts, graph_memory, graphs};
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::{clock, threads};
use crate::records::registry::estimate::exec_bytes;
use crate::records::registry::graphs::ExecEntry;
use crate::records::registry::live::Class;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use gpumem_abi::types::{Graph, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState, NodeKind};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Kind and result of an exec's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Whole { status: Status },
    Node,
}

/// Records an exec that was instantiated in `took_ns`.
pub(crate) fn instantiated(
    shim: &'static Shim,
    call: &Call,
    exec: u64,
    graph: Graph,
    nodes: [u32; 16],
    flags: u64,
    took_ns: u64,
) {
    if nodes[NodeKind::MemAlloc as usize] > 0 {
        graph_memory::instantiated(shim, graph as u64, exec);
    }
    contexts::look_again(shim, call.vendor, contexts::current(shim, call.vendor), clock::now_ns());
    let exec = ExecSlot { handle: exec, instantiate_ns: took_ns, flags, nodes, ..Default::default() };
    list(shim, call, graph, exec);
}

/// Counts and lists an exec of this graph; the rest of its slot follows from the call. Returns the slot's index.
pub(crate) fn list(shim: &'static Shim, call: &Call, graph: Graph, exec: ExecSlot) -> u32 {
    let total: u64 = exec.nodes.iter().map(|&n| u64::from(n)).sum();
    let (host_bytes, device_bytes) = exec_bytes(&exec.nodes);
    shim.count(counters::EXECS_CREATED, 1);
    shim.count(counters::INSTANTIATE_NS, exec.instantiate_ns);
    shim.count(counters::NODES_INSTANTIATED, total);
    let stack = shim.site(call.site(), Made::Exec);
    let context = contexts::current(shim, call.vendor);
    let source = shim.registry.graphs.get(Class::Graph, graph as u64);
    if let Some(source) = source.filter(|source| source.slot != NO_SLOT) {
        graphs::note_nodes(shim, source, total);
    }
    let slot = shim.place(
        &shim.ledger.execs,
        ExecSlot {
            stack,
            time_ns: clock::now_ns(),
            serial: serial(shim),
            graph_serial: source.map_or(0, |source| source.serial),
            host_bytes,
            device_bytes,
            tid: shim.tid(),
            tag: shim.tag(),
            context,
            nodes_total: u32::try_from(total).unwrap_or(u32::MAX),
            ..exec
        },
    );
    if let Some(old) = shim.registry.execs.insert(exec.handle, ExecEntry { slot, context }) {
        ended(shim, old);
    }
    slot
}

/// Returns a new exec's number. Later allocations of this thread have higher ones.
fn serial(shim: &Shim) -> u64 {
    threads::local(|local| local.ends_serials());
    shim.registry.serial()
}

/// Records a failed instantiate.
pub(crate) fn instantiate_failed(shim: &Shim, call: &Call, graph: Graph, status: Status) {
    shim.count(counters::INSTANTIATE_FAILURES, 1);
    let stack = shim.site(call.site(), Made::Stream);
    let failure = EventSlot { a: graph as u64, code: status as i32, stack, ..Default::default() };
    shim.event(EventKind::InstantiateFailed, failure);
}

/// Records a launch that returned.
#[inline]
pub(crate) fn launched(shim: &Shim, exec: u64, status: Status) {
    if status != 0 {
        shim.count(counters::LAUNCH_FAILURES, 1);
        return;
    }
    shim.count(counters::LAUNCHES, 1);
    if let Some(entry) = shim.registry.execs.get(exec).filter(|entry| entry.slot != NO_SLOT) {
        let field = |offset| shim.ledger.execs.field(entry.slot, offset);
        field(offset_of!(ExecSlot, launches)).fetch_add(1, Relaxed);
        field(offset_of!(ExecSlot, last_launch_ns)).store(clock::now_ns(), Relaxed);
    }
}

/// Records an update of an exec, whole or in one node.
pub(crate) fn updated(shim: &Shim, exec: u64, update: Update) {
    let entry = shim.registry.execs.get(exec).filter(|entry| entry.slot != NO_SLOT);
    let add = |offset| {
        if let Some(entry) = entry {
            shim.ledger.execs.field(entry.slot, offset).fetch_add(1, Relaxed);
            let last = shim.ledger.execs.field(entry.slot, offset_of!(ExecSlot, last_update_ns));
            last.store(clock::now_ns(), Relaxed);
        }
    };
    match update {
        Update::Node => {
            shim.count(counters::NODE_SETS, 1);
            add(offset_of!(ExecSlot, node_sets));
        }
        Update::Whole { status: 0, .. } => {
            shim.count(counters::UPDATES, 1);
            add(offset_of!(ExecSlot, updates));
        }
        // No event: programs that update, and instantiate anew on failure, do so thousands of times.
        Update::Whole { .. } => {
            shim.count(counters::UPDATE_FAILURES, 1);
            add(offset_of!(ExecSlot, failed_updates));
        }
    }
}

/// Removes an exec. Call it before the real destroy, and [`stays`] if that fails.
pub(crate) fn going(shim: &Shim, exec: u64) -> Option<ExecEntry> {
    shim.registry.execs.remove(exec)
}

/// Records that the real destroy succeeded.
pub(crate) fn ended(shim: &Shim, entry: ExecEntry) {
    if entry.slot != NO_SLOT {
        let state = shim.ledger.execs.field(entry.slot, offset_of!(ExecSlot, state)).load(Relaxed);
        shim.count(counters::PINNED_ENDED, u64::from(state as u8 == ExecState::Native as u8));
    }
    shim.ledger.execs.clear_if_any(entry.slot);
    shim.count(counters::EXECS_DESTROYED, 1);
}

/// Restores an exec whose real destroy failed.
pub(crate) fn stays(shim: &Shim, exec: u64, entry: ExecEntry) {
    shim.registry.execs.insert(exec, entry);
}

/// Ends all execs of a context.
pub(crate) fn end_of(shim: &Shim, context: ContextRef) {
    for entry in shim.registry.execs.drain(|entry| entry.context == context) {
        ended(shim, entry);
    }
}

/// True if a context has execs.
pub(crate) fn any_of(shim: &Shim, context: ContextRef) -> bool {
    shim.registry.execs.any(|entry| entry.context == context)
}
