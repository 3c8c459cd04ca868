//! The records of the pool's blocks. A block keeps its place in the ledger for as long as the pool has the block, so a
//! request served by an idle block needs no new place. The pool reports what happens; only this file writes it.

use crate::process::clock;
use crate::process::threads::Local;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::layout::AllocSlot;
use gpumem_wire::location::Tally;

/// Writes a live block's record, for this thread, which adds the rest of it.
#[inline(always)]
pub(crate) fn write(shim: &Shim, slot: u32, block: AllocSlot, (local, tid): (&Local, u32)) {
    shim.ledger.allocs.write(
        slot,
        AllocSlot {
            time_ns: clock::now_ns(),
            serial: local.serial(|count| shim.registry.serials(count)),
            tid,
            tag: shim.tag_of(local),
            ..block
        },
    );
}

/// Takes a place for a block. `None`: there is no room for a record.
#[cold]
pub(crate) fn place(shim: &Shim) -> Option<u32> {
    let slot = shim.ledger.allocs.take();
    if slot.is_none() {
        shim.count(counters::DROPPED_RECORDS, 1);
    }
    slot
}

/// Hides the record of a block that is no longer live. The block keeps its place.
#[inline(always)]
pub(crate) fn hide(shim: &Shim, slot: u32) {
    shim.ledger.allocs.hide_if_any(slot);
}

/// Frees a block's place.
pub(crate) fn end(shim: &Shim, slot: u32) {
    shim.ledger.allocs.clear_if_any(slot);
}

/// Counts a block that became live.
#[inline]
pub(crate) fn count_made(shim: &Shim, tally: Tally, bytes: u64) {
    shim.count(tally.allocs(), 1);
    shim.count(tally.alloc_bytes(), bytes);
}

/// Counts a block that is no longer live.
#[inline]
pub(crate) fn count_ended(shim: &Shim, tally: Tally, bytes: u64) {
    shim.count(tally.frees(), 1);
    shim.count(tally.free_bytes(), bytes);
}
