//! `GPUMEM_FREED_IN_GRAPH`: memory that is freed while a live graph refers to it. Launched again, that graph
//! works on what may be anyone's by then.

use crate::ledger::table::NO_SLOT;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::EventKind;

/// Events of one process; the counter counts on.
const MOST_EVENTS: u64 = 256;

impl Shim {
    /// A free looks in all live graphs for the memory that goes, whose record is in this slot.
    #[cold]
    pub fn looked_for_in_graphs(&self, addr: u64, bytes: u64, slot: u32) {
        if !self.above.graph_refers_to(&(addr..addr.saturating_add(bytes))) {
            return;
        }
        self.count(counters::FREED_IN_GRAPH, 1);
        if self.ledger.counter(counters::FREED_IN_GRAPH) > MOST_EVENTS {
            return;
        }
        let record = if slot == NO_SLOT { None } else { self.ledger.allocs.read(slot) };
        self.event(EventKind::FreedInGraph, |event| {
            event.a = addr;
            event.b = bytes;
            event.stack = record.map_or(0, |record| record.stack);
            event.context = record.map_or(0, |record| record.context);
        });
    }

    /// The same of a block of the pool, if one begins at this address.
    #[cold]
    pub fn pooled_freed(&self, addr: u64) {
        if let Some(block) = self.above.block_at(addr) {
            self.looked_for_in_graphs(addr, block.bytes, block.slot);
        }
    }
}
