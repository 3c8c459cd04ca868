//! A free: the pool keeps the block, or gives it back to the driver.

use super::block::{Block, HOST, PINNED, SPILLED, State};
use super::block_records;
use super::claims;
use super::context_pool::{ContextPool, POISON};
use super::quota::Quota;
use super::releaser::Releaser;
use super::rules::BlockRules;
use crate::call::Call;
use crate::gate;
use crate::process::clock;
use crate::process::errno::KeepErrno;
use crate::progress::activity;
use crate::records;
use crate::records::registry::live::Class;
use crate::shim::Shim;
use crate::stranded;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::trace::Action;
use std::time::Duration;

/// Longest wait of a free for late readers. They copy beside any work.
const LATE_WITHIN: Duration = Duration::from_secs(10);

/// Result of the first look at a free: how to go on.
pub(super) enum FreeStep {
    Done,
    /// Work may still use the block: the free has to wait for it.
    Wait(&'static Block, &'static ContextPool),
    /// The real free has to be called.
    Real(&'static Block),
    Twice,
    NotOurs,
}

/// The parts of a pool that a free uses.
#[derive(Clone, Copy)]
pub(super) struct FreeParts<'a> {
    pub rules: &'a BlockRules,
    pub quota: &'a Quota,
    pub releaser: &'a Releaser,
}

impl FreeParts<'_> {
    /// Takes the live block at an address. No other thread can free it afterwards.
    pub(super) fn take_live(self, addr: u64) -> Option<&'static Block> {
        self.releaser.blocks().get(addr).filter(|block| block.turn_to(addr, State::Live, State::Busy))
    }

    /// Takes the first look at a free.
    #[inline]
    pub(super) fn begin(self, shim: &'static Shim, addr: u64) -> FreeStep {
        let Self { rules, releaser, .. } = self;
        let Some(block) = releaser.blocks().get(addr) else { return FreeStep::NotOurs };
        if !block.turn_to(addr, State::Live, State::Busy) {
            // The program frees the same block twice. If another thread is freeing it now, that is a race in the program.
            return if block.is(State::Gone) { FreeStep::NotOurs } else { FreeStep::Twice };
        }
        let Some(context_pool) = ContextPool::of(block) else { return FreeStep::Real(block) };
        // The program freed the block under memory pressure, to give the driver memory back.
        if stranded::freed(shim, addr, || Some(block.memory())) {
            return FreeStep::Real(block);
        }
        // Without a current context the driver refuses a free.
        let contexts = releaser.idle().contexts();
        if block.has(PINNED | SPILLED) || releaser.switch().aside(shim) || !contexts.has_current(shim) {
            return FreeStep::Real(block);
        }
        if rules.change_freed() || !context_pool.known_idle() {
            return FreeStep::Wait(block, context_pool);
        }
        block_records::kept(shim, block);
        self.put(shim, block, context_pool);
        shim.count(counters::POOL_BARRIERS_FREE, 1);
        FreeStep::Done
    }

    /// Puts a block that no work uses where later requests find it. Subtracts its bytes from the live bytes.
    #[inline]
    fn put(self, shim: &'static Shim, block: &'static Block, context_pool: &'static ContextPool) {
        let Self { rules, quota, releaser } = self;
        let (idle, bytes) = (releaser.idle(), block.asked() as i64);
        let _transit = quota.transit(context_pool);
        let cache = idle.cache();
        let taken = cache.enter().filter(|_| cache.is_of(context_pool));
        let class = rules.class_of(block.bytes());
        if let (Some(mut taken), Some(class)) = (taken, class) {
            block.set(State::Idle);
            if let Some(leaves) = taken.push(class, block, idle.thread_cache_limit()) {
                let reported = taken.report(-bytes, quota.unreported_at_most());
                // The transit begins while the cache is held. A thread that looks for idle blocks waits for either.
                let _transit = leaves.map(|_| context_pool.in_transit.blocks.begin());
                drop(taken);
                if let Some(leaves) = leaves {
                    context_pool.keep(leaves, clock::now_ns());
                }
                return block_records::add_live(shim, context_pool, reported);
            }
        }
        context_pool.keep(block, clock::now_ns());
        block_records::add_live(shim, context_pool, -bytes);
        if idle.over_most(context_pool) > 0 {
            releaser.trim_to_max(context_pool);
        }
    }

    /// Frees a block that work may still use.
    #[cold]
    pub(super) fn wait(
        self,
        call: &Call,
        block: &'static Block,
        context_pool: &'static ContextPool,
        real: impl FnOnce(u64) -> Status,
    ) -> Status {
        let Self { rules, releaser, .. } = self;
        // Memory that cannot go back while the device works must not grow meanwhile.
        let idle = releaser.idle();
        let with_it = || idle.of(context_pool) + block.bytes();
        let may_stay = !context_pool.frees_wait() || with_it() <= idle.most(context_pool);
        let may_wait_later = !rules.change_freed() && context_pool.has_events() && may_stay;
        if rules.defer() && idle.contexts().see_all() && may_wait_later {
            let _errno = KeepErrno::new();
            let bytes = block.asked() as i64;
            // Recorded before the block is put back: another thread may get it at once.
            gate::note(|shim| block_records::kept(shim, block));
            // No other thread finds these blocks meanwhile.
            let _transit = context_pool.in_transit.blocks.begin();
            context_pool.keep_until_completed(block, clock::now_ns());
            gate::note(|shim| block_records::add_live(shim, context_pool, -bytes));
            return SUCCESS;
        }
        let saved;
        let waited = {
            let _errno = KeepErrno::new();
            context_pool.prepare();
            saved = !context_pool.has_pending() && context_pool.known_quiet();
            if saved { Some(SUCCESS) } else { context_pool.barrier_for_all(clock::now_ns()) }
        };
        match waited {
            Some(SUCCESS) => {}
            // The context is broken, or a capture has begun: the driver itself has to answer.
            Some(status) => {
                activity::saw(status);
                return self.give_up(block, real);
            }
            None => return self.give_up(block, real),
        }
        let counter = if saved { counters::POOL_BARRIERS_FREE } else { counters::POOL_BARRIERS };
        gate::note(|shim| shim.count(counter, 1));
        let of_each = |most| most / idle.contexts().all().len().max(1) as u64;
        let quarantine = rules.quarantine(releaser.watcher().map(|watcher| of_each(watcher.most_kept(block))));
        // If our fill may still be running, the real free waits for it.
        if !self.fill_freed(call, block, context_pool, quarantine) {
            return self.give_up(block, real);
        }
        match quarantine {
            Some(most) => {
                // The block's bytes are no longer live. The pool gets the blocks that were in quarantine long enough.
                gate::note(|shim| {
                    block_records::add_live(shim, context_pool, -(block.asked() as i64));
                    block_records::kept(shim, block);
                });
                let _errno = KeepErrno::new();
                releaser.leave_quarantine(context_pool, context_pool.quarantine(block, most));
            }
            None => {
                gate::note(|shim| {
                    block_records::kept(shim, block);
                    self.put(shim, block, context_pool);
                });
            }
        }
        releaser.release_due(context_pool);
        SUCCESS
    }

    /// Fills a block that no work uses, if freed blocks are filled. Returns false if the block is not known to be
    /// filled. `quarantine`: most bytes that are kept from use. Blocks that no longer fit leave now, and who watches
    /// blocks looks at them in the same work for the device.
    fn fill_freed(
        self,
        call: &Call,
        block: &'static Block,
        context_pool: &'static ContextPool,
        quarantine: Option<u64>,
    ) -> bool {
        let _errno = KeepErrno::new();
        let leaving = quarantine.and_then(|most| context_pool.make_room(block.bytes(), most));
        let is_filled = match self.releaser.watcher() {
            Some(watcher) => {
                let leaving = leaving.as_ref().map_or(&[][..], |out| &out.blocks);
                watcher.freed(call, context_pool, block, leaving)
            }
            None => !self.rules.poison() || context_pool.fill(block, POISON),
        };
        self.releaser.keep_read(context_pool, leaving);
        is_filled
    }

    /// Gives the block back to the driver. Takes it out of the map first, because another thread may get the address at
    /// once.
    pub(super) fn give_up(self, block: &'static Block, real: impl FnOnce(u64) -> Status) -> Status {
        let Self { quota, releaser, .. } = self;
        let addr = block.addr();
        let context_pool = ContextPool::of(block);
        if let (Some(watcher), Some(context_pool)) = (releaser.watcher(), context_pool)
            && gate::shim().is_some_and(|shim| !releaser.switch().aside(shim))
        {
            let _errno = KeepErrno::new();
            watcher.given_up(context_pool, block);
        }
        releaser.blocks().remove(addr);
        wait_for_readers(context_pool, addr);
        gate::note(|shim| block_records::trace_block(shim, Action::Free, block));
        let status = match (context_pool, block.has(HOST)) {
            (Some(context_pool), true) => {
                // The free of host memory makes no barrier by itself.
                let status = context_pool.barrier().unwrap_or(SUCCESS);
                if status == SUCCESS { context_pool.within(|| context_pool.calls.free_host(addr)) } else { status }
            }
            _ => real(block.driver_address(addr)),
        };
        activity::saw(status);
        if status != SUCCESS {
            block.set(State::Live);
            releaser.blocks().insert(addr, block);
            gate::note(|shim| {
                block_records::trace_block(shim, Action::Unfreed, block);
                records::allocations::free_failed(shim, Class::Address, addr, None, status);
            });
            return status;
        }
        let _transit = context_pool.and_then(|context_pool| quota.transit(context_pool));
        if let Some(context_pool) = context_pool {
            if !block.has(SPILLED) {
                context_pool.shrank(block.bytes());
            }
            gate::note(|shim| block_records::given_up(shim, block, context_pool));
        }
        releaser.forget(block);
        status
    }
}

/// Waits for the readers of a block that the program's own free gives back.
fn wait_for_readers(context_pool: Option<&ContextPool>, addr: u64) {
    let _errno = KeepErrno::new();
    claims::wait(addr, || context_pool.is_none_or(ContextPool::settle_readers), LATE_WITHIN);
}
