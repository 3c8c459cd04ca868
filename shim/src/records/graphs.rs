//! Records graphs.

use super::contexts;
use crate::call::Call;
use crate::process::clock;
use crate::records::registry::estimate::GRAPH_HOST_PER_NODE;
use crate::records::registry::graphs::GraphEntry;
use crate::records::registry::live::Class;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use gpumem_abi::types::Graph;
use gpumem_wire::counters;
use gpumem_wire::kinds::{ExecState, GraphOrigin};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Returns a live graph's serial.
#[inline(always)]
pub(crate) fn serial(shim: &Shim, graph: u64) -> Option<u64> {
    shim.registry.graphs.get(Class::Graph, graph).map(|entry| entry.serial)
}

/// Records a new graph.
pub(crate) fn made(shim: &'static Shim, call: &Call, handle: Graph, nodes: u64, origin: GraphOrigin) {
    let key = handle as u64;
    if origin == GraphOrigin::Captured && shim.registry.graphs.get(Class::Graph, key).is_some() {
        return; // captured into the program's own graph
    }
    shim.count(counters::GRAPHS_CREATED, 1);
    let stack = shim.site(call.site(), Made::Graph);
    let serial = shim.registry.serial();
    let slot = shim.place(
        &shim.ledger.graphs,
        GraphSlot {
            stack,
            handle: key,
            time_ns: clock::now_ns(),
            serial,
            nodes,
            host_bytes: nodes * GRAPH_HOST_PER_NODE,
            tid: shim.tid(),
            tag: shim.tag(),
            context: contexts::current(shim, call.vendor),
            origin: origin as u8,
            ..Default::default()
        },
    );
    if let Some(old) = shim.registry.graphs.insert(Class::Graph, key, GraphEntry { slot, serial }) {
        ended(shim, old);
    }
}

/// Removes a graph. Call it before the real destroy, and [`stays`] if that fails.
pub(crate) fn going(shim: &Shim, handle: Graph) -> Option<GraphEntry> {
    shim.registry.graphs.remove(Class::Graph, handle as u64)
}

/// Records that the real destroy succeeded.
pub(crate) fn ended(shim: &Shim, entry: GraphEntry) {
    shim.ledger.graphs.clear_if_any(entry.slot);
    shim.count(counters::GRAPHS_DESTROYED, 1);
}

/// Restores a graph whose real destroy failed.
pub(crate) fn stays(shim: &Shim, handle: Graph, entry: GraphEntry) {
    shim.registry.graphs.insert(Class::Graph, handle as u64, entry);
}

/// Records the nodes of a graph that the program built node by node.
pub(super) fn note_nodes(shim: &Shim, graph: GraphEntry, nodes: u64) {
    let table = &shim.ledger.graphs;
    table.field(graph.slot, offset_of!(GraphSlot, instantiates)).fetch_add(1, Relaxed);
    table.field(graph.slot, offset_of!(GraphSlot, last_used_ns)).store(clock::now_ns(), Relaxed);
    if let Some(slot) = table.read(graph.slot).filter(|slot| slot.serial == graph.serial && slot.nodes != nodes) {
        table.write(graph.slot, GraphSlot { nodes, host_bytes: nodes * GRAPH_HOST_PER_NODE, ..slot });
    }
}

/// Returns the host bytes of all graphs and execs now: of graphs or their recipes, of real execs including parked ones,
/// and of sources. Views add up the same numbers row by row.
pub(crate) fn host_bytes(shim: &Shim) -> u64 {
    let ledger = &shim.ledger;
    let balance = |up, down| ledger.counter(up).saturating_sub(ledger.counter(down));
    let (mut graphs, mut native) = (0_u64, 0_u64);
    ledger.graphs.each(|graph| graphs = graphs.saturating_add(graph.held_bytes()));
    // These rows are the program's own execs. The graph cache counts its own execs.
    ledger.execs.each(|exec| {
        if exec.exec_state() == Some(ExecState::Native) {
            native = native.saturating_add(exec.host_bytes);
        }
    });
    let contexts = (0..ledger.contexts.handed_out()).filter_map(|slot| ledger.contexts.read(slot as u32));
    let device = contexts.fold(0_u64, |sum, context| sum.saturating_add(context.exec_bytes));
    let cached = balance(counters::REAL_BYTES_ADDED, counters::REAL_BYTES_REMOVED).saturating_sub(device);
    let sources = balance(counters::SOURCE_BYTES_ADDED, counters::SOURCE_BYTES_REMOVED);
    [native, cached, sources].into_iter().fold(graphs, u64::saturating_add)
}
