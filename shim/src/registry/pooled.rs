//! What the pool does, in the books. A block keeps its place in the ledger for as long as it is the
//! pool's, so that a request that an idle block serves takes no list of places.

use super::sites::Made;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::pool::block::{Block, SPILLED};
use crate::pool::owner::Owner;
use crate::process::clock;
use crate::process::threads::{self, Local};
use crate::shim::Shim;
use crate::trace;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Vendor};
use gpumem_wire::layout::*;
use gpumem_wire::trace::Action;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Share of the device that idle blocks may take where the user sets no bound.
const SHARE: u64 = 4;

fn kind_of(block: &Block) -> AllocKind {
    if block.has(SPILLED) { AllocKind::Managed } else { AllocKind::Device }
}

impl Shim {
    /// An idle block serves a request. `told`: live bytes that the context is to be told of now.
    #[inline]
    pub fn pool_hit(&'static self, call: &Call, block: &Block, owner: &'static Owner, bytes: u64, told: i64) {
        self.count(counters::POOL_HITS, 1);
        let stack = self.site(call.site(), Made::Memory(bytes));
        self.listed(block, owner, bytes, stack);
        self.pool_told(owner, told);
    }

    /// A new block serves a request. `taken`: the stack of the call, if that was taken before.
    pub fn pool_miss(
        &'static self,
        call: &Call,
        block: &Block,
        owner: &'static Owner,
        bytes: u64,
        taken: Option<StackRef>,
    ) {
        self.count(counters::POOL_MISSES, 1);
        block.slot.store(NO_SLOT, Relaxed);
        let made = Made::Memory(bytes);
        let stack = match taken.filter(|_| self.takes_stack(bytes)) {
            Some(stack) => {
                self.led_to(stack, made);
                stack
            }
            None => self.site(call.site(), made),
        };
        self.listed(block, owner, bytes, stack);
        if !block.has(SPILLED) {
            self.pool_told(owner, bytes as i64);
        }
    }

    /// Writes a block's record.
    #[inline]
    fn listed(&'static self, block: &Block, owner: &Owner, bytes: u64, stack: StackRef) {
        let kind = kind_of(block);
        if let Some(slot) = self.slot_of(block) {
            let tid = self.tid();
            threads::local(|local| self.write_live(slot, block, owner, bytes, (local, tid), stack));
        }
        self.count(counters::allocs(kind), 1);
        self.count(counters::alloc_bytes(kind), bytes);
        if trace::on() {
            self.trace(Action::Alloc, kind, block.addr.load(Relaxed), bytes, 0, stack);
        }
    }

    /// Writes the record of a block that is the program's, by this thread.
    #[inline(always)]
    pub fn write_live(
        &self,
        slot: u32,
        block: &Block,
        owner: &Owner,
        bytes: u64,
        (local, tid): (&Local, u32),
        stack: StackRef,
    ) {
        self.ledger.allocs.write(
            slot,
            AllocSlot {
                addr: block.addr.load(Relaxed),
                bytes,
                time_ns: clock::now_ns(),
                context: owner.record(),
                kind: kind_of(block) as u8,
                stack,
                serial: local.serial(|count| self.registry.serials(count)),
                tid,
                tag: self.tag_of(local),
                flags: if block.has(SPILLED) { ALLOC_SPILLED } else { ALLOC_POOLED },
                ..Default::default()
            },
        );
    }

    /// The place of a block in the ledger, if there is room for it.
    #[inline]
    fn slot_of(&self, block: &Block) -> Option<u32> {
        match block.slot.load(Relaxed) {
            NO_SLOT => self.new_slot(block),
            slot => Some(slot),
        }
    }

    #[cold]
    fn new_slot(&self, block: &Block) -> Option<u32> {
        let slot = self.ledger.allocs.take();
        if slot.is_none() {
            self.count(counters::DROPPED_RECORDS, 1);
        }
        block.slot.store(slot.unwrap_or(NO_SLOT), Relaxed);
        slot
    }

    /// A block is not the program's any more.
    #[inline]
    fn unlisted(&self, block: &Block) {
        let kind = kind_of(block);
        self.ledger.allocs.hide_if_any(block.slot.load(Relaxed));
        self.count(counters::frees(kind), 1);
        self.count(counters::free_bytes(kind), block.asked.load(Relaxed));
    }

    /// Notes in the trace that a block is about to be freed: another thread may get its address at once;
    /// or that it was not.
    #[cold]
    pub fn trace_block(&self, action: Action, block: &Block) {
        self.trace(action, kind_of(block), block.addr.load(Relaxed), block.asked.load(Relaxed), 0, 0);
    }

    /// The pool keeps a block that the program freed.
    #[inline]
    pub fn pool_free(&self, block: &Block) {
        if trace::on() {
            self.trace_block(Action::Free, block);
        }
        self.unlisted(block);
        self.count(counters::POOL_KEPT, 1);
    }

    /// Live bytes came to a context, or went.
    #[inline]
    pub fn pool_told(&'static self, owner: &'static Owner, bytes: i64) {
        match bytes {
            0 => {}
            1.. => self.charge(owner.vendor, owner.record(), bytes as u64, clock::now_ns()),
            _ => self.discharge(owner.record(), bytes.unsigned_abs()),
        }
    }

    /// The driver refused a free: the block is as live as before.
    pub fn pool_free_failed(&self, addr: u64, status: Status) {
        self.count(counters::FREE_FAILURES, 1);
        self.event(EventKind::FreeFailed, |event| {
            event.a = addr;
            event.code = status as i32;
        });
    }

    /// A block that was the program's is the driver's again.
    pub fn pool_given_up(&'static self, block: &Block, owner: &'static Owner) {
        self.unlisted(block);
        self.delist(block);
        self.ended_bytes(block, owner);
    }

    fn ended_bytes(&'static self, block: &Block, owner: &'static Owner) {
        let bytes = -(block.asked.load(Relaxed) as i64);
        if block.has(SPILLED) {
            self.spilled_bytes(owner.record(), bytes);
        } else {
            self.pool_told(owner, bytes);
        }
    }

    fn delist(&self, block: &Block) {
        self.ledger.allocs.clear_if_any(block.slot.swap(NO_SLOT, Relaxed));
    }

    /// An idle block is the driver's again.
    pub fn pool_released(&self, block: &Block, bytes: u64) {
        self.delist(block);
        self.count(counters::POOL_RELEASED, 1);
        self.count(counters::POOL_RELEASED_BYTES, bytes);
    }

    /// A block that is the program's is about to go with its context: another thread may get its address at once.
    pub fn pool_leaves(&self, block: &Block) {
        if trace::on() {
            self.trace_block(Action::Free, block);
        }
    }

    /// It did not.
    pub fn pool_stays(&self, block: &Block) {
        if trace::on() {
            self.trace_block(Action::Unfreed, block);
        }
    }

    /// A block went with its context.
    pub fn pool_lost(&'static self, block: &Block, owner: &'static Owner, live: bool) {
        if live {
            self.count(counters::ENDED_WITH_CONTEXT, 1);
            self.unlisted(block);
            self.ended_bytes(block, owner);
        }
        self.delist(block);
    }

    /// What this process may take of a context's device; 0: as much as there is.
    pub fn pool_limit(&self, context: ContextRef, limit: u64) {
        if let Some(field) = self.context_field(context, offset_of!(ContextSlot, limit_bytes)) {
            field.store(limit, Relaxed);
        }
    }

    /// What the pool keeps in a context now.
    pub fn pool_idle(&self, owner: &Owner, bytes: u64, blocks: u64) {
        let set = |offset, value| {
            if let Some(field) = self.context_field(owner.record(), offset) {
                field.store(value, Relaxed);
            }
        };
        set(offset_of!(ContextSlot, idle_bytes), bytes);
        set(offset_of!(ContextSlot, idle_peak_bytes), owner.idle_peak.load(Relaxed).max(bytes));
        set(offset_of!(ContextSlot, idle_blocks), blocks);
    }

    fn spilled_bytes(&self, context: ContextRef, bytes: i64) {
        if let Some(field) = self.context_field(context, offset_of!(ContextSlot, spilled_bytes)) {
            field.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// An allocation was placed outside of the device's memory.
    pub fn spilled(&'static self, call: &Call, bytes: u64) {
        self.count(counters::SPILLS, 1);
        self.count(counters::SPILLED_BYTES, bytes);
        let stack = self.site(call.site(), Made::Stream);
        let context = self.current_context(call.vendor);
        self.spilled_bytes(context, bytes as i64);
        self.event(EventKind::Spilled, |event| {
            event.a = bytes;
            event.context = context;
            event.stack = stack;
        });
    }

    /// An allocation did not fit under the quota.
    pub fn limit_refused(&self, bytes: u64) {
        self.count(counters::LIMIT_REFUSALS, 1);
        self.event(EventKind::LimitRefused, |event| event.a = bytes);
    }

    fn live_in(&self, context: ContextRef) -> u64 {
        self.context_field(context, offset_of!(ContextSlot, live_bytes)).map_or(0, |live| live.load(Relaxed))
    }

    /// Live device bytes of all contexts on a device.
    pub fn live_on(&self, vendor: Vendor, device: i32) -> u64 {
        let on = self.contexts_on(vendor, device);
        on.into_iter().map(|context| self.live_in(context)).sum()
    }

    /// Idle bytes that a context may keep where the user sets no bound.
    pub fn device_share(&self, context: ContextRef) -> u64 {
        self.context_slot(context).map_or(0, |slot| slot.total_bytes / SHARE)
    }
}
