//! A free: the block stays with the pool, or goes back to the driver.

use super::Pool;
use super::ask::NOWHERE;
use super::block::{Block, PINNED, SPILLED, State};
use super::block_records;
use super::context_pool::{ContextPool, Most};
use super::guard::Asker;
use super::reading;
use super::thread::{LOOKS, Pushed};
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
/// Blocks that go back in one free of the program's, which waits for them.
const MOST_RELEASED: usize = 4;

/// How a free went so far.
enum Gone {
    Done,
    /// Work may still use it.
    Wait(&'static Block, &'static ContextPool),
    /// The driver has to decide.
    Real(&'static Block),
    Twice,
    NotOurs,
}

impl Pool {
    /// Frees a block; `None` if it is none of the pool's. `real` is the real function.
    #[inline]
    pub(crate) fn free(&'static self, call: &Call, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        match gate::note(|shim| self.begin(shim, addr)) {
            Some(Gone::Done) => Some(SUCCESS),
            Some(Gone::NotOurs) => None,
            Some(Gone::Twice) => Some(real(NOWHERE)),
            Some(Gone::Real(block)) => Some(self.give_up(block, real)),
            Some(Gone::Wait(block, owner)) => Some(self.wait(call, block, owner, real)),
            // Recording has ended: the block is the driver's again.
            None => {
                let block = self.map.get(addr).filter(|block| block.turn_to(addr, State::Live, State::Busy))?;
                Some(self.give_up(block, real))
            }
        }
    }

    #[inline]
    fn begin(&'static self, shim: &'static Shim, addr: u64) -> Gone {
        let Some(block) = self.map.get(addr) else { return Gone::NotOurs };
        if !block.turn_to(addr, State::Live, State::Busy) {
            // The same block again; one that is just being freed is the program's own race.
            return if block.is(State::Gone) { Gone::NotOurs } else { Gone::Twice };
        }
        let Some(owner) = ContextPool::of(block) else { return Gone::Real(block) };
        // Freed because it was pressed for, which was for the driver's sake.
        if stranded::freed(shim, addr) {
            return Gone::Real(block);
        }
        // Without a context the driver refuses a free.
        if block.has(PINNED | SPILLED) || self.aside(shim) || !self.find_context(shim) {
            return Gone::Real(block);
        }
        if self.is_looked_at() || !owner.known_idle() {
            return Gone::Wait(block, owner);
        }
        self.finish(shim, block, owner);
        shim.count(counters::POOL_BARRIERS_FREE, 1);
        Gone::Done
    }

    /// Whether something is to be done with each freed block.
    #[inline]
    fn is_looked_at(&self) -> bool {
        self.quarantine != 0 || self.fill == Fill::Poison || self.guard.is_some()
    }

    /// Looks whether this thread has a context; the records learn of one that is found.
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

    /// Keeps a block that no work uses.
    #[inline]
    fn finish(&'static self, shim: &'static Shim, block: &'static Block, owner: &'static ContextPool) {
        let bytes = block.asked.load(Relaxed) as i64;
        block_records::kept(shim, block);
        self.put(shim, block, owner, bytes);
    }

    /// Puts a block that no work uses where later requests find it. `bytes`: what leaves the program.
    #[inline]
    fn put(&'static self, shim: &'static Shim, block: &'static Block, owner: &'static ContextPool, bytes: i64) {
        let _transit = self.transit(owner);
        let cache = self.cache();
        let taken = cache.enter().filter(|taken| std::ptr::eq(taken.owner(), owner));
        let class = self.class_of(block.bytes.load(Relaxed));
        if let (Some(mut taken), Some(class)) = (taken, class) {
            block.set(State::Idle);
            if let Pushed::Kept(leaves) = taken.push(class, block, self.most_of_a_thread()) {
                let reported = taken.report(-bytes, self.unreported_at_most());
                drop(taken);
                if let Some(leaves) = leaves {
                    owner.keep(leaves, clock::now_ns());
                }
                return block_records::add_live(shim, owner, reported);
            }
        }
        owner.keep(block, clock::now_ns());
        block_records::add_live(shim, owner, -bytes);
        if self.over_most_idle(owner) > 0 {
            self.over_the_bound(owner);
        }
    }

    /// Work may still use the block.
    #[cold]
    fn wait(
        &'static self,
        call: &Call,
        block: &'static Block,
        owner: &'static ContextPool,
        real: impl FnOnce(u64) -> Status,
    ) -> Status {
        // What cannot go back beside work must not grow beside it.
        let with_it = || self.idle(owner) + block.bytes.load(Relaxed);
        let may_stay = !owner.frees_wait() || with_it() <= self.most_idle(owner);
        let may_wait_later = !self.is_looked_at() && owner.has_events() && may_stay;
        if self.is_deferred() && self.sees_all && may_wait_later {
            let _errno = KeepErrno::new();
            let bytes = block.asked.load(Relaxed) as i64;
            // Before: another thread may get the block at once.
            gate::note(|shim| block_records::kept(shim, block));
            // Nobody else finds the blocks that are looked at.
            let _transit = owner.in_transit.blocks.begin();
            match owner.keep_unless_completed(block, clock::now_ns()) {
                true => gate::note(|shim| self.put(shim, block, owner, bytes)),
                false => gate::note(|shim| block_records::add_live(shim, owner, -bytes)),
            };
            return SUCCESS;
        }
        let waited = {
            let _errno = KeepErrno::new();
            owner.prepare();
            if owner.has_pending() { owner.barrier_for_all(clock::now_ns()) } else { owner.barrier() }
        };
        match waited {
            Some(SUCCESS) => {}
            // Broken, or something captures by now: the driver's own answer.
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
            // What may still fill the block is waited for by the real free.
            if !guard.freed(&Asker::of(call), owner, block) {
                return self.give_up(block, real);
            }
            quarantine = quarantine.max(guard.quarantine(self.owners().len()));
        } else if self.fill == Fill::Poison {
            fill(owner, block, POISON);
        }
        if self.quarantine != 0 || self.guard.is_some() {
            // Its bytes leave the program now; the pool gets what has been there for long enough.
            gate::note(|shim| {
                block_records::add_live(shim, owner, -(block.asked.load(Relaxed) as i64));
                block_records::kept(shim, block);
            });
            done = None;
            let _errno = KeepErrno::new();
            self.leave_quarantine(owner, owner.quarantine(block, quarantine));
        }
        if let Some(block) = done {
            gate::note(|shim| self.finish(shim, block, owner));
        }
        self.pay(owner);
        SUCCESS
    }

    /// Inside a barrier of the program's own, what should go back goes.
    fn pay(&'static self, owner: &'static ContextPool) {
        self.measure(owner);
        // Where frees wait, nothing goes back elsewhere.
        let over = if owner.frees_wait() { self.over_most_idle(owner) } else { 0 };
        let due = owner.in_the_way(0).max(self.decayed(owner, clock::now_ns())).max(over);
        if due > 0 {
            self.release_where_waited(owner, Most::AtLeast(due, MOST_RELEASED), || true);
        }
    }

    /// Idle blocks above the bound go back. A free of the program's own that has made its barrier is the
    /// time for it.
    #[cold]
    fn over_the_bound(&'static self, owner: &'static ContextPool) {
        self.release_where_waited(owner, Most::AtLeast(self.over_most_idle(owner), MOST_RELEASED), || {
            owner.known_idle()
        });
    }

    /// The driver frees it. It is taken out before: another thread may get the address at once.
    fn give_up(&'static self, block: &'static Block, real: impl FnOnce(u64) -> Status) -> Status {
        let addr = block.addr.load(Relaxed);
        let owner = ContextPool::of(block);
        if let (Some(guard), Some(owner)) = (&self.guard, owner) {
            let _errno = KeepErrno::new();
            guard.given_up(gate::shim().is_none_or(|shim| self.aside(shim)), owner, block);
        }
        self.map.remove(addr);
        reading::wait(addr);
        if trace::on() {
            gate::note(|shim| block_records::trace_block(shim, Action::Free, block));
        }
        let status = match (owner, block.has(super::block::HOST)) {
            (Some(owner), true) => {
                // Host memory is no barrier by itself.
                let status = owner.barrier().unwrap_or(SUCCESS);
                if status == SUCCESS { owner.within(|| owner.calls.free_host(addr)) } else { status }
            }
            _ => real(block.driver_address(addr)),
        };
        activity::saw(status);
        if status != SUCCESS {
            block.set(State::Live);
            self.map.insert(addr, block);
            gate::note(|shim| {
                if trace::on() {
                    block_records::trace_block(shim, Action::Unfreed, block);
                }
                records::pooled::free_failed(shim, addr, status);
            });
            return status;
        }
        let _transit = owner.and_then(|owner| self.transit(owner));
        if let Some(owner) = owner {
            if !block.has(SPILLED) {
                let gone = owner.shrank(block.bytes.load(Relaxed));
                if let Some(shim) = gate::shim() {
                    records::grouped::gave(shim, owner.record(), gone);
                }
            }
            gate::note(|shim| block_records::given_up(shim, block, owner));
        }
        self.forget(block);
        status
    }

    /// A stream-ordered free: the driver decides, and the block is its own from then on.
    pub(crate) fn free_async(&'static self, addr: u64, real: impl FnOnce(u64) -> Status) -> Option<Status> {
        let block = self.map.get(addr).filter(|block| block.turn_to(addr, State::Live, State::Busy));
        match block {
            Some(block) => {
                gate::note(|shim| stranded::freed(shim, addr));
                Some(self.give_up(block, real))
            }
            None => self.map.get(addr).filter(|block| block.is(State::Idle)).map(|_| real(NOWHERE)),
        }
    }

    /// Empties all threads' caches.
    pub(crate) fn gather(&self, shim: &'static Shim) {
        for cache in self.caches() {
            let _ = (0..LOOKS).any(|_| self.empty(shim, cache));
        }
    }
}

/// Fills a block and waits for it.
pub(crate) fn fill(owner: &ContextPool, block: &Block, byte: u8) {
    let _errno = KeepErrno::new();
    owner.within(|| owner.calls.fill(block.base(), byte, block.bytes.load(Relaxed) as usize));
    let _ = owner.barrier();
}
