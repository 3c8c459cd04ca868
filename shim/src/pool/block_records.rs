//! Records of what the pool does. A block keeps its slot in the ledger for as long as the pool has the block, so a
//! request that an idle block serves needs no new slot.

use super::block::{Block, HOST, SPILLED, State};
use super::context_pool::ContextPool;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::threads::{self, Local};
use crate::records::registry::sites::Made;
use crate::records::{self, blocks};
use crate::shim::Shim;
use crate::trace;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{ALLOC_POOLED, ALLOC_SPILLED, AllocSlot, ContextSlot, StackRef};
use gpumem_wire::location::{Location, Tally};
use gpumem_wire::trace::Action;
use std::mem::offset_of;

/// Kind and flags of a block in its record.
struct Described {
    kind: AllocKind,
    flags: u8,
}

impl Described {
    #[inline(always)]
    fn of(block: &Block) -> Self {
        if block.has(SPILLED) { Self::of_spilled(block) } else { Self { kind: AllocKind::Device, flags: ALLOC_POOLED } }
    }

    #[cold]
    fn of_spilled(block: &Block) -> Self {
        let kind = if block.has(HOST) { AllocKind::HostPinned } else { AllocKind::Managed };
        Self { kind, flags: ALLOC_SPILLED }
    }

    /// Returns the tally of a block. A block is at the usual location of its kind of memory.
    const fn tally(&self) -> Tally {
        Tally::of(self.kind, Location::usual(self.kind).space())
    }
}

/// Records that a new block serves a request. `taken`: the stack of the call, if it was taken before.
pub(super) fn miss(
    shim: &'static Shim,
    call: &Call,
    block: &Block,
    context_pool: &'static ContextPool,
    bytes: u64,
    taken: Option<StackRef>,
) {
    shim.count(counters::POOL_MISSES, 1);
    block.set_slot(NO_SLOT);
    let made = Made::Memory(bytes);
    let stack = match taken.filter(|_| shim.takes_stack(bytes)) {
        Some(stack) => {
            shim.led_to(stack, made);
            stack
        }
        None => shim.site(call.site(), made),
    };
    listed(shim, block, context_pool, bytes, stack);
    if !block.has(SPILLED) {
        let taken = block.bytes();
        records::contexts::charge(shim, context_pool.vendor, context_pool.record(), bytes, taken, clock::now_ns());
    }
}

/// Writes a block's record.
#[inline]
pub(super) fn listed(shim: &'static Shim, block: &Block, context_pool: &ContextPool, bytes: u64, stack: StackRef) {
    let tally = Described::of(block).tally();
    if let Some(slot) = slot_of(shim, block) {
        let tid = shim.tid();
        threads::local(|local| write_live(shim, slot, block, context_pool, bytes, (local, tid), stack));
    }
    blocks::count_made(shim, tally, bytes);
    if trace::on() {
        records::allocations::trace(shim, Action::Alloc, tally, block.addr(), bytes, 0, stack);
    }
}

/// Writes the record of a live block for this thread.
#[inline(always)]
pub(super) fn write_live(
    shim: &Shim,
    slot: u32,
    block: &Block,
    context_pool: &ContextPool,
    bytes: u64,
    (local, tid): (&Local, u32),
    stack: StackRef,
) {
    let Described { kind, flags } = Described::of(block);
    let (addr, context) = (block.addr(), context_pool.record());
    // A block lies at the usual location of memory of its kind.
    let (location, kind) = (Location::usual(kind).word(), kind as u8);
    let live = AllocSlot { addr, bytes, location, context, kind, stack, flags, ..Default::default() };
    blocks::write(shim, slot, live, (local, tid));
}

/// Marks a block as shared with other processes. Returns the slot of its record.
pub(super) fn shown(shim: &Shim, block: &Block) -> u32 {
    if !block.is(State::Live) {
        return NO_SLOT;
    }
    let slot = block.slot();
    records::allocations::shown_at(shim, slot, block.addr());
    slot
}

/// Returns the slot of a block in the ledger. Takes one if the block has none and the ledger has room.
#[inline]
fn slot_of(shim: &Shim, block: &Block) -> Option<u32> {
    match block.slot() {
        NO_SLOT => new_slot(shim, block),
        slot => Some(slot),
    }
}

#[cold]
fn new_slot(shim: &Shim, block: &Block) -> Option<u32> {
    let slot = blocks::place(shim);
    block.set_slot(slot.unwrap_or(NO_SLOT));
    slot
}

/// Removes the record of a block that is no longer live.
#[inline]
fn unlisted(shim: &Shim, block: &Block) {
    blocks::hide(shim, block.slot());
    blocks::count_ended(shim, Described::of(block).tally(), block.asked());
}

/// Notes in the trace that a block is about to be freed, or that its free failed. The note comes before the free, since
/// another thread may get the address at once.
#[inline]
pub(super) fn trace_block(shim: &Shim, action: Action, block: &Block) {
    if trace::on() {
        let (addr, asked) = (block.addr(), block.asked());
        records::allocations::trace(shim, action, Described::of(block).tally(), addr, asked, 0, 0);
    }
}

/// Records that the pool keeps a block that the program freed.
#[inline]
pub(super) fn kept(shim: &Shim, block: &Block) {
    trace_block(shim, Action::Free, block);
    unlisted(shim, block);
    shim.count(counters::POOL_KEPT, 1);
}

/// Adds to or subtracts from a context's live bytes. The driver has given the memory, or keeps it, already.
#[inline]
pub(super) fn add_live(shim: &'static Shim, context_pool: &'static ContextPool, bytes: i64) {
    match bytes {
        0 => {}
        1.. => {
            let now = clock::now_ns();
            records::contexts::charge(shim, context_pool.vendor, context_pool.record(), bytes as u64, 0, now);
        }
        _ => records::contexts::add_live(shim, context_pool.record(), bytes),
    }
}

/// Records that a live block went back to the driver.
pub(super) fn given_up(shim: &'static Shim, block: &Block, context_pool: &'static ContextPool) {
    unlisted(shim, block);
    delist(shim, block);
    ended_bytes(shim, block, context_pool);
}

fn ended_bytes(shim: &'static Shim, block: &Block, context_pool: &'static ContextPool) {
    let bytes = -(block.asked() as i64);
    if block.has(SPILLED) {
        records::pooled::spilled_bytes(shim, context_pool.record(), bytes);
    } else {
        add_live(shim, context_pool, bytes);
    }
}

fn delist(shim: &Shim, block: &Block) {
    blocks::end(shim, block.take_slot());
}

/// Records that an idle block went back to the driver.
pub(super) fn released(shim: &Shim, block: &Block, bytes: u64) {
    delist(shim, block);
    shim.count(counters::POOL_RELEASED, 1);
    shim.count(counters::POOL_RELEASED_BYTES, bytes);
}

/// Records that a block ended with its context.
pub(super) fn lost(shim: &'static Shim, block: &Block, context_pool: &'static ContextPool, live: bool) {
    if live {
        shim.count(counters::ENDED_WITH_CONTEXT, 1);
        unlisted(shim, block);
        ended_bytes(shim, block, context_pool);
    }
    delist(shim, block);
}

/// Records the idle bytes and blocks of a context.
pub(super) fn idle(shim: &Shim, context_pool: &ContextPool, bytes: u64, blocks: u64) {
    let set = |offset, value| records::contexts::set(shim, context_pool.record(), offset, value);
    set(offset_of!(ContextSlot, idle_bytes), bytes);
    set(offset_of!(ContextSlot, idle_peak_bytes), context_pool.idle_peak().max(bytes));
    set(offset_of!(ContextSlot, idle_blocks), blocks);
}
