//! A context ends, and all of its blocks with it. Or it was to end, and the driver refused.

use super::block::{Block, SPILLED, State};
use super::block_records;
use super::context_pool::ContextPool;
use super::thread::LOOKS;
use super::{Pool, lock};
use crate::gate;
use crate::process::clock;
use crate::progress::device::LONGEST_HOLD;
use crate::records;
use gpumem_abi::types::Device;
use gpumem_wire::layout::ContextRef;
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering::*;

/// The blocks of a context that is about to end: nobody finds them any more.
#[must_use = "the context ends, or it stays"]
pub(crate) struct Leaving<'a> {
    pool: &'a Pool,
    /// The pools of contexts that no thread's cache is bound to any more.
    context_pools: Vec<&'static ContextPool>,
    blocks: Vec<(&'static ContextPool, &'static Block, BlockState)>,
    /// Pools whose readers end with the context.
    reading: Vec<&'static ContextPool>,
    /// Bytes that end with each context, by the context's record.
    bytes: Vec<(ContextRef, u64)>,
}

/// What a block was before its context was to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Live,
    Idle,
    /// Freed, but work may still use it.
    Waiting,
}

impl Leaving<'_> {
    /// The context has ended.
    pub(crate) fn gone(self) {
        for (context_pool, block, was) in self.blocks {
            gate::record_if_started(|shim| block_records::lost(shim, block, context_pool, was == BlockState::Live));
            self.pool.forget(block);
        }
        self.reading.iter().for_each(|context_pool| context_pool.readers.clear());
        gave(&self.bytes);
        lock(&self.pool.ended).extend(self.context_pools);
    }

    /// The driver refused to end the context. The program has its blocks as before, and idle blocks can be used again.
    /// The context gets a new pool, since caches of threads may still be bound to the old one.
    pub(crate) fn stay(self) {
        let mut context_pools = FxHashMap::default();
        let now = clock::now_ns();
        for (before, block, was) in self.blocks {
            let again = || {
                let ContextPool { vendor, device, share, calls, in_transit, .. } = *before;
                let (context, record) = (before.context(), before.record());
                let again = ContextPool::new(vendor, context, record, device, share, calls, in_transit);
                again.release_stream.store(before.release_stream.load(Relaxed), Relaxed);
                let again: &'static ContextPool = Box::leak(Box::new(again));
                self.pool.add(&mut lock(&self.pool.context_pools), again);
                again
            };
            let context_pool = *context_pools.entry(std::ptr::from_ref(before)).or_insert_with(again);
            let addr = block.addr.load(Relaxed);
            context_pool.claim(block);
            if !block.has(SPILLED) {
                let bytes = block.bytes.load(Relaxed);
                context_pool.grew(bytes);
                if let Some(shim) = gate::shim() {
                    records::grouped::took(shim, context_pool.record(), bytes);
                }
            }
            match was {
                BlockState::Live => {
                    block.set(State::Live);
                    gate::record_if_started(|shim| block_records::stays(shim, block));
                }
                BlockState::Idle => context_pool.keep(block, now),
                BlockState::Waiting => context_pool.keep_waiting(block, now),
            }
            self.pool.blocks.insert(addr, block);
        }
        // These bytes are counted with the new pool by now.
        gave(&self.bytes);
        lock(&self.pool.ended).extend(self.context_pools);
        self.pool.share_out();
    }
}

/// What ended with a context no longer counts as taken from the group.
fn gave(bytes: &[(ContextRef, u64)]) {
    if let Some(shim) = gate::shim() {
        bytes.iter().for_each(|(context, bytes)| records::grouped::gave(shim, *context, *bytes));
    }
}

impl Pool {
    /// The pool for one more context.
    pub(super) fn context_pool_for(
        &self,
        context_pools: &mut Vec<&'static ContextPool>,
        context: u64,
        record: ContextRef,
        device: Device,
        share: u64,
    ) -> &'static ContextPool {
        let context_pool = match self.ended_long_ago(device) {
            Some(context_pool) => {
                context_pool.begin_again(context, record);
                context_pool
            }
            None => {
                let in_transit = self.in_transit_on(device);
                Box::leak(Box::new(ContextPool::new(
                    self.vendor,
                    context,
                    record,
                    device,
                    share,
                    self.calls,
                    in_transit,
                )))
            }
        };
        self.add(context_pools, context_pool);
        context_pool
    }

    /// The pool of an ended context of this device, to be used again. A program may, against its own order, still have
    /// a thread at work on a pool whose context ended. That thread gets time to finish: a pool is used again only after
    /// so many other contexts have ended.
    fn ended_long_ago(&self, device: Device) -> Option<&'static ContextPool> {
        const AT_LEAST: usize = 64;
        let mut ended = lock(&self.ended);
        let long_ago = ended.len().checked_sub(AT_LEAST)?;
        let at = ended.iter().take(long_ago).position(|context_pool| context_pool.device == device)?;
        ended.remove(at)
    }

    /// A context is about to end, and all of its blocks with it.
    pub(crate) fn context_going(&self, context: u64) -> Leaving<'_> {
        let (mut blocks, mut context_pools, mut reading, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for context_pool in self.context_pools().into_iter().filter(|context_pool| context_pool.context() == context) {
            context_pool.gone.store(true, SeqCst);
            // A thread that gives blocks back just now finishes first.
            context_pool.wait_for_releases(LONGEST_HOLD);
            reading.push(context_pool);
            let (idle, waiting) = context_pool.let_go();
            let here = |was| move |block: &'static Block| (std::ptr::from_ref(block), was);
            let mut ours: FxHashMap<*const Block, BlockState> = idle.into_iter().map(here(BlockState::Idle)).collect();
            ours.extend(waiting.into_iter().map(here(BlockState::Waiting)));
            let (of_threads, all_let_go) = self.caches_let_go(context_pool);
            ours.extend(of_threads.into_iter().map(here(BlockState::Idle)));
            context_pools.extend(all_let_go.then_some(context_pool));
            for block in self
                .blocks
                .all()
                .into_iter()
                .filter(|block| ContextPool::of(block).is_some_and(|its| std::ptr::eq(its, context_pool)))
            {
                let addr = block.addr.load(Relaxed);
                // Another thread may get the address as soon as the context has ended.
                self.blocks.remove(addr);
                let live = !block.is(State::Idle);
                if live {
                    gate::record_if_started(|shim| block_records::leaves(shim, block));
                }
                // A block that another thread is at just now is not used again, since nobody knows what that thread
                // will do with it.
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
            bytes.push((context_pool.record(), context_pool.lost_all()));
        }
        lock(&self.context_pools).retain(|context_pool| !context_pool.gone.load(Relaxed));
        self.share_out();
        Leaving { pool: self, context_pools, blocks, reading, bytes }
    }

    /// Takes the blocks of a context out of threads' caches. False: not all of them could be taken.
    fn caches_let_go(&self, context_pool: &'static ContextPool) -> (Vec<&'static Block>, bool) {
        let (mut blocks, mut all) = (Vec::new(), true);
        for cache in self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_context_pool(), context_pool)) {
            let Some(mut taken) = (0..LOOKS).find_map(|_| cache.take()) else {
                all = false;
                continue;
            };
            if std::ptr::eq(taken.context_pool(), context_pool) {
                let unreported = taken.unreported();
                gate::record_if_started(|shim| block_records::add_live(shim, context_pool, unreported));
                blocks.extend(taken.rebind(std::ptr::null()));
            }
        }
        (blocks, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::thread::{Pushed, ThreadCache};
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;
    use rustc_hash::FxHashSet;

    /// Many contexts of one device, one after another, share a few pools. What a thread does late for an ended context
    /// does not reach the next context.
    #[test]
    fn context_pools_of_ended_contexts_are_used_again() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let block = |context_pool: &'static ContextPool, addr: u64| {
            let block = pool.blocks.spare();
            block.addr.store(addr, Relaxed);
            block.bytes.store(4096, Relaxed);
            context_pool.claim(block);
            block.set(State::Busy);
            pool.blocks.insert(addr, block);
            block
        };
        let (mut all, mut late) = (FxHashSet::default(), None);
        for context in 1..=2000_u64 {
            let context_pool = pool.context_pool_for(&mut lock(&pool.context_pools), context, 1, 0, 0);
            assert_eq!(
                (context_pool.context(), context_pool.gone.load(Relaxed), context_pool.held()),
                (context, false, 0)
            );
            context_pool.grew(4096);
            all.insert(std::ptr::from_ref(context_pool));
            // A thread is at this block when the context ends.
            let in_hand = block(context_pool, context << 20);
            if context == 1 {
                late = Some((context_pool, context_pool.generation(), in_hand));
            }
            pool.context_going(context).gone();
        }
        assert!(all.len() < 100, "{} context_pools", all.len());
        let (context_pool, generation, block) = late.unwrap();
        assert!(context_pool.generation() > generation);
        context_pool.keep(block, 0);
        context_pool.keep_event(generation, Some(7 as _));
        assert_eq!(context_pool.idle_blocks(), (0, 0));
        assert!(context_pool.take(4096, 0).is_none());
    }

    /// Contexts come and go without end, each with blocks that are live, idle, and in a thread's cache.
    #[test]
    fn blocks_of_ended_contexts_are_used_again() {
        const BLOCKS: u64 = 300;
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let cache: &'static ThreadCache = Box::leak(Box::default());
        lock(&pool.caches).push(cache);
        let mut all = FxHashSet::default();
        for context in 1..=20_u64 {
            let context_pool = ContextPool::made_up(context, 0, 0);
            lock(&pool.context_pools).push(context_pool);
            cache.take().unwrap().rebind(context_pool);
            let mut of_it = FxHashSet::default();
            for n in 1..=BLOCKS {
                let block = pool.blocks.spare();
                assert!(of_it.insert(std::ptr::from_ref(block)));
                let addr = (context << 32) + (n << 12);
                block.addr.store(addr, Relaxed);
                block.bytes.store(4096, Relaxed);
                context_pool.claim(block);
                block.set(State::Live);
                pool.blocks.insert(addr, block);
                match n % 3 {
                    0 => {}
                    1 => context_pool.keep(block, 0),
                    _ => {
                        block.set(State::Idle);
                        if let Pushed::Full = cache.take().unwrap().push(3, block, 1 << 20) {
                            context_pool.keep(block, 0);
                        }
                    }
                }
            }
            all.extend(of_it);
            pool.context_going(context).gone();
            assert!(pool.blocks.all().is_empty() && lock(&pool.context_pools).is_empty());
            assert_eq!((context_pool.idle_blocks(), cache.bytes.load(Relaxed)), ((0, 0), 0));
        }
        assert_eq!(all.len() as u64, BLOCKS);
    }
}
