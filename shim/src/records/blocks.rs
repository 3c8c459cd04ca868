//! The records of the pool's blocks. A block keeps its place in the ledger for as long as the pool has the block, so a
//! request served by an idle block needs no new place. The pool reports what happens; only this file writes it.

use crate::process::clock;
use crate::process::threads::Local;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, ContextRef, StackRef};
use gpumem_wire::location::{Location, Tally};

/// The record of a live block.
pub(crate) struct LiveBlock {
    pub addr: u64,
    /// Bytes as the program requested them.
    pub bytes: u64,
    pub context: ContextRef,
    /// A block lies at the usual location of memory of its kind.
    pub kind: AllocKind,
    pub flags: u8,
    pub stack: StackRef,
}

/// Writes a live block's record, for this thread.
#[inline(always)]
pub(crate) fn write(shim: &Shim, slot: u32, block: LiveBlock, (local, tid): (&Local, u32)) {
    let LiveBlock { addr, bytes, context, kind, flags, stack } = block;
    shim.ledger.allocs.write(
        slot,
        AllocSlot {
            addr,
            bytes,
            time_ns: clock::now_ns(),
            location: Location::usual(kind).word(),
            context,
            kind: kind as u8,
            stack,
            serial: local.serial(|count| shim.registry.serials(count)),
            tid,
            tag: shim.tag_of(local),
            flags,
            ..Default::default()
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
