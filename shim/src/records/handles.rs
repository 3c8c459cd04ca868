//! Records the graph cache: handles and their real execs, and folded graphs.

use super::{contexts, execs};
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::records::registry::live::Class;
use crate::shim::Shim;
use gpumem_abi::types::{Graph, GraphExec, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, ExecState, Interception, Mode, Pinned, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A new handle.
pub(crate) struct MadeHandle {
    pub index: u32,
    pub handle: GraphExec,
    pub class: u64,
    pub counts: [u32; 16],
    pub source_bytes: u64,
    /// True if it has a real exec already, as the first handle of its class.
    pub resident: bool,
    /// Estimated instantiate time saved, ns.
    pub saved_ns: u64,
}

/// Checks that handles may be ours now.
///
/// # Errors
/// Why not.
pub(crate) fn may_be_virtual(shim: &Shim) -> Result<(), Pinned> {
    let header = shim.ledger.header();
    if header.mode().load(Relaxed) != Mode::Active as u32 {
        return Err(Pinned::RecordOnly);
    }
    match header.interception().load(Relaxed) == Interception::Complete as u32 {
        true => Ok(()),
        false => Err(Pinned::Interception),
    }
}

/// Records a new handle of ours.
pub(crate) fn made(shim: &'static Shim, call: &Call, made: &MadeHandle, graph: Graph, flags: u64, took_ns: u64) -> u32 {
    shim.count(counters::HANDLES_MADE, 1);
    shim.count(counters::SAVED_NS, made.saved_ns);
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
    let slot = execs::list(shim, call, graph, exec);
    source_is(shim, slot, made.source_bytes);
    slot
}

#[inline(always)]
fn exec_field(shim: &Shim, slot: u32, offset: usize) -> Option<&AtomicU64> {
    (slot != NO_SLOT).then(|| shim.ledger.execs.field(slot, offset))
}

fn add_to_exec(shim: &Shim, slot: u32, offset: usize, n: u64) {
    if let Some(field) = exec_field(shim, slot, offset) {
        field.fetch_add(n, Relaxed);
    }
}

fn set_exec(shim: &Shim, slot: u32, offset: usize, value: u64) {
    if let Some(field) = exec_field(shim, slot, offset) {
        field.store(value, Relaxed);
    }
}

fn exec_is(shim: &Shim, slot: u32, state: ExecState, pinned: Pinned) {
    set_exec(shim, slot, offset_of!(ExecSlot, state), exec_state(state, pinned));
}

/// Records that a handle has a real exec now.
pub(crate) fn resident(shim: &Shim, slot: u32) {
    exec_is(shim, slot, ExecState::Resident, Pinned::None);
}

/// Records that a handle lost its real exec.
pub(crate) fn left(shim: &Shim, slot: u32) {
    exec_is(shim, slot, ExecState::Folded, Pinned::None);
    add_to_exec(shim, slot, offset_of!(ExecSlot, evictions), 1);
}

/// Records that a real exec was instantiated for a handle.
pub(crate) fn instantiated(shim: &Shim, slot: u32) {
    add_to_exec(shim, slot, offset_of!(ExecSlot, instantiations), 1);
}

/// Records a launch that found no exec with its handle's contents, and had one after `took_ns`.
pub(crate) fn missed(shim: &Shim, slot: u32, took_ns: u64) {
    shim.count(counters::MISS_NS, took_ns);
    if let Some(saved) = exec_field(shim, slot, offset_of!(ExecSlot, saved_ns)) {
        let _ = saved.fetch_update(Relaxed, Relaxed, |saved| Some(saved.saturating_sub(took_ns)));
    }
}

/// Records that a real exec was retargeted to a handle, in `took_ns` and with `set` node setters.
pub(crate) fn retargeted(shim: &Shim, slot: u32, took_ns: u64, set: u64, recycled: bool) {
    shim.count(counters::RETARGETS, 1);
    shim.count(counters::RETARGET_NS, took_ns);
    shim.count(counters::NODES_SET, set);
    shim.count(counters::RECYCLED, u64::from(recycled));
    add_to_exec(shim, slot, offset_of!(ExecSlot, retargets), 1);
}

/// Records a handle's new class.
pub(crate) fn class_is(shim: &Shim, slot: u32, class: u64) {
    if let Some(exec) = shim.ledger.execs.read(slot).filter(|exec| exec.class != class) {
        shim.ledger.execs.write(slot, ExecSlot { class, ..exec });
    }
}

/// Records that a handle's exec stays with it for good.
pub(crate) fn pinned(shim: &Shim, slot: u32, why: Pinned) {
    shim.count(counters::PINNED_MADE, 1);
    exec_is(shim, slot, ExecState::Native, why);
    source_is(shim, slot, 0);
}

/// Records that an exec is the library's own, and why.
pub(crate) fn native(shim: &Shim, exec: u64, why: Pinned) {
    shim.count(counters::PINNED_MADE, 1);
    if let Some(entry) = shim.registry.execs.get(exec) {
        exec_is(shim, entry.slot, ExecState::Native, why);
    }
}

/// Records the bytes of a handle's source. A handle without a slot is not counted.
pub(crate) fn source_is(shim: &Shim, slot: u32, bytes: u64) {
    if let Some(field) = exec_field(shim, slot, offset_of!(ExecSlot, source_bytes)) {
        shim.count(counters::SOURCE_BYTES_ADDED, bytes);
        shim.count(counters::SOURCE_BYTES_REMOVED, field.swap(bytes, Relaxed));
    }
}

fn exec_bytes_of(shim: &Shim, vendor: Vendor, context: u64) -> Option<&AtomicU64> {
    contexts::field(shim, contexts::known(shim, vendor, context)?, offset_of!(ContextSlot, exec_bytes))
}

/// Records a new real exec of the cache, in a context.
pub(crate) fn real_made(shim: &Shim, vendor: Vendor, context: u64, bytes: (u64, u64)) {
    shim.count(counters::REAL_EXECS_MADE, 1);
    shim.count(counters::REAL_BYTES_ADDED, bytes.0 + bytes.1);
    if let Some(of_context) = exec_bytes_of(shim, vendor, context) {
        of_context.fetch_add(bytes.1, Relaxed);
    }
}

/// Records a real exec that left the cache.
pub(crate) fn real_ended(shim: &Shim, vendor: Vendor, context: u64, bytes: (u64, u64), evicted: bool) {
    shim.count(counters::REAL_EXECS_ENDED, 1);
    shim.count(counters::REAL_BYTES_REMOVED, bytes.0 + bytes.1);
    shim.count(counters::EVICTIONS, u64::from(evicted));
    if let Some(of_context) = exec_bytes_of(shim, vendor, context) {
        of_context.fetch_sub(bytes.1, Relaxed);
    }
}

/// Records that more than half of the launches find no exec and no room for one.
pub(crate) fn thrashes(shim: &Shim, by_count: bool, execs: u64, bytes: u64) {
    shim.count(counters::THRASHES, 1);
    let variable = if by_count { "GPUMEM_GRAPH_CACHE" } else { "GPUMEM_GRAPH_CACHE_BYTES" };
    let text = shim.ledger.texts.intern(variable.as_bytes());
    shim.event(EventKind::Thrash, EventSlot { a: execs, b: bytes, text, ..Default::default() });
}

/// Records a graph call that ran out of memory, and was repeated after `bytes` bytes were freed.
pub(crate) fn tried_again(shim: &Shim, bytes: u64, status: Status) {
    shim.event(EventKind::OomRetry, EventSlot { a: bytes, code: status as i32, ..Default::default() });
}

fn graph_field(shim: &Shim, graph: u64, offset: usize) -> Option<&AtomicU64> {
    let entry = shim.registry.graphs.get(Class::Graph, graph).filter(|entry| entry.slot != NO_SLOT)?;
    Some(shim.ledger.graphs.field(entry.slot, offset))
}

/// Records that a graph was folded into so many bytes, or unfolded (`None`).
pub(crate) fn graph_folded(shim: &Shim, graph: Graph, bytes: Option<u64>) {
    shim.count(if bytes.is_some() { counters::FOLDS } else { counters::UNFOLDS }, 1);
    if let Some(field) = graph_field(shim, graph as u64, offset_of!(GraphSlot, folded_bytes)) {
        field.store(bytes.map_or(0, |bytes| bytes.max(1)), Relaxed);
    }
}
