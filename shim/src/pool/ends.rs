//! A context ends, and all of its blocks with it; or it was to end, and the driver refused.

use super::block::{Block, SPILLED, State};
use super::device::LONGEST_VISIT;
use super::owner::Owner;
use super::thread::LOOKS;
use super::{Pool, lock};
use crate::gate;
use crate::process::clock;
use rustc_hash::FxHashMap;
use std::sync::atomic::Ordering::*;

/// The blocks of a context that is about to end: nobody finds them any more.
#[must_use = "the context ends, or it stays"]
pub struct Leaving<'a> {
    pool: &'a Pool,
    blocks: Vec<(&'static Owner, &'static Block, Was)>,
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
    pub fn gone(self) {
        for (owner, block, was) in self.blocks {
            gate::record_if_started(|shim| shim.pool_lost(block, owner, was == Was::Live));
            self.pool.forget(block);
        }
    }

    /// The driver refused: what the program had it has, and what was idle is of use. The pool of the context is a
    /// new one, since caches of threads may still be bound to the old one.
    pub fn stay(self) {
        let mut owners = FxHashMap::default();
        let now = clock::now_ns();
        for (before, block, was) in self.blocks {
            let again = || {
                let Owner { vendor, context, record, device, share, calls, moves, .. } = *before;
                let again = Owner::new(vendor, context, record, device, share, calls, moves);
                again.lane.store(before.lane.load(Relaxed), Relaxed);
                self.pool.add(&mut lock(&self.pool.owners), again)
            };
            let owner = *owners.entry(std::ptr::from_ref(before)).or_insert_with(again);
            let addr = block.addr.load(Relaxed);
            block.set_owner(owner);
            if !block.has(SPILLED) {
                owner.grew(block.bytes.load(Relaxed));
            }
            match was {
                Was::Live => {
                    block.set(State::Live);
                    gate::record_if_started(|shim| shim.pool_stays(block));
                }
                Was::Idle => owner.keep(block, now),
                Was::Waiting => owner.keep_waiting(block, now),
            }
            self.pool.map.insert(addr, block);
        }
        self.pool.share_out();
    }
}

impl Pool {
    /// A context is about to end, and all of its blocks with it.
    pub fn context_going(&self, context: u64) -> Leaving<'_> {
        let mut blocks = Vec::new();
        for owner in self.owners().into_iter().filter(|owner| owner.context == context) {
            owner.gone.store(true, SeqCst);
            // Whoever gives blocks back now finishes first.
            owner.wait_for_releases(LONGEST_VISIT);
            let (idle, waiting) = owner.let_go();
            let here = |was| move |block: &'static Block| (std::ptr::from_ref(block), was);
            let mut ours: FxHashMap<*const Block, Was> = idle.into_iter().map(here(Was::Idle)).collect();
            ours.extend(waiting.into_iter().map(here(Was::Waiting)));
            ours.extend(self.caches_let_go(owner).into_iter().map(here(Was::Idle)));
            for block in
                self.map.all().into_iter().filter(|block| block.owner().is_some_and(|its| std::ptr::eq(its, owner)))
            {
                let addr = block.addr.load(Relaxed);
                // Another thread may get the address as soon as the context has ended.
                self.map.remove(addr);
                let live = !block.is(State::Idle);
                if live {
                    gate::record_if_started(|shim| shim.pool_leaves(block));
                }
                // What another thread has just now is not used again: who knows what it does with it.
                let was = match live {
                    true => block.turn_to(addr, State::Live, State::Busy).then_some(Was::Live),
                    false => ours.get(&std::ptr::from_ref(block)).copied(),
                };
                if let Some(was) = was {
                    blocks.push((owner, block, was));
                } else {
                    gate::record_if_started(|shim| shim.pool_lost(block, owner, live));
                    block.set(State::Gone);
                }
            }
        }
        lock(&self.owners).retain(|owner| !owner.gone.load(Relaxed));
        self.share_out();
        Leaving { pool: self, blocks }
    }

    /// What threads have of a context's, taken out.
    fn caches_let_go(&self, owner: &'static Owner) -> Vec<&'static Block> {
        let mut blocks = Vec::new();
        for cache in self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_owner(), owner)) {
            let Some(mut taken) = (0..LOOKS).find_map(|_| cache.take()) else { continue };
            if std::ptr::eq(taken.owner(), owner) {
                let untold = taken.untold();
                gate::record_if_started(|shim| shim.pool_told(owner, untold));
                blocks.extend(taken.rebind(std::ptr::null()));
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::thread::{Pushed, ThreadCache};
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;
    use rustc_hash::FxHashSet;

    /// Contexts come and go without end, each with blocks that are live, idle, and in a thread's cache.
    #[test]
    fn blocks_of_ended_contexts_are_used_again() {
        const BLOCKS: u64 = 300;
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings);
        let cache: &'static ThreadCache = Box::leak(Box::default());
        lock(&pool.caches).push(cache);
        let mut all = FxHashSet::default();
        for context in 1..=20_u64 {
            let owner = Owner::made_up(context, 0, 0);
            lock(&pool.owners).push(owner);
            cache.take().unwrap().rebind(owner);
            let mut of_it = FxHashSet::default();
            for n in 1..=BLOCKS {
                let block = pool.spare();
                assert!(of_it.insert(std::ptr::from_ref(block)));
                let addr = (context << 32) + (n << 12);
                block.addr.store(addr, Relaxed);
                block.bytes.store(4096, Relaxed);
                block.set_owner(owner);
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
            assert_eq!((owner.idle(), owner.blocks(), cache.bytes.load(Relaxed)), (0, 0, 0));
        }
        assert_eq!(all.len() as u64, BLOCKS);
    }
}
