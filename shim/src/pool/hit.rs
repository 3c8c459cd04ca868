//! The short way: a request that a block of the thread's own serves, and a free that goes there. Most of what
//! a program does is this, and what a pair of them takes is what the pool is judged by.
//!
//! It does what the long way does ([`super::serve`], [`super::give`]) where nothing is out of the ordinary,
//! and says so before it changes anything where something is. Nothing here can panic, allocate, or call
//! what may: it needs no guard, but for the stack.

use super::block::{Block, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::thread::ThreadCache;
use super::{Pool, size};
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::threads::{self, Local};
use crate::records;
use crate::registry::sites::Made;
use crate::shim::Shim;
use crate::{gate, trace};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind::Device;
use std::sync::atomic::Ordering::*;

impl Pool {
    /// The address of a block that serves a request. `None`: nothing was done, and the long way is to be gone.
    #[inline(always)]
    pub(crate) fn hit(&'static self, call: &Call, bytes: u64) -> Option<u64> {
        let shim = gate::shim()?;
        let class = size::class_for(bytes)?;
        // SAFETY: the reference ends with this function and stays on this thread.
        let local = unsafe { threads::state() };
        let (cache, owner) = self.usual(shim, local)?;
        if shim.stranded.waiting() {
            return None;
        }
        let mut taken = cache.enter()?;
        let block = taken.pop_for(class)?;
        let reported = taken.report(bytes as i64, self.unreported_at_most());
        drop(taken);
        let addr = block.addr.load(Relaxed);
        let slot = block.slot.load(Relaxed);
        if slot == NO_SLOT || reported != 0 {
            return Some(self.hand_out(call, block, owner, bytes, reported));
        }
        let stack = match shim.takes_stack(bytes) {
            true => shim.known_site(local, call.site(), bytes).unwrap_or_else(|| stack(call, bytes)),
            false => 0,
        };
        block.asked.store(bytes, Relaxed);
        block_records::write_live(shim, slot, block, owner, bytes, (local, local.known_tid()), stack);
        shim.ledger.count_all(
            local.known_shard(),
            &[(counters::POOL_HITS, 1), (counters::allocs(Device), 1), (counters::alloc_bytes(Device), bytes)],
        );
        local.recorded();
        block.set(State::Live);
        Some(addr)
    }

    /// Takes a block back into this thread's cache. False: nothing was done, and the long way is to be gone.
    #[inline(always)]
    pub(crate) fn take_back(&'static self, addr: u64) -> bool {
        let Some(shim) = gate::shim() else { return false };
        // SAFETY: the reference ends with this function and stays on this thread.
        let local = unsafe { threads::state() };
        let Some((cache, owner)) = self.usual(shim, local) else { return false };
        let Some(block) = self.map.get(addr) else { return false };
        if !is_usual(block, owner) || shim.stranded.may_know(addr) || !owner.unchanged_since_idle() {
            return false;
        }
        let Some(mut taken) = cache.enter() else { return false };
        let (class, most) = (block.class.load(Relaxed) as usize, self.most_of_a_thread());
        let room = taken.has_room(class, block.bytes.load(Relaxed), most);
        if !room || !block.turn_idle(addr) {
            return false;
        }
        // It is this thread's now.
        let _transit = self.transit(owner);
        let asked = block.asked.load(Relaxed);
        shim.ledger.allocs.hide_if_any(block.slot.load(Relaxed));
        shim.ledger.count_all(
            local.known_shard(),
            &[
                (counters::frees(Device), 1),
                (counters::free_bytes(Device), asked),
                (counters::POOL_KEPT, 1),
                (counters::POOL_BARRIERS_FREE, 1),
            ],
        );
        taken.keep(class, block);
        let reported = taken.report(-(asked as i64), self.unreported_at_most());
        drop(taken);
        local.recorded();
        if reported != 0 {
            report(owner, reported);
        }
        true
    }

    /// A block that was taken out, the long way from there on.
    #[cold]
    fn hand_out(
        &'static self,
        call: &Call,
        block: &'static Block,
        owner: &'static ContextPool,
        bytes: u64,
        reported: i64,
    ) -> u64 {
        gate::note(|shim| self.handed_out(shim, call, block, owner, bytes, reported));
        block.set(State::Live);
        block.addr.load(Relaxed)
    }

    /// This thread's cache, and whose blocks are in it, where nothing is out of the ordinary.
    #[inline(always)]
    fn usual(
        &'static self,
        shim: &'static Shim,
        local: &Local,
    ) -> Option<(&'static ThreadCache, &'static ContextPool)> {
        if !self.plain || !self.sees_all || trace::on() || self.aside(shim) || !local.is_known() {
            return None;
        }
        let cache = ThreadCache::of(local)?;
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        let owner = unsafe { cache.last_owner().as_ref() }?;
        let usual = owner.vendor == self.vendor
            && !owner.gone.load(Relaxed)
            && records::contexts::is_the_only_context_of(shim, local);
        usual.then_some((cache, owner))
    }
}

#[cold]
fn report(owner: &'static ContextPool, reported: i64) {
    gate::note(|shim| block_records::add_live(shim, owner, reported));
}

/// The stack of a call.
#[inline(never)]
fn stack(call: &Call, bytes: u64) -> u32 {
    gate::record_if_started(|shim| shim.site(call.site(), Made::Memory(bytes))).unwrap_or(0)
}

/// Whether a block is a context's, and nothing is special about it.
#[inline(always)]
fn is_usual(block: &Block, owner: &ContextPool) -> bool {
    block.flags.load(Relaxed) == 0 && ContextPool::of(block).is_some_and(|its| std::ptr::eq(its, owner))
}
