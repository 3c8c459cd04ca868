//! The fast path: a request that a block in the thread's own cache serves, and a free that puts a block there. Most
//! calls of a program take it, so the pool is judged by the time of one such pair.
//!
//! The fast path does what the slow path ([`super::serve`], [`super::free`]) does in the ordinary case. It checks that
//! the case is ordinary before it changes anything. Otherwise the caller takes the slow path. Nothing here panics,
//! allocates, or calls code that may. So the fast path needs none of the gate's guards; only taking a stack goes
//! through the gate.

use super::block::{Block, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::thread::ThreadCache;
use super::{Pool, size};
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::threads::{self, Local};
use crate::records;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::{gate, trace};
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind::Device;

impl Pool {
    /// Returns the address of a block that serves a request. `None`: nothing was done, and the caller takes the slow
    /// path.
    #[inline(always)]
    pub(crate) fn hit(&'static self, call: &Call, bytes: u64) -> Option<u64> {
        let shim = gate::shim()?;
        let class = size::class_for(bytes)?;
        // SAFETY: the reference ends with this function and stays on this thread.
        let local = unsafe { threads::here() }?;
        let (cache, context_pool) = self.usual(shim, local)?;
        if shim.stranded.waiting() {
            return None;
        }
        let mut taken = cache.enter()?;
        let block = taken.pop_for(class)?;
        let reported = taken.report(bytes as i64, self.quota.unreported_at_most());
        drop(taken);
        let addr = block.addr();
        let slot = block.slot();
        if slot == NO_SLOT || reported != 0 {
            return Some(hand_out(call, block, context_pool, bytes, reported));
        }
        let stack = match shim.takes_stack(bytes) {
            true => shim.known_site(local, call.site(), bytes).unwrap_or_else(|| stack(call, bytes)),
            false => 0,
        };
        block.set_asked(bytes);
        block_records::write_live(shim, slot, block, context_pool, bytes, (local, local.known_tid()), stack);
        shim.ledger.count_all(
            local.known_shard(),
            &[(counters::POOL_HITS, 1), (counters::allocs(Device), 1), (counters::alloc_bytes(Device), bytes)],
        );
        local.recorded();
        block.set(State::Live);
        Some(addr)
    }

    /// Takes a block back into this thread's cache. Returns false if nothing was done; the caller then takes the slow
    /// path.
    #[inline(always)]
    pub(crate) fn take_back(&'static self, addr: u64) -> bool {
        let Some(shim) = gate::shim() else { return false };
        // SAFETY: the reference ends with this function and stays on this thread.
        let Some(local) = (unsafe { threads::here() }) else { return false };
        let Some((cache, context_pool)) = self.usual(shim, local) else { return false };
        let Some(block) = self.releaser.blocks().get(addr) else { return false };
        if !is_usual(block, context_pool) || shim.stranded.may_know(addr) || !context_pool.unchanged_since_idle() {
            return false;
        }
        let Some(mut taken) = cache.enter() else { return false };
        let (class, most) = (block.class(), self.releaser.idle().thread_cache_limit());
        let room = taken.has_room(class, block.bytes(), most);
        if !room || !block.turn_idle(addr) {
            return false;
        }
        // The block now belongs to this thread.
        let _transit = self.quota.transit(context_pool);
        let asked = block.asked();
        records::blocks::hide(shim, block.slot());
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
        let reported = taken.report(-(asked as i64), self.quota.unreported_at_most());
        drop(taken);
        local.recorded();
        if reported != 0 {
            report(context_pool, reported);
        }
        true
    }

    /// Returns this thread's cache and the context whose blocks are in it. `None` if the case is not ordinary.
    #[inline(always)]
    fn usual(
        &'static self,
        shim: &'static Shim,
        local: &Local,
    ) -> Option<(&'static ThreadCache, &'static ContextPool)> {
        if !self.rules.are_plain() || trace::on() || self.releaser.switch().aside(shim) || !local.is_known() {
            return None;
        }
        let cache = ThreadCache::of(local)?;
        let context_pool = cache.context_pool()?;
        let usual = context_pool.vendor == self.vendor
            && !context_pool.is_gone()
            && records::contexts::is_the_only_context_of(shim, local);
        usual.then_some((cache, context_pool))
    }
}

/// Hands out a block that was taken from the cache, as the slow path does.
#[cold]
fn hand_out(call: &Call, block: &'static Block, context_pool: &'static ContextPool, bytes: u64, reported: i64) -> u64 {
    gate::note(|shim| super::hand_out(shim, call, block, context_pool, bytes, reported));
    block.set(State::Live);
    block.addr()
}

#[cold]
fn report(context_pool: &'static ContextPool, reported: i64) {
    gate::note(|shim| block_records::add_live(shim, context_pool, reported));
}

/// Takes the stack of a call.
#[inline(never)]
fn stack(call: &Call, bytes: u64) -> u32 {
    gate::record_if_started(|shim| shim.site(call.site(), Made::Memory(bytes))).unwrap_or(0)
}

/// Returns true if a block belongs to a context and has no special flags.
#[inline(always)]
fn is_usual(block: &Block, context_pool: &ContextPool) -> bool {
    block.is_plain() && context_pool.has(block)
}
