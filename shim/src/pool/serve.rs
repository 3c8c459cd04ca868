//! A request for memory: a block that is idle, or the record of a new one.

use super::block::{Block, NO_CLASS, SPILLED, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::guard::Guard;
use super::quota::Quota;
use super::releaser::Releaser;
use super::rules::BlockRules;
use super::size;
use super::thread_caches::rebind;
use crate::call::Call;
use crate::gate;
use crate::process::errno::KeepErrno;
use crate::records;
use crate::shim::Shim;
use crate::stranded;
use crate::stranded::{SMALLEST, Watch};
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;

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

/// An idle block for a request, if one fits.
#[inline]
pub(super) fn find(
    rules: &BlockRules,
    quota: &Quota,
    releaser: &Releaser,
    shim: &'static Shim,
    call: &Call,
    bytes: u64,
) -> Lookup {
    if releaser.switch().aside(shim) {
        shim.count(counters::POOL_PASSED, 1);
        return Lookup::Aside;
    }
    let rounded = match releaser.guard() {
        None => rules.rounded(bytes),
        Some(guard) => guard.rounded(bytes),
    };
    let Some(rounded) = rounded else { return Lookup::Aside };
    let idle = releaser.idle();
    let cache = idle.cache();
    let Some(context_pool) = idle.context_pool_here(shim, cache) else { return Lookup::Aside };
    let (mut block, mut reported) = (None, bytes as i64);
    if let Some(mut taken) = cache.enter() {
        if !taken.is_of(context_pool) {
            rebind(shim, &mut taken, Some(context_pool));
        }
        block = rules.class_of(rounded).and_then(|class| taken.pop_for(class));
        if block.is_some() {
            reported = taken.report(bytes as i64, quota.unreported_at_most());
        }
    }
    let block = match block.or_else(|| idle.take(rules, context_pool, rounded)) {
        Some(block) => block,
        None => return Lookup::None(context_pool, rounded),
    };
    hand_out(shim, call, block, context_pool, bytes, reported);
    Lookup::Block(block)
}

/// An idle block becomes live. `reported`: live bytes that are added to its context's total now.
pub(super) fn hand_out(
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

/// Makes a live block of memory that the driver has just given at `addr`. `generation`: the context pool's generation
/// when the request began.
pub(super) fn adopt(
    rules: &BlockRules,
    releaser: &Releaser,
    call: &Call,
    (context_pool, generation): (&'static ContextPool, u32),
    addr: u64,
    obtained: Obtained,
    watch: &Watch,
) {
    let blocks = releaser.blocks();
    let block = blocks.spare();
    block.addr.store(addr, Relaxed);
    block.bytes.store(obtained.bytes, Relaxed);
    // A spilled block goes back to the driver when it is freed. A class has blocks of one size.
    let is_of_a_class = |bytes: &u64| obtained.flags & SPILLED == 0 && size::rounded(*bytes) == Some(*bytes);
    let class = Some(obtained.bytes).filter(is_of_a_class).and_then(|bytes| rules.class_of(bytes));
    block.class.store(class.map_or(NO_CLASS, |class| class as u32), Relaxed);
    block.asked.store(watch.bytes, Relaxed);
    block.flags.store(obtained.flags, Relaxed);
    context_pool.claim(block);
    if obtained.flags & SPILLED == 0 {
        context_pool.grew(obtained.bytes);
        if let Some(shim) = gate::shim() {
            records::grouped::took(shim, context_pool.record(), obtained.bytes);
        }
        watch_block(releaser.guard(), context_pool, block);
    }
    gate::note(|shim| {
        block_records::miss(shim, call, block, context_pool, watch.bytes, watch.stack());
        watch.made(shim, addr);
    });
    block.set(State::Live);
    blocks.insert(addr, block);
    releaser.idle().measure(context_pool);
    // The context ended meanwhile, and the memory with it.
    if context_pool.generation() != generation && block.turn_to(addr, State::Live, State::Gone) {
        blocks.remove(addr);
    }
}

/// Fills a block that is about to be live again, if the user asked for that, and has the guard watch it.
#[cold]
pub(super) fn fill(rules: &BlockRules, guard: Option<&Guard>, block: &'static Block) {
    let Some(context_pool) = ContextPool::of(block) else { return };
    if rules.zero() {
        let _errno = KeepErrno::new();
        context_pool.fill(block, 0);
    }
    watch_block(guard, context_pool, block);
}

/// Has the guard, if there is one, watch a block that is about to be live.
#[inline(always)]
fn watch_block(guard: Option<&Guard>, context_pool: &'static ContextPool, block: &'static Block) {
    if let Some(guard) = guard {
        guard.watch(context_pool, block);
    }
}

/// Where the program's part of a new block begins, and the flags that say so.
pub(super) fn start(guard: Option<&Guard>, addr: u64, obtained: &Obtained, asked: u64) -> (u64, u32) {
    match guard.filter(|_| obtained.flags & SPILLED == 0) {
        Some(guard) => guard.start(addr, obtained.bytes, asked),
        None => (addr, 0),
    }
}
