//! A context ends, and all of its blocks with it.

use super::block::{Block, State};
use super::owner::Owner;
use super::thread::LOOKS;
use super::{Pool, lock};
use crate::gate;
use rustc_hash::FxHashSet;
use std::sync::atomic::Ordering::*;

impl Pool {
    /// A context is about to end, and all of its blocks with it.
    pub fn context_going(&self, context: u64) {
        for owner in self.owners().into_iter().filter(|owner| owner.context == context) {
            owner.gone.store(true, SeqCst);
            // Whoever gives blocks back now finishes first.
            drop(lock(&owner.releasing));
            let mut idle: FxHashSet<*const Block> = owner.let_go().into_iter().map(std::ptr::from_ref).collect();
            idle.extend(self.caches_let_go(owner).into_iter().map(std::ptr::from_ref));
            for block in
                self.map.all().into_iter().filter(|block| block.owner().is_some_and(|its| std::ptr::eq(its, owner)))
            {
                let addr = block.addr.load(Relaxed);
                self.map.remove(addr);
                let live = !block.is(State::Idle);
                gate::record_if_started(|shim| shim.pool_lost(block, owner, live));
                // What another thread has just now is not used again: who knows what it does with it.
                let is_ours = if live {
                    block.turn_to(addr, State::Live, State::Busy)
                } else {
                    idle.contains(&std::ptr::from_ref(block))
                };
                if is_ours { self.forget(block) } else { block.set(State::Gone) }
            }
        }
        lock(&self.owners).retain(|owner| !owner.gone.load(Relaxed));
        self.share_out();
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
    use crate::backend::memory;
    use crate::pool::thread::{Pushed, ThreadCache};
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;

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
            let owner = Owner::new(Vendor::Cuda, context, 0, 0, 0, memory::calls(Vendor::Cuda));
            let owner: &'static Owner = Box::leak(Box::new(owner));
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
            pool.context_going(context);
            assert!(pool.map.all().is_empty() && lock(&pool.owners).is_empty());
            assert_eq!((owner.idle(), owner.blocks(), cache.bytes.load(Relaxed)), (0, 0, 0));
        }
        assert_eq!(all.len() as u64, BLOCKS);
    }
}
