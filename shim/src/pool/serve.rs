//! A request for memory: a block that is idle, or the record of a new one.

use super::block::{Block, NO_CLASS, SPILLED, State};
use super::block_records;
use super::context_pool::{ContextPool, Most};
use super::{Pool, UNREPORTED, size};
use crate::call::Call;
use crate::gate;
use crate::process::clock;
use crate::process::errno::KeepErrno;
use crate::records;
use crate::shim::Shim;
use crate::stranded;
use crate::stranded::{SMALLEST, Watch};
use gpumem_wire::counters;
use gpumem_wire::settings::Fill;
use std::sync::atomic::Ordering::*;

/// The most idle blocks that make way for one new block.
const MOST_IN_THE_WAY: usize = 64;

/// What was obtained for a request.
#[derive(Clone, Copy)]
pub(crate) struct Obtained {
    /// Its address, if the real function did not write it to the program's out-parameter.
    pub addr: Option<u64>,
    pub bytes: u64,
    pub flags: u32,
}

/// What the first look at a request says about the rest of it.
pub(crate) enum Lookup {
    Block(&'static Block),
    /// No idle block fits.
    None(&'static ContextPool, u64),
    /// The pool has nothing to do with it.
    Aside,
}

impl Pool {
    /// An idle block for a request, if one fits.
    #[inline]
    pub(crate) fn find(&'static self, shim: &'static Shim, call: &Call, bytes: u64) -> Lookup {
        if self.aside(shim) {
            shim.count(counters::POOL_PASSED, 1);
            return Lookup::Aside;
        }
        let rounded = match &self.guard {
            None if self.exact => Some(bytes),
            None => size::rounded(bytes),
            Some(guard) => guard.rounded(bytes),
        };
        let Some(rounded) = rounded else { return Lookup::Aside };
        let cache = self.cache();
        let Some(context_pool) = self.context_pool_here(shim, cache) else { return Lookup::Aside };
        let (mut block, mut reported) = (None, bytes as i64);
        if let Some(mut taken) = cache.enter() {
            if !std::ptr::eq(taken.context_pool(), context_pool) {
                self.rebind(shim, &mut taken, context_pool);
            }
            block = self.class_of(rounded).and_then(|class| taken.pop_for(class));
            if block.is_some() {
                reported = taken.report(bytes as i64, self.unreported_at_most());
            }
        }
        let block = match block.or_else(|| self.take_central(context_pool, rounded)) {
            Some(block) => block,
            None => return Lookup::None(context_pool, rounded),
        };
        self.handed_out(shim, call, block, context_pool, bytes, reported);
        Lookup::Block(block)
    }

    /// An idle block becomes live. `reported`: live bytes that are added to its context's total now.
    pub(crate) fn handed_out(
        &'static self,
        shim: &'static Shim,
        call: &Call,
        block: &'static Block,
        context_pool: &'static ContextPool,
        bytes: u64,
        reported: i64,
    ) {
        block.asked.store(bytes, Relaxed);
        if bytes >= SMALLEST && shim.stranded.waiting() {
            stranded::served(shim, call, bytes);
        }
        block_records::hit(shim, call, block, context_pool, bytes, reported);
        block.set(State::Live);
    }

    /// The class of sizes of a block, if threads keep blocks of that size.
    #[inline]
    pub(super) fn class_of(&self, rounded: u64) -> Option<usize> {
        if self.exact { None } else { size::class_of(rounded) }
    }

    fn slack(&self, rounded: u64) -> u64 {
        if self.exact { 0 } else { size::slack(rounded) }
    }

    fn take_central(&self, context_pool: &'static ContextPool, rounded: u64) -> Option<&'static Block> {
        if context_pool.idle() == 0 {
            return None;
        }
        let take = || context_pool.take(rounded, self.slack(rounded));
        if !self.may_have_pending() || !context_pool.has_pending() {
            return take();
        }
        take().or_else(|| {
            context_pool.reap(clock::now_ns());
            take()
        })
    }

    /// A block from the cache of a thread that has ended.
    #[inline]
    pub(crate) fn take_of_ended_threads(
        &self,
        context_pool: &'static ContextPool,
        rounded: u64,
    ) -> Option<&'static Block> {
        if self.has_threads.load(Relaxed) && self.collect_ended() {
            self.take_central(context_pool, rounded)
        } else {
            None
        }
    }

    /// Idle blocks of other sizes make way for a new one.
    #[inline]
    pub(crate) fn make_way_for(&'static self, context_pool: &'static ContextPool, rounded: u64) {
        if context_pool.idle() != 0 {
            self.make_way_of_idle(context_pool, rounded);
        }
    }

    #[inline(never)]
    fn make_way_of_idle(&'static self, context_pool: &'static ContextPool, rounded: u64) {
        let in_the_way = context_pool.in_the_way(rounded);
        if in_the_way > 0 {
            self.make_way(context_pool, Most::AtLeast(in_the_way, MOST_IN_THE_WAY));
        }
    }

    /// How many live bytes a thread may leave out of its context's total. None where live bytes are counted against a
    /// limit.
    #[inline]
    pub(super) fn unreported_at_most(&self) -> i64 {
        if self.limit.load(Relaxed) == 0 { UNREPORTED } else { 0 }
    }

    /// Makes a live block of memory that the driver has just given at `addr`. `generation`: the pool's generation when
    /// the request began.
    pub(crate) fn adopt(
        &'static self,
        call: &Call,
        (context_pool, generation): (&'static ContextPool, u32),
        addr: u64,
        obtained: Obtained,
        watch: &Watch,
    ) {
        let block = self.blocks.spare();
        block.addr.store(addr, Relaxed);
        block.bytes.store(obtained.bytes, Relaxed);
        // A spilled block goes back to the driver when it is freed. A class has blocks of one size.
        let is_of_a_class = |bytes: &u64| obtained.flags & SPILLED == 0 && size::rounded(*bytes) == Some(*bytes);
        let class = Some(obtained.bytes).filter(is_of_a_class).and_then(|bytes| self.class_of(bytes));
        block.class.store(class.map_or(NO_CLASS, |class| class as u32), Relaxed);
        block.asked.store(watch.bytes, Relaxed);
        block.flags.store(obtained.flags, Relaxed);
        context_pool.claim(block);
        if obtained.flags & SPILLED == 0 {
            context_pool.grew(obtained.bytes);
            if let Some(shim) = gate::shim() {
                records::grouped::took(shim, context_pool.record(), obtained.bytes);
            }
            self.watch(context_pool, block);
        }
        gate::note(|shim| {
            block_records::miss(shim, call, block, context_pool, watch.bytes, watch.stack());
            watch.made(shim, addr);
        });
        block.set(State::Live);
        self.blocks.insert(addr, block);
        self.measure(context_pool);
        // The context ended meanwhile, and the memory with it.
        if context_pool.generation() != generation && block.turn_to(addr, State::Live, State::Gone) {
            self.blocks.remove(addr);
        }
    }

    /// Fills a block that is about to be live again, if the user asked for that, and has the guard watch it.
    #[cold]
    pub(crate) fn filled(&self, block: &'static Block) {
        let Some(context_pool) = ContextPool::of(block) else { return };
        if self.fill == Fill::Zero {
            let _errno = KeepErrno::new();
            context_pool.fill(block, 0);
        }
        self.watch(context_pool, block);
    }

    /// Has the guard, if there is one, watch a block that is about to be live.
    #[inline(always)]
    fn watch(&self, context_pool: &'static ContextPool, block: &'static Block) {
        if let Some(guard) = &self.guard {
            guard.watch(context_pool, block);
        }
    }

    /// Whether a block is to be filled, or watched, before the program gets it again.
    pub(crate) fn fills(&self) -> bool {
        !self.plain && (self.fill != Fill::None || self.guard.is_some())
    }

    /// Where the program's part of a new block begins, and the flags that say so.
    pub(crate) fn start(&self, addr: u64, obtained: &Obtained, asked: u64) -> (u64, u32) {
        match self.guard.as_ref().filter(|_| obtained.flags & SPILLED == 0) {
            Some(guard) => guard.start(addr, obtained.bytes, asked),
            None => (addr, 0),
        }
    }
}
