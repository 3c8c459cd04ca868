//! A free: the block stays with the pool, or goes back to the driver.

use super::Pool;
use super::answers::NOWHERE;
use super::block::{Block, PINNED, SPILLED, State};
use super::block_records;
use super::claims;
use super::context_pool::{ContextPool, Most};
use super::guard::{Asker, LATE_WITHIN};
use super::thread::Pushed;
use crate::call::Call;
use crate::gate;
use crate::process::clock;
use crate::process::errno::KeepErrno;
use crate::progress::activity;
use crate::records;
use crate::shim::Shim;
use crate::stranded;
use crate::{trace, vendor};
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::settings::Fill;
use gpumem_wire::trace::Action;
use std::sync::atomic::Ordering::*;

/// What freed memory is filled with to be recognised.
const POISON: u8 = 0xa5;
/// The most blocks that go back inside one free of the program, which waits for them.
const MOST_RELEASED: usize = 4;

/// What the first look at a free says about the rest of it.
enum FreeStep {
    Done,
    /// Work may still use the block: the free has to wait for it.
    Wait(&'static Block, &'static ContextPool),
    /// The real free has to be called.
    Real(&'static Block),
    Twice,
    NotOurs,
}

impl Pool {
    /// Frees a block. `None` if the address is no block of the pool's. `real` is the real function.
    #[inline]
    pub(crate) fn free(&'static self, call: &Call, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        match gate::note(|shim| self.begin(shim, addr)) {
            Some(FreeStep::Done) => Some(SUCCESS),
            Some(FreeStep::NotOurs) => None,
            Some(FreeStep::Twice) => Some(real(NOWHERE)),
            Some(FreeStep::Real(block)) => Some(self.give_up(block, real)),
            Some(FreeStep::Wait(block, context_pool)) => Some(self.wait(call, block, context_pool, real)),
            // Recording has ended, so the block goes back to the driver.
            None => {
                let block = self.blocks.get(addr).filter(|block| block.turn_to(addr, State::Live, State::Busy))?;
                Some(self.give_up(block, real))
            }
        }
    }

    #[inline]
    fn begin(&'static self, shim: &'static Shim, addr: u64) -> FreeStep {
        let Some(block) = self.blocks.get(addr) else { return FreeStep::NotOurs };
        if !block.turn_to(addr, State::Live, State::Busy) {
            // The program frees the same block twice. If another thread is freeing it just now, that is a race of the
            // program's own.
            return if block.is(State::Gone) { FreeStep::NotOurs } else { FreeStep::Twice };
        }
        let Some(context_pool) = ContextPool::of(block) else { return FreeStep::Real(block) };
        // The program freed the block because it was pressed to. That was meant to give the driver memory back.
        if stranded::freed(shim, addr) {
            return FreeStep::Real(block);
        }
        // Without a current context the driver refuses a free.
        if block.has(PINNED | SPILLED) || self.aside(shim) || !self.find_context(shim) {
            return FreeStep::Real(block);
        }
        if self.is_looked_at() || !context_pool.known_idle() {
            return FreeStep::Wait(block, context_pool);
        }
        self.finish(shim, block, context_pool);
        shim.count(counters::POOL_BARRIERS_FREE, 1);
        FreeStep::Done
    }

    /// Whether the pool does something with each freed block.
    #[inline]
    fn is_looked_at(&self) -> bool {
        self.quarantine != 0 || self.fill == Fill::Poison || self.guard.is_some()
    }

    /// Looks whether this thread has a context, and tells the records of one that is found.
    #[inline]
    fn find_context(&self, shim: &Shim) -> bool {
        if self.sees_all && records::contexts::has_the_only_context(shim) {
            return true;
        }
        let has = vendor::of(self.vendor).current_context().is_some();
        if has {
            records::contexts::found(shim);
        }
        has
    }

    /// Keeps a freed block that no work uses.
    #[inline]
    fn finish(&'static self, shim: &'static Shim, block: &'static Block, context_pool: &'static ContextPool) {
        let bytes = block.asked.load(Relaxed) as i64;
        block_records::kept(shim, block);
        self.put(shim, block, context_pool, bytes);
    }

    /// Puts a block that no work uses where later requests find it. `bytes`: by how much the program's live bytes fall.
    #[inline]
    fn put(&'static self, shim: &'static Shim, block: &'static Block, context_pool: &'static ContextPool, bytes: i64) {
        let _transit = self.transit(context_pool);
        let cache = self.cache();
        let taken = cache.enter().filter(|taken| std::ptr::eq(taken.context_pool(), context_pool));
        let class = self.class_of(block.bytes.load(Relaxed));
        if let (Some(mut taken), Some(class)) = (taken, class) {
            block.set(State::Idle);
            if let Pushed::Kept(leaves) = taken.push(class, block, self.most_of_a_thread()) {
                let reported = taken.report(-bytes, self.unreported_at_most());
                // The cache is held until then, and a thread that looks for idle blocks waits for that.
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
        if self.over_most_idle(context_pool) > 0 {
            self.over_the_bound(context_pool);
        }
    }

    /// Frees a block that work may still use.
    #[cold]
    fn wait(
        &'static self,
        call: &Call,
        block: &'static Block,
        context_pool: &'static ContextPool,
        real: impl FnOnce(u64) -> Status,
    ) -> Status {
        // Memory that cannot go back while the device works must not grow meanwhile.
        let with_it = || self.idle(context_pool) + block.bytes.load(Relaxed);
        let may_stay = !context_pool.frees_wait() || with_it() <= self.most_idle(context_pool);
        let may_wait_later = !self.is_looked_at() && context_pool.has_events() && may_stay;
        if self.is_deferred() && self.sees_all && may_wait_later {
            let _errno = KeepErrno::new();
            let bytes = block.asked.load(Relaxed) as i64;
            // Recorded before the block is put: another thread may get it at once.
            gate::note(|shim| block_records::kept(shim, block));
            // Meanwhile no other thread finds these blocks.
            let _transit = context_pool.in_transit.blocks.begin();
            match context_pool.keep_unless_completed(block, clock::now_ns()) {
                true => gate::note(|shim| self.put(shim, block, context_pool, bytes)),
                false => gate::note(|shim| block_records::add_live(shim, context_pool, -bytes)),
            };
            return SUCCESS;
        }
        let waited = {
            let _errno = KeepErrno::new();
            context_pool.prepare();
            if context_pool.has_pending() {
                context_pool.barrier_for_all(clock::now_ns())
            } else {
                context_pool.barrier()
            }
        };
        match waited {
            Some(SUCCESS) => {}
            // The context is broken, or something captures by now: the driver itself has to answer.
            Some(status) => {
                activity::saw(status);
                return self.give_up(block, real);
            }
            None => return self.give_up(block, real),
        }
        gate::note(|shim| shim.count(counters::POOL_BARRIERS, 1));
        let mut done = Some(block);
        let mut quarantine = self.quarantine;
        if let Some(guard) = &self.guard {
            let _errno = KeepErrno::new();
            // If a fill of ours may still be under way, the real free waits for it.
            if !guard.freed(&Asker::of(call), context_pool, block) {
                return self.give_up(block, real);
            }
            quarantine = quarantine.max(guard.quarantine(self.context_pools().len()));
        } else if self.fill == Fill::Poison {
            let _errno = KeepErrno::new();
            // As above.
            if !context_pool.fill(block, POISON) {
                return self.give_up(block, real);
            }
        }
        if self.quarantine != 0 || self.guard.is_some() {
            // Its bytes are not live from now on. The pool gets the blocks that have been in quarantine for long
            // enough.
            gate::note(|shim| {
                block_records::add_live(shim, context_pool, -(block.asked.load(Relaxed) as i64));
                block_records::kept(shim, block);
            });
            done = None;
            let _errno = KeepErrno::new();
            self.leave_quarantine(context_pool, context_pool.quarantine(block, quarantine));
        }
        if let Some(block) = done {
            gate::note(|shim| self.finish(shim, block, context_pool));
        }
        self.pay(context_pool);
        SUCCESS
    }

    /// Gives back what is due, inside a barrier that the program itself has asked for.
    fn pay(&'static self, context_pool: &'static ContextPool) {
        self.measure(context_pool);
        // Where frees wait for work, this is the only place where anything goes back.
        let over = if context_pool.frees_wait() { self.over_most_idle(context_pool) } else { 0 };
        let (must, due) = (context_pool.in_the_way(0).max(over), self.decayed(context_pool, clock::now_ns()));
        // The curve takes a share of each block from its first moment on. A block goes once there is enough due for it.
        let most = if must > 0 { Most::AtLeast(must, MOST_RELEASED) } else { Most::Within(due, MOST_RELEASED) };
        if most.bytes() > 0 {
            self.release_where_waited(context_pool, most, || true);
        }
    }

    /// Gives back idle blocks above the bound. A free of the program that has made its barrier is the time for that.
    #[cold]
    fn over_the_bound(&'static self, context_pool: &'static ContextPool) {
        self.release_where_waited(
            context_pool,
            Most::AtLeast(self.over_most_idle(context_pool), MOST_RELEASED),
            || context_pool.known_idle(),
        );
    }

    /// The driver frees the block. The block is taken out of the map before, because another thread may get the address
    /// at once.
    fn give_up(&'static self, block: &'static Block, real: impl FnOnce(u64) -> Status) -> Status {
        let addr = block.addr.load(Relaxed);
        let context_pool = ContextPool::of(block);
        if let (Some(guard), Some(context_pool)) = (&self.guard, context_pool)
            && gate::shim().is_some_and(|shim| !self.aside(shim))
        {
            let _errno = KeepErrno::new();
            guard.given_up(context_pool, block);
        }
        self.blocks.remove(addr);
        wait_for_readers(context_pool, addr);
        if trace::on() {
            gate::note(|shim| block_records::trace_block(shim, Action::Free, block));
        }
        let status = match (context_pool, block.has(super::block::HOST)) {
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
            self.blocks.insert(addr, block);
            gate::note(|shim| {
                if trace::on() {
                    block_records::trace_block(shim, Action::Unfreed, block);
                }
                records::pooled::free_failed(shim, addr, status);
            });
            return status;
        }
        let _transit = context_pool.and_then(|context_pool| self.transit(context_pool));
        if let Some(context_pool) = context_pool {
            if !block.has(SPILLED) {
                let gone = context_pool.shrank(block.bytes.load(Relaxed));
                if let Some(shim) = gate::shim() {
                    records::grouped::gave(shim, context_pool.record(), gone);
                }
            }
            gate::note(|shim| block_records::given_up(shim, block, context_pool));
        }
        self.forget(block);
        status
    }

    /// A stream-ordered free: the driver decides, and from then on the block is the driver's.
    pub(crate) fn free_async(&'static self, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        let block = self.blocks.get(addr).filter(|block| block.turn_to(addr, State::Live, State::Busy));
        match block {
            Some(block) => {
                gate::note(|shim| stranded::freed(shim, addr));
                Some(self.give_up(block, real))
            }
            None => self.blocks.get(addr).filter(|block| block.is(State::Idle)).map(|_| real(NOWHERE)),
        }
    }
}

/// Waits for those that read a block which the program's own free gives back.
fn wait_for_readers(context_pool: Option<&ContextPool>, addr: u64) {
    let _errno = KeepErrno::new();
    claims::wait(addr, || context_pool.is_none_or(ContextPool::settle_readers), LATE_WITHIN);
}
