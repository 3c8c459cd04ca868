//! What the graph cache does, for the books.

use super::live::Class;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::shim::Shim;
use gpumem_abi::types::{Graph, GraphExec};
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState, Interception, Mode, Pinned, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A handle that was made.
pub struct MadeHandle {
    pub index: u32,
    pub handle: GraphExec,
    pub class: u64,
    pub counts: [u32; 16],
    pub source_bytes: u64,
    /// Whether it has a real exec already: the first of its class.
    pub resident: bool,
    /// Estimated instantiate time saved, ns.
    pub saved_ns: u64,
}

impl Shim {
    /// Whether handles may be ours now.
    ///
    /// # Errors
    /// Why not.
    pub fn may_be_virtual(&self) -> Result<(), Pinned> {
        let header = self.ledger.header();
        if header.mode().load(Relaxed) != Mode::Active as u32 {
            return Err(Pinned::RecordOnly);
        }
        match header.interception().load(Relaxed) == Interception::Complete as u32 {
            true => Ok(()),
            false => Err(Pinned::Interception),
        }
    }

    /// Serial of a live graph.
    pub fn graph_serial(&self, graph: u64) -> Option<u64> {
        self.registry.graphs.get(Class::Graph, graph).map(|entry| entry.serial)
    }

    /// A handle of ours came to be.
    pub fn handle_made(&'static self, call: &Call, made: &MadeHandle, graph: Graph, flags: u64, took_ns: u64) -> u32 {
        self.count(counters::HANDLES_MADE, 1);
        self.count(counters::SAVED_NS, made.saved_ns);
        let state = if made.resident { ExecState::Resident } else { ExecState::Folded };
        let exec = ExecSlot {
            handle: made.handle as u64,
            class: made.class,
            instantiate_ns: took_ns,
            flags,
            nodes: made.counts,
            state: exec_state(state, Pinned::None),
            instantiations: u64::from(made.resident),
            saved_ns: made.saved_ns,
            ..Default::default()
        };
        let slot = self.list_exec(call, graph, exec);
        self.source_is(slot, made.source_bytes);
        slot
    }

    #[inline(always)]
    fn exec_field(&self, slot: u32, offset: usize) -> Option<&AtomicU64> {
        (slot != NO_SLOT).then(|| self.ledger.execs.field(slot, offset))
    }

    fn add_to_exec(&self, slot: u32, offset: usize, n: u64) {
        if let Some(field) = self.exec_field(slot, offset) {
            field.fetch_add(n, Relaxed);
        }
    }

    fn set_exec(&self, slot: u32, offset: usize, value: u64) {
        if let Some(field) = self.exec_field(slot, offset) {
            field.store(value, Relaxed);
        }
    }

    fn exec_is(&self, slot: u32, state: ExecState, pinned: Pinned) {
        self.set_exec(slot, offset_of!(ExecSlot, state), exec_state(state, pinned));
    }

    /// A handle has a real exec now.
    pub fn exec_resident(&self, slot: u32) {
        self.exec_is(slot, ExecState::Resident, Pinned::None);
    }

    /// A real exec was taken from a handle.
    pub fn exec_left(&self, slot: u32) {
        self.exec_is(slot, ExecState::Folded, Pinned::None);
        self.add_to_exec(slot, offset_of!(ExecSlot, evictions), 1);
    }

    /// A real exec was instantiated for a handle.
    pub fn exec_made_for(&self, slot: u32) {
        self.add_to_exec(slot, offset_of!(ExecSlot, instantiations), 1);
    }

    /// A launch found no exec that holds what its handle means, and had one after `took_ns`.
    pub fn missed(&self, slot: u32, took_ns: u64) {
        self.count(counters::MISS_NS, took_ns);
        if let Some(saved) = self.exec_field(slot, offset_of!(ExecSlot, saved_ns)) {
            let _ = saved.fetch_update(Relaxed, Relaxed, |saved| Some(saved.saturating_sub(took_ns)));
        }
    }

    /// A real exec was made to hold what a handle means, in `took_ns`, by `set` node setters.
    pub fn retargeted(&self, slot: u32, took_ns: u64, set: u64, recycled: bool) {
        self.count(counters::RETARGETS, 1);
        self.count(counters::RETARGET_NS, took_ns);
        self.count(counters::NODES_SET, set);
        self.count(counters::RECYCLED, u64::from(recycled));
        self.add_to_exec(slot, offset_of!(ExecSlot, retargets), 1);
    }

    /// A handle is of another class now.
    pub fn class_is(&self, slot: u32, class: u64) {
        let known = (slot != NO_SLOT).then(|| self.ledger.execs.read(slot)).flatten();
        if let Some(exec) = known.filter(|exec| exec.class != class) {
            self.ledger.execs.write(slot, ExecSlot { class, ..exec });
        }
    }

    /// A handle's exec is its own for ever.
    pub fn handle_pinned(&self, slot: u32, why: Pinned) {
        self.count(counters::PINNED_MADE, 1);
        self.exec_is(slot, ExecState::Native, why);
        self.source_is(slot, 0);
    }

    /// An exec is the library's own, and why.
    pub fn native_made(&self, exec: u64, why: Pinned) {
        self.count(counters::PINNED_MADE, 1);
        if let Some(entry) = self.registry.execs.get(Class::Exec, exec) {
            self.exec_is(entry.slot, ExecState::Native, why);
        }
    }

    /// What a handle's source takes now. What has no slot is not counted.
    pub fn source_is(&self, slot: u32, bytes: u64) {
        if let Some(field) = self.exec_field(slot, offset_of!(ExecSlot, source_bytes)) {
            self.count(counters::SOURCE_BYTES_ADDED, bytes);
            self.count(counters::SOURCE_BYTES_REMOVED, field.swap(bytes, Relaxed));
        }
    }

    fn exec_bytes_of(&self, vendor: Vendor, context: u64) -> Option<&AtomicU64> {
        let context = self.known_context(vendor, context)?;
        Some(self.ledger.contexts.field(u32::from(context).checked_sub(1)?, offset_of!(ContextSlot, exec_bytes)))
    }

    /// A real exec came to be under the cache, in a context.
    pub fn real_made(&self, vendor: Vendor, context: u64, bytes: (u64, u64)) {
        self.count(counters::REAL_EXECS_MADE, 1);
        self.count(counters::REAL_BYTES_ADDED, bytes.0 + bytes.1);
        if let Some(of_context) = self.exec_bytes_of(vendor, context) {
            of_context.fetch_add(bytes.1, Relaxed);
        }
    }

    /// A real exec left the cache.
    pub fn real_ended(&self, vendor: Vendor, context: u64, bytes: (u64, u64), evicted: bool) {
        self.count(counters::REAL_EXECS_ENDED, 1);
        self.count(counters::REAL_BYTES_REMOVED, bytes.0 + bytes.1);
        self.count(counters::EVICTIONS, u64::from(evicted));
        if let Some(of_context) = self.exec_bytes_of(vendor, context) {
            of_context.fetch_sub(bytes.1, Relaxed);
        }
    }

    /// More than half of the launches find no exec and no room for one.
    pub fn cache_thrashes(&self, by_count: bool, execs: u64, bytes: u64) {
        self.count(counters::THRASHES, 1);
        let variable = if by_count { "GPUMEM_GRAPH_CACHE" } else { "GPUMEM_GRAPH_CACHE_BYTES" };
        let text = self.ledger.texts.intern(variable.as_bytes());
        self.event(EventKind::Thrash, |event| {
            event.a = execs;
            event.b = bytes;
            event.text = text;
        });
    }

    fn graph_field(&self, graph: u64, offset: usize) -> Option<&AtomicU64> {
        let entry = self.registry.graphs.get(Class::Graph, graph).filter(|entry| entry.slot != NO_SLOT)?;
        Some(self.ledger.graphs.field(entry.slot, offset))
    }

    /// A graph is held as a recipe of this many bytes.
    pub fn graph_folded(&self, graph: Graph, bytes: u64) {
        self.count(counters::FOLDS, 1);
        if let Some(field) = self.graph_field(graph as u64, offset_of!(GraphSlot, folded_bytes)) {
            field.store(bytes.max(1), Relaxed);
        }
    }

    /// A graph was built from its recipe.
    pub fn graph_unfolded(&self, graph: Graph) {
        self.count(counters::UNFOLDS, 1);
        if let Some(field) = self.graph_field(graph as u64, offset_of!(GraphSlot, folded_bytes)) {
            field.store(0, Relaxed);
        }
    }
}
