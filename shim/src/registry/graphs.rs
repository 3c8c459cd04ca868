//! Live graphs and executable graphs.

use super::estimate::{GRAPH_HOST_PER_NODE, exec_bytes};
use super::live::Class;
use super::sites::Made;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::shim::Shim;
use gpumem_abi::types::{Graph, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState, GraphOrigin, NodeKind};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

/// What is needed to find a graph's record.
#[derive(Clone, Copy, Debug)]
pub struct GraphEntry {
    pub slot: u32,
    pub serial: u64,
}

/// What is needed to find an exec's record.
#[derive(Clone, Copy, Debug)]
pub struct ExecEntry {
    pub slot: u32,
    pub context: ContextRef,
}

/// How an update of an exec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    Whole { status: Status },
    Node,
}

impl Shim {
    /// A graph came to be.
    pub fn graph_made(&'static self, call: &Call, handle: Graph, nodes: u64, origin: GraphOrigin) {
        let key = handle as u64;
        if origin == GraphOrigin::Captured && self.registry.graphs.get(Class::Graph, key).is_some() {
            return; // captured into a graph of the program's own
        }
        self.count(counters::GRAPHS_CREATED, 1);
        let stack = self.site(call.site(), Made::Graph);
        let serial = self.registry.serial();
        let slot = self.place(
            &self.ledger.graphs,
            GraphSlot {
                stack,
                handle: key,
                time_ns: clock::now_ns(),
                serial,
                nodes,
                host_bytes: nodes * GRAPH_HOST_PER_NODE,
                tid: self.tid(),
                tag: self.tag(),
                context: self.current_context(call.vendor),
                origin: origin as u8,
                ..Default::default()
            },
        );
        if let Some(old) = self.registry.graphs.insert(Class::Graph, key, GraphEntry { slot, serial }) {
            self.graph_ended(old);
        }
    }

    /// A graph is gone; call before the real destroy, and [`Shim::graph_stays`] if that fails.
    pub fn graph_going(&self, handle: Graph) -> Option<GraphEntry> {
        self.registry.graphs.remove(Class::Graph, handle as u64)
    }

    /// The real destroy succeeded.
    pub fn graph_ended(&self, entry: GraphEntry) {
        self.ledger.graphs.clear_if_any(entry.slot);
        self.count(counters::GRAPHS_DESTROYED, 1);
    }

    /// The real destroy failed.
    pub fn graph_stays(&self, handle: Graph, entry: GraphEntry) {
        self.registry.graphs.insert(Class::Graph, handle as u64, entry);
    }

    /// An exec was instantiated, in `took_ns`.
    pub fn instantiated(
        &'static self,
        call: &Call,
        exec: u64,
        graph: Graph,
        nodes: [u32; 16],
        flags: u64,
        took_ns: u64,
    ) {
        if nodes[NodeKind::MemAlloc as usize] > 0 {
            self.registry.memory_nodes.store(true, Relaxed);
        }
        self.look_again(call.vendor, self.current_context(call.vendor), clock::now_ns());
        let exec = ExecSlot { handle: exec, instantiate_ns: took_ns, flags, nodes, ..Default::default() };
        self.list_exec(call, graph, exec);
    }

    /// Counts and lists an exec of this graph: the rest of its slot follows from the call; the slot's index.
    pub fn list_exec(&'static self, call: &Call, graph: Graph, exec: ExecSlot) -> u32 {
        let total: u64 = exec.nodes.iter().map(|&n| u64::from(n)).sum();
        let (host_bytes, device_bytes) = exec_bytes(&exec.nodes);
        self.count(counters::EXECS_CREATED, 1);
        self.count(counters::INSTANTIATE_NS, exec.instantiate_ns);
        self.count(counters::NODES_INSTANTIATED, total);
        let stack = self.site(call.site(), Made::Exec);
        let context = self.current_context(call.vendor);
        let source = self.registry.graphs.get(Class::Graph, graph as u64);
        if let Some(source) = source.filter(|source| source.slot != NO_SLOT) {
            self.note_nodes(source, total);
        }
        let slot = self.place(
            &self.ledger.execs,
            ExecSlot {
                stack,
                time_ns: clock::now_ns(),
                serial: self.registry.serial(),
                graph_serial: source.map_or(0, |source| source.serial),
                host_bytes,
                device_bytes,
                tid: self.tid(),
                tag: self.tag(),
                context,
                nodes_total: u32::try_from(total).unwrap_or(u32::MAX),
                ..exec
            },
        );
        if let Some(old) = self.registry.execs.insert(Class::Exec, exec.handle, ExecEntry { slot, context }) {
            self.exec_ended(old);
        }
        slot
    }

    /// A graph that the program built by hand has its nodes by now.
    fn note_nodes(&self, graph: GraphEntry, nodes: u64) {
        let table = &self.ledger.graphs;
        table.field(graph.slot, offset_of!(GraphSlot, instantiates)).fetch_add(1, Relaxed);
        table.field(graph.slot, offset_of!(GraphSlot, last_used_ns)).store(clock::now_ns(), Relaxed);
        if let Some(slot) = table.read(graph.slot).filter(|slot| slot.serial == graph.serial && slot.nodes != nodes) {
            table.write(graph.slot, GraphSlot { nodes, host_bytes: nodes * GRAPH_HOST_PER_NODE, ..slot });
        }
    }

    /// An instantiate failed.
    pub fn instantiate_failed(&self, call: &Call, graph: Graph, status: Status) {
        self.count(counters::INSTANTIATE_FAILURES, 1);
        let stack = self.site(call.site(), Made::Stream);
        self.event(EventKind::InstantiateFailed, |event| {
            event.a = graph as u64;
            event.code = status as i32;
            event.stack = stack;
        });
    }

    /// A launch returned.
    #[inline]
    pub fn launched(&self, exec: u64, status: Status) {
        if status != 0 {
            self.count(counters::LAUNCH_FAILURES, 1);
            return;
        }
        self.count(counters::LAUNCHES, 1);
        if let Some(entry) = self.registry.execs.get(Class::Exec, exec).filter(|entry| entry.slot != NO_SLOT) {
            let field = |offset| self.ledger.execs.field(entry.slot, offset);
            field(offset_of!(ExecSlot, launches)).fetch_add(1, Relaxed);
            field(offset_of!(ExecSlot, last_launch_ns)).store(clock::now_ns(), Relaxed);
        }
    }

    /// An exec was updated, whole or in one node.
    pub fn updated(&self, exec: u64, update: Update) {
        let entry = self.registry.execs.get(Class::Exec, exec).filter(|entry| entry.slot != NO_SLOT);
        let add = |offset| {
            if let Some(entry) = entry {
                self.ledger.execs.field(entry.slot, offset).fetch_add(1, Relaxed);
                let last = self.ledger.execs.field(entry.slot, offset_of!(ExecSlot, last_update_ns));
                last.store(clock::now_ns(), Relaxed);
            }
        };
        match update {
            Update::Node => {
                self.count(counters::NODE_SETS, 1);
                add(offset_of!(ExecSlot, node_sets));
            }
            Update::Whole { status: 0, .. } => {
                self.count(counters::UPDATES, 1);
                add(offset_of!(ExecSlot, updates));
            }
            // No event: programs that update and instantiate anew on failure do so thousands of times.
            Update::Whole { .. } => {
                self.count(counters::UPDATE_FAILURES, 1);
                add(offset_of!(ExecSlot, failed_updates));
            }
        }
    }

    /// An exec is gone; call before the real destroy, and [`Shim::exec_stays`] if that fails.
    pub fn exec_going(&self, exec: u64) -> Option<ExecEntry> {
        self.registry.execs.remove(Class::Exec, exec)
    }

    /// The real destroy succeeded.
    pub fn exec_ended(&self, entry: ExecEntry) {
        if entry.slot != NO_SLOT {
            let state = self.ledger.execs.field(entry.slot, offset_of!(ExecSlot, state)).load(Relaxed);
            self.count(counters::PINNED_ENDED, u64::from(state as u8 == ExecState::Native as u8));
        }
        self.ledger.execs.clear_if_any(entry.slot);
        self.count(counters::EXECS_DESTROYED, 1);
    }

    /// The real destroy failed.
    pub fn exec_stays(&self, exec: u64, entry: ExecEntry) {
        self.registry.execs.insert(Class::Exec, exec, entry);
    }

    /// All execs of a context are gone with it.
    pub fn end_execs_of(&self, context: ContextRef) {
        for entry in self.registry.execs.drain(|entry| entry.context == context) {
            self.exec_ended(entry);
        }
    }

    /// Whether a context has execs.
    pub fn has_execs_of(&self, context: ContextRef) -> bool {
        self.registry.execs.any(|entry| entry.context == context)
    }
}
