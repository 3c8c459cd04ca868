//! A context ends, and all of its blocks with it; or it was to end, and the driver refused.

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
    /// Those that no thread's cache is bound to any more.
    owners: Vec<&'static ContextPool>,
    blocks: Vec<(&'static ContextPool, &'static Block, Was)>,
    /// Bytes that go with the context, by its record.
    bytes: Vec<(ContextRef, u64)>,
}

/// What a block was that leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Was {
    Live,
    Idle,
    /// Freed, and work may use it.
    Waiting,
}

impl Leaving<'_> {
    /// The context has ended.
    pub(crate) fn gone(self) {
        for (owner, block, was) in self.blocks {
            gate::record_if_started(|shim| block_records::lost(shim, block, owner, was == Was::Live));
            self.pool.forget(block);
        }
        gave(&self.bytes);
        lock(&self.pool.ended).extend(self.owners);
    }

    /// The driver refused: what the program had it has, and what was idle is of use. The pool of the context is a
    /// new one, since caches of threads may still be bound to the old one.
    pub(crate) fn stay(self) {
        let mut owners = FxHashMap::default();
        let now = clock::now_ns();
        for (before, block, was) in self.blocks {
            let again = || {
                let ContextPool { vendor, device, share, calls, in_transit, .. } = *before;
                let (context, record) = (before.context(), before.record());
                let again = ContextPool::new(vendor, context, record, device, share, calls, in_transit);
                again.release_stream.store(before.release_stream.load(Relaxed), Relaxed);
                let again: &'static ContextPool = Box::leak(Box::new(again));
                self.pool.add(&mut lock(&self.pool.owners), again);
                again
            };
            let owner = *owners.entry(std::ptr::from_ref(before)).or_insert_with(again);
            let addr = block.addr.load(Relaxed);
            owner.owns(block);
            if !block.has(SPILLED) {
                let bytes = block.bytes.load(Relaxed);
                owner.grew(bytes);
                if let Some(shim) = gate::shim() {
                    records::grouped::took(shim, owner.record(), bytes);
                }
            }
            match was {
                Was::Live => {
                    block.set(State::Live);
                    gate::record_if_started(|shim| block_records::stays(shim, block));
                }
                Was::Idle => owner.keep(block, now),
                Was::Waiting => owner.keep_waiting(block, now),
            }
            self.pool.map.insert(addr, block);
        }
        // They are counted with the new pool by now.
        gave(&self.bytes);
        lock(&self.pool.ended).extend(self.owners);
        self.pool.share_out();
    }
}

/// What went with a context is not taken from the group any more.
fn gave(bytes: &[(ContextRef, u64)]) {
    if let Some(shim) = gate::shim() {
        bytes.iter().for_each(|(context, bytes)| records::grouped::gave(shim, *context, *bytes));
    }
}

impl Pool {
    /// The owner of the blocks of one more context.
    pub(super) fn owner_for(
        &self,
        owners: &mut Vec<&'static ContextPool>,
        context: u64,
        record: ContextRef,
        device: Device,
        share: u64,
    ) -> &'static ContextPool {
        let owner = match self.ended_long_ago(device) {
            Some(owner) => {
                owner.begin_again(context, record);
                owner
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
        self.add(owners, owner);
        owner
    }

    /// An owner of an ended context of a device, to be used again. A thread that was at it when that ended, against the
    /// program's own order, is given time to be done: so many contexts end before.
    fn ended_long_ago(&self, device: Device) -> Option<&'static ContextPool> {
        const AT_LEAST: usize = 64;
        let mut ended = lock(&self.ended);
        let long_ago = ended.len().checked_sub(AT_LEAST)?;
        let at = ended.iter().take(long_ago).position(|owner| owner.device == device)?;
        ended.remove(at)
    }

    /// A context is about to end, and all of its blocks with it.
    pub(crate) fn context_going(&self, context: u64) -> Leaving<'_> {
        let (mut blocks, mut owners, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for owner in self.owners().into_iter().filter(|owner| owner.context() == context) {
            owner.gone.store(true, SeqCst);
            // Whoever gives blocks back now finishes first.
            owner.wait_for_releases(LONGEST_HOLD);
            let (idle, waiting) = owner.let_go();
            let here = |was| move |block: &'static Block| (std::ptr::from_ref(block), was);
            let mut ours: FxHashMap<*const Block, Was> = idle.into_iter().map(here(Was::Idle)).collect();
            ours.extend(waiting.into_iter().map(here(Was::Waiting)));
            let (of_threads, all_let_go) = self.caches_let_go(owner);
            ours.extend(of_threads.into_iter().map(here(Was::Idle)));
            owners.extend(all_let_go.then_some(owner));
            for block in self
                .map
                .all()
                .into_iter()
                .filter(|block| ContextPool::of(block).is_some_and(|its| std::ptr::eq(its, owner)))
            {
                let addr = block.addr.load(Relaxed);
                // Another thread may get the address as soon as the context has ended.
                self.map.remove(addr);
                let live = !block.is(State::Idle);
                if live {
                    gate::record_if_started(|shim| block_records::leaves(shim, block));
                }
                // What another thread has just now is not used again: who knows what it does with it.
                let was = match live {
                    true => block.turn_to(addr, State::Live, State::Busy).then_some(Was::Live),
                    false => ours.get(&std::ptr::from_ref(block)).copied(),
                };
                if let Some(was) = was {
                    blocks.push((owner, block, was));
                } else {
                    gate::record_if_started(|shim| block_records::lost(shim, block, owner, live));
                    block.set(State::Gone);
                }
            }
            bytes.push((owner.record(), owner.lost_all()));
        }
        lock(&self.owners).retain(|owner| !owner.gone.load(Relaxed));
        self.share_out();
        Leaving { pool: self, owners, blocks, bytes }
    }

    /// What threads have of a context's, taken out; whether all could be.
    fn caches_let_go(&self, owner: &'static ContextPool) -> (Vec<&'static Block>, bool) {
        let (mut blocks, mut all) = (Vec::new(), true);
        for cache in self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_owner(), owner)) {
            let Some(mut taken) = (0..LOOKS).find_map(|_| cache.take()) else {
                all = false;
                continue;
            };
            if std::ptr::eq(taken.owner(), owner) {
                let unreported = taken.unreported();
                gate::record_if_started(|shim| block_records::add_live(shim, owner, unreported));
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

    /// Many contexts of one device have few owners between them, and what a thread does late for one that ended is not
    /// another's.
    #[test]
    fn owners_of_ended_contexts_are_used_again() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let block = |owner: &'static ContextPool, addr: u64| {
            let block = pool.spare();
            block.addr.store(addr, Relaxed);
            block.bytes.store(4096, Relaxed);
            owner.owns(block);
            block.set(State::Busy);
            pool.map.insert(addr, block);
            block
        };
        let (mut all, mut late) = (FxHashSet::default(), None);
        for context in 1..=2000_u64 {
            let owner = pool.owner_for(&mut lock(&pool.owners), context, 1, 0, 0);
            assert_eq!((owner.context(), owner.gone.load(Relaxed), owner.held()), (context, false, 0));
            owner.grew(4096);
            all.insert(std::ptr::from_ref(owner));
            // A thread has it in hand when its context ends.
            let in_hand = block(owner, context << 20);
            if context == 1 {
                late = Some((owner, owner.generation(), in_hand));
            }
            pool.context_going(context).gone();
        }
        assert!(all.len() < 100, "{} owners", all.len());
        let (owner, generation, block) = late.unwrap();
        assert!(owner.generation() > generation);
        owner.keep(block, 0);
        owner.keep_event(generation, Some(7 as _));
        assert_eq!(owner.idle_blocks(), (0, 0));
        assert!(owner.take(4096, 0).is_none());
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
            let owner = ContextPool::made_up(context, 0, 0);
            lock(&pool.owners).push(owner);
            cache.take().unwrap().rebind(owner);
            let mut of_it = FxHashSet::default();
            for n in 1..=BLOCKS {
                let block = pool.spare();
                assert!(of_it.insert(std::ptr::from_ref(block)));
                let addr = (context << 32) + (n << 12);
                block.addr.store(addr, Relaxed);
                block.bytes.store(4096, Relaxed);
                owner.owns(block);
                block.set(State::Live);
                pool.map.insert(addr, block);
                match n % 3 {
                    0 => {}
                    1 => owner.keep(block, 0),
                    _ => {
                        block.set(State::Idle);
                        if let Pushed::Full = cache.take().unwrap().push(3, block, 1 << 20) {
                            owner.keep(block, 0);
                        }
                    }
                }
            }
            all.extend(of_it);
            pool.context_going(context).gone();
            assert!(pool.map.all().is_empty() && lock(&pool.owners).is_empty());
            assert_eq!((owner.idle_blocks(), cache.bytes.load(Relaxed)), ((0, 0), 0));
        }
        assert_eq!(all.len() as u64, BLOCKS);
    }
}
