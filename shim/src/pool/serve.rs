//! Serves a request for memory with a block.

use super::block::{Block, INTACT, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::guard::Guard;
use super::rules::BlockRules;
use crate::call::Call;
use crate::process::errno::KeepErrno;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::stranded::{self, SMALLEST};
use gpumem_wire::counters;

/// Memory that was obtained for a request.
#[derive(Clone, Copy)]
pub(crate) struct Obtained {
    /// Its address, if the real function did not write it to the program's out-parameter.
    pub addr: Option<u64>,
    pub bytes: u64,
    pub flags: u32,
}

/// Result of the first look at a request: how to go on.
pub(crate) enum Lookup {
    Block(&'static Block),
    /// No idle block fits.
    None(&'static ContextPool, u64),
    /// The pool does not handle the request.
    Aside,
}

/// Makes an idle block live. `reported`: live bytes to add to its context's total now.
pub(super) fn hand_out(
    shim: &'static Shim,
    call: &Call,
    block: &'static Block,
    context_pool: &'static ContextPool,
    bytes: u64,
    reported: i64,
) {
    block.set_asked(bytes);
    if bytes >= SMALLEST && shim.stranded.waiting() {
        stranded::served(shim, call, bytes);
    }
    shim.count(counters::POOL_HITS, 1);
    let stack = shim.site(call.site(), Made::Memory(bytes));
    block_records::listed(shim, block, context_pool, bytes, stack);
    block_records::add_live(shim, context_pool, reported);
    block.set(State::Live);
}

/// Fills a block that is about to be live again, if the user asked for that, and has the guard watch it.
#[cold]
pub(super) fn fill(rules: &BlockRules, guard: Option<&Guard>, block: &'static Block) {
    let Some(context_pool) = ContextPool::of(block) else { return };
    if rules.zero() {
        let _errno = KeepErrno::new();
        context_pool.fill(block, 0);
        block.unmark(INTACT);
    }
    watch(guard, context_pool, block);
}

/// Lets the guard, if there is one, watch a block that is about to be live.
#[inline(always)]
pub(super) fn watch(guard: Option<&Guard>, context_pool: &'static ContextPool, block: &'static Block) {
    if let Some(guard) = guard {
        guard.watch(context_pool, block);
    }
}
