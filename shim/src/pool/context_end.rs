//! The end of a context with all of its blocks, and the undo if the driver refuses to end it.

use super::block::{Block, SPILLED, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::releaser::Releaser;
use crate::gate;
use crate::process::clock;
use crate::progress::device::LONGEST_HOLD;
use crate::records;
use gpumem_wire::trace::Action;
use rustc_hash::FxHashMap;

/// The blocks of a context that is about to end: no thread finds them any more.
#[must_use = "the context ends, or it stays"]
pub(crate) struct Leaving<'a> {
    releaser: &'a Releaser,
    context_pools: Vec<LeavingPool>,
    blocks: Vec<(&'static ContextPool, &'static Block, BlockState)>,
}

/// The pool of a context that is about to end.
struct LeavingPool {
    context_pool: &'static ContextPool,
    /// No thread's cache is bound to it any more.
    is_unbound: bool,
    /// Bytes that end with the context.
    bytes: u64,
}

/// State of a block before its context was to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Live,
    Idle,
    /// Freed, but work may still use it.
    Waiting,
}

impl Leaving<'_> {
    /// Completes the end: the context has ended.
    pub(crate) fn gone(self) {
        for &(context_pool, block, was) in &self.blocks {
            gate::record_if_started(|shim| block_records::lost(shim, block, context_pool, was == BlockState::Live));
            self.releaser.forget(block);
        }
        self.context_pools.iter().for_each(|its| its.context_pool.readers().clear());
        self.close();
    }

    /// Subtracts the bytes that ended with the contexts from the group's use. Keeps the unbound pools for reuse.
    fn close(&self) {
        for LeavingPool { context_pool, bytes, .. } in &self.context_pools {
            gate::shim().into_iter().for_each(|shim| records::grouped::gave(shim, context_pool.record(), *bytes));
        }
        let unbound = self.context_pools.iter().filter(|its| its.is_unbound).map(|its| its.context_pool);
        self.releaser.idle().contexts().keep_ended(unbound.collect());
    }

    /// Undoes the end that the driver refused. The program has its blocks as before, and idle blocks can be used again.
    /// The context gets a new pool, since threads' caches may still be bound to the old one.
    pub(crate) fn stay(self) {
        let mut context_pools = FxHashMap::default();
        let now = clock::now_ns();
        let contexts = self.releaser.idle().contexts();
        for &(before, block, was) in &self.blocks {
            let again = context_pools.entry(std::ptr::from_ref(before));
            let context_pool: &'static ContextPool = again.or_insert_with(|| contexts.begin_instead_of(before));
            let addr = block.addr();
            context_pool.claim(block);
            if !block.has(SPILLED) {
                context_pool.grew(block.bytes());
            }
            match was {
                BlockState::Live => {
                    block.set(State::Live);
                    gate::record_if_started(|shim| block_records::trace_block(shim, Action::Unfreed, block));
                }
                BlockState::Idle => context_pool.keep(block, now),
                BlockState::Waiting => context_pool.keep_waiting(block, now),
            }
            self.releaser.blocks().insert(addr, block);
        }
        // The bytes now count for the new pool.
        self.close();
        self.releaser.idle().share_out();
    }
}

/// Prepares the end of a context with all of its blocks.
pub(crate) fn begin(releaser: &Releaser, context: u64) -> Leaving<'_> {
    let contexts = releaser.idle().contexts();
    let (mut blocks, mut context_pools) = (Vec::new(), Vec::new());
    for context_pool in contexts.all().into_iter().filter(|context_pool| context_pool.context() == context) {
        context_pool.end();
        // A thread that is giving blocks back finishes first.
        context_pool.wait_for_releases(LONGEST_HOLD);
        let (idle, waiting) = context_pool.let_go();
        let (of_threads, is_unbound) = releaser.idle().caches().let_go(context_pool);
        let here = |was| move |block: &'static Block| (std::ptr::from_ref(block), was);
        let idle = idle.into_iter().chain(of_threads).map(here(BlockState::Idle));
        let ours: FxHashMap<_, _> = idle.chain(waiting.into_iter().map(here(BlockState::Waiting))).collect();
        for block in releaser.blocks().all().into_iter().filter(|block| context_pool.has(block)) {
            let addr = block.addr();
            // Another thread may get the address as soon as the context has ended.
            releaser.blocks().remove(addr);
            let live = !block.is(State::Idle);
            if live {
                gate::record_if_started(|shim| block_records::trace_block(shim, Action::Free, block));
            }
            // A block that another thread is handling now is not used again, since what that thread will do with it is
            // unknown.
            let was = match live {
                true => block.turn_to(addr, State::Live, State::Busy).then_some(BlockState::Live),
                false => ours.get(&std::ptr::from_ref(block)).copied(),
            };
            if let Some(was) = was {
                blocks.push((context_pool, block, was));
            } else {
                gate::record_if_started(|shim| block_records::lost(shim, block, context_pool, live));
                block.set(State::Gone);
            }
        }
        context_pools.push(LeavingPool { context_pool, is_unbound, bytes: context_pool.lost_all() });
    }
    contexts.forget_gone();
    releaser.idle().share_out();
    Leaving { releaser, context_pools, blocks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_wire::kinds::Vendor;
    use rustc_hash::FxHashSet;

    /// Many contexts of one device, one after another, share a few pools. A late action of a thread for an ended
    /// context does not reach the next context.
    #[test]
    fn context_pools_of_ended_contexts_are_used_again() {
        let releaser = Releaser::new(Vendor::Cuda, None, true);
        let block = |context_pool: &'static ContextPool, addr: u64| {
            let block = releaser.blocks().spare();
            block.set_addr(addr);
            block.set_bytes(4096);
            context_pool.claim(block);
            block.set(State::Busy);
            releaser.blocks().insert(addr, block);
            block
        };
        let (mut all, mut late) = (FxHashSet::default(), None);
        for context in 1..=2000_u64 {
            let context_pool = releaser.idle().contexts().add_for_test(context, 0, 0);
            assert_eq!((context_pool.context(), context_pool.is_gone(), context_pool.held()), (context, false, 0));
            context_pool.grew(4096);
            all.insert(std::ptr::from_ref(context_pool));
            // A thread is handling this block when the context ends.
            let in_hand = block(context_pool, context << 20);
            if context == 1 {
                late = Some((context_pool, context_pool.generation(), in_hand));
            }
            begin(&releaser, context).gone();
        }
        assert!(all.len() < 100, "{} context_pools", all.len());
        let (context_pool, generation, block) = late.unwrap();
        assert!(context_pool.generation() > generation);
        context_pool.keep(block, 0);
        context_pool.keep_event(generation, Some(7 as _));
        assert_eq!(context_pool.idle_blocks(), (0, 0));
        assert!(context_pool.take(4096, 0).is_none());
    }

    /// Contexts come and go without end, each with live blocks, idle blocks, and blocks in a thread's cache.
    #[test]
    fn blocks_of_ended_contexts_are_used_again() {
        const BLOCKS: u64 = 300;
        let releaser = Releaser::new(Vendor::Cuda, None, true);
        let cache = releaser.idle().caches().add_for_test();
        let mut all = FxHashSet::default();
        for context in 1..=20_u64 {
            let context_pool = releaser.idle().contexts().add_for_test(context, 0, 0);
            cache.take().unwrap().rebind(Some(context_pool));
            let mut of_it = FxHashSet::default();
            for n in 1..=BLOCKS {
                let block = releaser.blocks().spare();
                assert!(of_it.insert(std::ptr::from_ref(block)));
                let addr = (context << 32) + (n << 12);
                block.set_addr(addr);
                block.set_bytes(4096);
                context_pool.claim(block);
                block.set(State::Live);
                releaser.blocks().insert(addr, block);
                match n % 3 {
                    0 => {}
                    1 => context_pool.keep(block, 0),
                    _ => {
                        block.set(State::Idle);
                        if cache.take().unwrap().push(3, block, 1 << 20).is_none() {
                            context_pool.keep(block, 0);
                        }
                    }
                }
            }
            all.extend(of_it);
            begin(&releaser, context).gone();
            assert!(releaser.blocks().all().is_empty() && releaser.idle().contexts().all().is_empty());
            assert_eq!((context_pool.idle_blocks(), cache.bytes()), ((0, 0), 0));
        }
        assert_eq!(all.len() as u64, BLOCKS);
    }
}
