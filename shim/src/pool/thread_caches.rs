//! The caches of all threads. Each thread has one. Others empty it if its thread has ended, does not use it, or keeps
//! too much.

use super::block::Block;
use super::context_pool::ContextPool;
use super::lock;
use super::thread::{LOOKS, Taken, ThreadCache};
use crate::process::{cancel, clock};
use crate::shim::Shim;
use crate::{gate, records};
use gpumem_abi::types::Device;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Duration;

/// How long to wait for a cache that another thread is in, and the time between two attempts.
const PATIENCE: Duration = Duration::from_millis(50);
const NAP: Duration = Duration::from_micros(50);

#[derive(Default)]
pub(super) struct ThreadCaches {
    all: Mutex<Vec<&'static ThreadCache>>,
    /// More than one thread has, or had, a cache.
    has_threads: AtomicBool,
    /// The index at which the next look for ended threads begins.
    looked: AtomicUsize,
}

impl ThreadCaches {
    pub(super) fn all(&self) -> Vec<&'static ThreadCache> {
        lock(&self.all).clone()
    }

    /// Returns the caches that keep blocks of a context.
    pub(super) fn of(&self, context_pool: &ContextPool) -> Vec<&'static ThreadCache> {
        let mut caches = self.all();
        caches.retain(|cache| cache.is_of(context_pool));
        caches
    }

    /// Assigns a cache to the calling thread.
    pub(super) fn begin(&self) -> &'static ThreadCache {
        // A thread that keeps blocks is listed among the threads.
        gate::shim().map(Shim::tid);
        let mut caches = lock(&self.all);
        let unused = caches.iter().find(|cache| cache.begin());
        unused.copied().unwrap_or_else(|| {
            let made: &'static ThreadCache = Box::leak(Box::default());
            made.begin();
            caches.push(made);
            self.has_threads.store(caches.len() > 1, Relaxed);
            made
        })
    }

    /// Returns true if more than one thread has, or had, a cache.
    #[inline]
    pub(super) fn has_threads(&self) -> bool {
        self.has_threads.load(Relaxed)
    }

    /// Returns the number of threads that have a cache.
    pub(super) fn count(&self) -> u64 {
        lock(&self.all).iter().filter(|cache| cache.has_thread()).count() as u64
    }

    /// Returns the bytes that threads keep of a device.
    #[cold]
    pub(super) fn bytes_on(&self, device: Device) -> u64 {
        let is_there = |cache: &&&ThreadCache| cache.context_pool().is_some_and(|its| its.device == device);
        lock(&self.all).iter().filter(is_there).map(|cache| cache.bytes()).sum()
    }

    /// Adds to the contexts' totals the live bytes that threads have left out of them. Makes no call of the driver.
    pub(super) fn report_all(&self, shim: &'static Shim) {
        for cache in self.all() {
            let mut taken = None;
            // Another thread that empties the cache is out of it soon.
            cancel::poll(PATIENCE, NAP, || {
                if !cache.keeps_bytes() {
                    return true;
                }
                taken = cache.take();
                taken.is_some()
            });
            if let Some(taken) = taken {
                report(shim, &taken);
            }
        }
    }

    /// Empties all caches.
    pub(super) fn gather(&self, shim: &'static Shim) {
        for cache in self.all() {
            let _ = (0..LOOKS).any(|_| empty(shim, cache));
        }
    }

    /// Takes blocks out of caches and puts them where all threads find them. Takes all blocks of a cache if its thread
    /// has ended, has not used the cache for a second, or keeps more than `limit` bytes. From other caches, takes only
    /// blocks that their threads have not used for that long.
    pub(super) fn collect(&self, shim: &'static Shim, limit: u64) {
        for cache in self.all() {
            let unused = !cache.count_uses();
            let holds = cache.bytes() != 0 || cache.keeps_bytes();
            let over = cache.bytes() > limit;
            if cache.end(|| empty(shim, cache)) {
                continue;
            }
            if unused && holds || over {
                empty(shim, cache);
            } else {
                collect_unused(cache);
            }
        }
    }

    /// Empties the caches of ended threads, as far as a few looks find them. Returns true if there were any.
    #[cold]
    pub(super) fn collect_ended(&self, shim: &'static Shim) -> bool {
        /// A look reads a word that another thread writes.
        const LOOKS: usize = 16;
        let mut looked_at: [Option<&ThreadCache>; LOOKS] = [None; LOOKS];
        {
            let caches = lock(&self.all);
            let first = self.looked.fetch_add(LOOKS, Relaxed);
            let next = (0..caches.len()).map(|index| caches[(first + index) % caches.len()]);
            looked_at.iter_mut().zip(next).for_each(|(place, cache)| *place = Some(cache));
        }
        let mut any = false;
        for cache in looked_at.into_iter().flatten() {
            any |= cache.bytes() != 0 && cache.end(|| empty(shim, cache));
        }
        any
    }

    /// Takes the blocks of an ending context out of the caches. Also returns true if all of them could be taken.
    pub(super) fn let_go(&self, context_pool: &'static ContextPool) -> (Vec<&'static Block>, bool) {
        let (mut blocks, mut all) = (Vec::new(), true);
        for cache in self.of(context_pool) {
            let Some(mut taken) = (0..LOOKS).find_map(|_| cache.take()) else {
                all = false;
                continue;
            };
            if cache.is_of(context_pool) {
                taken.report_all(|bytes| {
                    let add = |shim| records::contexts::add_live(shim, context_pool.record(), bytes);
                    gate::record_if_started(add);
                });
                blocks.extend(taken.rebind(None));
            }
        }
        (blocks, all)
    }
}

/// Adds to the context's total the live bytes that a cache has left out of it.
fn report(shim: &Shim, taken: &Taken<'_>) {
    let Some(context_pool) = taken.context_pool() else { return };
    taken.report_all(|bytes| records::contexts::add_live(shim, context_pool.record(), bytes));
}

/// Binds a thread's cache to another context. Its blocks go where all threads find them.
#[cold]
pub(super) fn rebind(shim: &'static Shim, taken: &mut Taken<'_>, context_pool: Option<&'static ContextPool>) {
    let (before, now) = (taken.context_pool(), clock::now_ns());
    report(shim, taken);
    let _transit = before.filter(|_| taken.bytes() != 0).map(|before| before.in_transit.blocks.begin());
    let blocks = taken.rebind(context_pool);
    let Some(before) = before else { return };
    if !before.is_gone() {
        blocks.into_iter().for_each(|block| before.keep(block, now));
    }
}

/// Empties a thread's cache, so that all threads find its blocks. Returns true on success.
fn empty(shim: &'static Shim, cache: &ThreadCache) -> bool {
    let Some(mut taken) = cache.take() else { return false };
    let context_pool = taken.context_pool();
    rebind(shim, &mut taken, context_pool);
    true
}

/// Takes the blocks that a thread has not used since the last call out of its cache.
fn collect_unused(cache: &ThreadCache) {
    if cache.bytes() == 0 {
        return cache.clear_looked();
    }
    let Some(mut taken) = cache.take() else { return };
    let Some(context_pool) = taken.context_pool() else { return };
    let _transit = context_pool.in_transit.blocks.begin();
    let (unused, now) = (taken.unused(), clock::now_ns());
    taken.look();
    if !context_pool.is_gone() {
        unused.into_iter().for_each(|block| context_pool.keep(block, now));
    }
}

#[cfg(test)]
impl ThreadCaches {
    /// Adds a cache that has no thread.
    pub(super) fn add_for_test(&self) -> &'static ThreadCache {
        let cache: &'static ThreadCache = Box::leak(Box::default());
        lock(&self.all).push(cache);
        cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::State;

    /// A thread that goes on with one size gives up the others.
    #[test]
    fn what_a_thread_does_not_use_is_everybodys() {
        let (context_pool, cache) = (ContextPool::for_test(1, 0, 0), ThreadCache::default());
        let push = |class, bytes| {
            let block: &'static Block = Box::leak(Box::default());
            block.set_bytes(bytes);
            block.set_asked(bytes);
            block.set(State::Idle);
            let mut taken = cache.enter().unwrap();
            assert!(matches!(taken.push(class, block, 1 << 20), Some(None)));
        };
        cache.take().unwrap().rebind(Some(context_pool));
        [(3, 1024), (3, 1024), (20, 65536)].into_iter().for_each(|(class, bytes)| push(class, bytes));
        for _ in 0..5 {
            collect_unused(&cache);
            // As a request and its free do.
            let block = cache.enter().unwrap().pop_for(3).unwrap();
            block.set_asked(1000);
            block.set(State::Idle);
            assert!(matches!(cache.enter().unwrap().push(3, block, 1 << 20), Some(None)));
        }
        assert_eq!((cache.bytes(), context_pool.idle()), (1024, 1024 + 65536));
        assert_eq!(cache.looked(), (1024, 1), "what a thread keeps is in blocks, too");
        collect_unused(&cache);
        collect_unused(&cache);
        assert_eq!((cache.bytes(), context_pool.idle_blocks()), (0, (2 * 1024 + 65536, 3)));
    }

    #[test]
    fn a_context_that_ends_takes_its_blocks_out_of_the_caches() {
        let [one, other] = [1, 2].map(|context| ContextPool::for_test(context, 0, 0));
        let caches = ThreadCaches::default();
        let of = [one, other].map(|context_pool| {
            let (cache, block): (_, &'static Block) = (caches.add_for_test(), Box::leak(Box::default()));
            block.set_bytes(4096);
            cache.take().unwrap().rebind(Some(context_pool));
            assert!(matches!(cache.take().unwrap().push(3, block, 1 << 20), Some(None)));
            cache
        });
        assert_eq!((caches.bytes_on(0), caches.count()), (8192, 0));
        let (blocks, all) = caches.let_go(one);
        assert_eq!((blocks.len(), all, caches.bytes_on(0)), (1, true, 4096));
        assert!(!of[0].is_of(one) && of[1].is_of(other));
        // A cache that another thread is in keeps its blocks.
        let _inside = of[1].take().unwrap();
        assert!(!caches.let_go(other).1 && caches.bytes_on(0) == 4096);
    }
}
