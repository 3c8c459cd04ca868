//! A request for memory: a block that is idle, or the record of a new one.

use super::block::{Block, NO_CLASS, SPILLED, State};
use super::block_records;
use super::context_pool::{ContextPool, Most};
use super::{Pool, UNREPORTED, give, size};
use crate::call::Call;
use crate::gate;
use crate::process::clock;
use crate::records;
use crate::shim::Shim;
use crate::stranded;
use crate::stranded::{SMALLEST, Watch};
use gpumem_wire::counters;
use gpumem_wire::settings::Fill;
use std::sync::atomic::Ordering::*;

/// Idle blocks that make way for one new block at most.
const MOST_IN_THE_WAY: usize = 64;

/// What was obtained for a request.
#[derive(Clone, Copy)]
pub(crate) struct Obtained {
    /// Its address, where the real function did not give it.
    pub addr: Option<u64>,
    pub bytes: u64,
    pub flags: u32,
}

/// How a request went so far.
pub(crate) enum Lookup {
    Block(&'static Block),
    /// There is none that fits.
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
        let Some(owner) = self.owner_here(shim, cache) else { return Lookup::Aside };
        let (mut block, mut reported) = (None, bytes as i64);
        if let Some(mut taken) = cache.enter() {
            if !std::ptr::eq(taken.owner(), owner) {
                self.rebind(shim, &mut taken, owner);
            }
            block = self.class_of(rounded).and_then(|class| taken.pop_for(class));
            if block.is_some() {
                reported = taken.report(bytes as i64, self.unreported_at_most());
            }
        }
        let block = match block.or_else(|| self.take_central(owner, rounded)) {
            Some(block) => block,
            None => return Lookup::None(owner, rounded),
        };
        self.handed_out(shim, call, block, owner, bytes, reported);
        Lookup::Block(block)
    }

    /// An idle block is the program's. `reported`: live bytes that are reported to its context now.
    pub(crate) fn handed_out(
        &'static self,
        shim: &'static Shim,
        call: &Call,
        block: &'static Block,
        owner: &'static ContextPool,
        bytes: u64,
        reported: i64,
    ) {
        block.asked.store(bytes, Relaxed);
        if bytes >= SMALLEST && shim.stranded.waiting() {
            stranded::served(shim, call, bytes);
        }
        block_records::hit(shim, call, block, owner, bytes, reported);
        block.set(State::Live);
    }

    /// The class of blocks that threads keep.
    #[inline]
    pub(super) fn class_of(&self, rounded: u64) -> Option<usize> {
        if self.exact { None } else { size::class_of(rounded) }
    }

    fn slack(&self, rounded: u64) -> u64 {
        if self.exact { 0 } else { size::slack(rounded) }
    }

    fn take_central(&self, owner: &'static ContextPool, rounded: u64) -> Option<&'static Block> {
        if owner.idle() == 0 {
            return None;
        }
        let take = || owner.take(rounded, self.slack(rounded));
        if !self.may_have_pending() || !owner.has_pending() {
            return take();
        }
        take().or_else(|| {
            owner.reap(clock::now_ns());
            take()
        })
    }

    /// A block that a thread kept which has ended meanwhile.
    pub(crate) fn take_of_ended_threads(&self, owner: &'static ContextPool, rounded: u64) -> Option<&'static Block> {
        if self.collect_ended() { self.take_central(owner, rounded) } else { None }
    }

    /// Idle blocks of other sizes make way for a new one.
    pub(crate) fn make_way_for(&'static self, owner: &'static ContextPool, rounded: u64) {
        let in_the_way = owner.in_the_way(rounded);
        if in_the_way > 0 {
            self.make_way(owner, Most::AtLeast(in_the_way, MOST_IN_THE_WAY));
        }
    }

    /// Live bytes that a thread may keep from its context: none where they are counted against a limit.
    #[inline]
    pub(super) fn unreported_at_most(&self) -> i64 {
        if self.limit.load(Relaxed) == 0 { UNREPORTED } else { 0 }
    }

    /// Binds a thread's cache to another context; what it had goes to all.
    #[cold]
    pub(super) fn rebind(&self, shim: &'static Shim, taken: &mut super::thread::Taken<'_>, owner: *const ContextPool) {
        let before = taken.owner();
        let unreported = taken.unreported();
        let now = clock::now_ns();
        let blocks = taken.rebind(owner);
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        if let Some(before) = unsafe { before.cast::<ContextPool>().as_ref() } {
            let before: &'static ContextPool = before;
            block_records::add_live(shim, before, unreported);
            if !before.gone.load(Relaxed) {
                blocks.into_iter().for_each(|block| before.keep(block, now));
            }
        }
    }

    /// Takes a thread's cache empty, for all to have; whether that could be done.
    pub(super) fn empty(&self, shim: &'static Shim, cache: &super::ThreadCache) -> bool {
        let Some(mut taken) = cache.take() else { return false };
        let owner = taken.owner();
        self.rebind(shim, &mut taken, owner);
        true
    }

    /// Takes up a block that the driver has just given at `addr`, as the program's, for what the owner was then.
    pub(crate) fn adopt(
        &'static self,
        call: &Call,
        (owner, generation): (&'static ContextPool, u32),
        addr: u64,
        obtained: Obtained,
        watch: &Watch,
    ) {
        let block = self.spare();
        block.addr.store(addr, Relaxed);
        block.bytes.store(obtained.bytes, Relaxed);
        // One that was spilled goes back to the driver; a class has blocks of one size.
        let is_of_a_class = |bytes: &u64| obtained.flags & SPILLED == 0 && size::rounded(*bytes) == Some(*bytes);
        let class = Some(obtained.bytes).filter(is_of_a_class).and_then(|bytes| self.class_of(bytes));
        block.class.store(class.map_or(NO_CLASS, |class| class as u32), Relaxed);
        block.asked.store(watch.bytes, Relaxed);
        block.flags.store(obtained.flags, Relaxed);
        owner.owns(block);
        if obtained.flags & SPILLED == 0 {
            owner.grew(obtained.bytes);
            if let Some(shim) = gate::shim() {
                records::grouped::took(shim, owner.record(), obtained.bytes);
            }
            self.watch(owner, block);
        }
        gate::note(|shim| {
            block_records::miss(shim, call, block, owner, watch.bytes, watch.stack());
            watch.made(shim, addr);
        });
        block.set(State::Live);
        self.map.insert(addr, block);
        self.measure(owner);
        // Its context ended meanwhile, and the memory with it.
        if owner.generation() != generation && block.turn_to(addr, State::Live, State::Gone) {
            self.map.remove(addr);
        }
    }

    /// Fills a block that is about to be the program's again, if that was asked for, and has the guard watch it.
    #[cold]
    pub(crate) fn filled(&self, block: &'static Block) {
        let Some(owner) = ContextPool::of(block) else { return };
        if self.fill == Fill::Zero {
            give::fill(owner, block, 0);
        }
        self.watch(owner, block);
    }

    /// Has the guard, if there is one, watch a block that is about to be the program's.
    fn watch(&self, owner: &'static ContextPool, block: &'static Block) {
        if let Some(guard) = &self.guard {
            guard.watch(owner, block);
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
