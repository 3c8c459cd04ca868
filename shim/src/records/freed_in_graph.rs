//! `GPUMEM_FREED_IN_GRAPH`: memory that is freed while a live graph refers to it. If that graph is launched again, it
//! may work on memory that was reused for something else.

use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::EventKind;

/// The most events of one process. The counter goes on beyond it.
const MOST_EVENTS: u64 = 256;

/// Records that memory is about to be freed while a live graph refers to it. The memory's record is in this slot.
#[cold]
pub(crate) fn found(shim: &Shim, addr: u64, bytes: u64, slot: u32) {
    shim.count(counters::FREED_IN_GRAPH, 1);
    if shim.ledger.counter(counters::FREED_IN_GRAPH) > MOST_EVENTS {
        return;
    }
    let record = shim.ledger.allocs.read(slot).unwrap_or_default();
    shim.event_at(EventKind::FreedInGraph, (addr, bytes), record.stack, record.context);
}
