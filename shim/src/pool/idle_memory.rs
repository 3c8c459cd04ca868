//! Idle memory: where it is, and the bounds for it on a device and in threads' caches.
//!
//! Whenever threads come or go, each thread's share is computed anew. At its next look the control thread takes the
//! memory that a thread keeps above its share and puts it where all threads find it. It does the same with the memory
//! in threads' caches above the device's bound.

use super::block::Block;
use super::block_records;
use super::context_pool::ContextPool;
use super::context_pools::ContextPools;
use super::rules::BlockRules;
use super::thread::ThreadCache;
use super::thread_caches::ThreadCaches;
use crate::process::{clock, threads};
use crate::records::pooled;
use crate::shim::Shim;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::{FreeMode, Settings};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// A value of [`IdleMemory::max`]: the bound is a share of the device.
const AUTO: u64 = u64::MAX;
/// The most bytes that a thread may keep for itself.
const MOST_OF_A_THREAD: u64 = 64 << 20;
/// A thread keeps at most one part in this many of the bound, and all threads together keep at most one part in
/// [`PART_OF_THREADS`].
const PART_OF_A_THREAD: u64 = 16;
const PART_OF_THREADS: u64 = 2;

/// Returns the idle bytes that each of `threads` threads may keep, if `bound` is the bound for all.
fn most_of_each(bound: u64, threads: u64) -> u64 {
    let parts = (threads * PART_OF_THREADS).max(PART_OF_A_THREAD);
    (bound / parts).min(MOST_OF_A_THREAD)
}

/// The idle memory of one vendor's contexts.
#[repr(C)]
pub(super) struct IdleMemory {
    /// Idle bytes that a thread may keep for itself: a small part of the bound.
    thread_cache_limit: AtomicU64,
    /// Threads that have a cache.
    threads: AtomicU64,
    /// The most idle bytes of each device. All ones: a share of the device.
    max: AtomicU64,
    /// Some free did not wait, so blocks may be waiting for events.
    may_have_pending: AtomicBool,
    contexts: ContextPools,
    caches: ThreadCaches,
}

impl IdleMemory {
    pub(super) fn new(vendor: Vendor) -> Self {
        Self {
            contexts: ContextPools::new(vendor),
            caches: ThreadCaches::default(),
            max: AtomicU64::new(0),
            thread_cache_limit: AtomicU64::new(0),
            threads: AtomicU64::new(0),
            may_have_pending: AtomicBool::new(false),
        }
    }

    /// Applies new values of these variables.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.may_have_pending.fetch_or(settings.free == FreeMode::Deferred, Relaxed);
        self.max.store(settings.pool_max.unwrap_or(AUTO), Relaxed);
        self.share_out();
    }

    #[inline(always)]
    pub(super) fn contexts(&self) -> &ContextPools {
        &self.contexts
    }

    pub(super) fn caches(&self) -> &ThreadCaches {
        &self.caches
    }

    /// Returns true if blocks may be waiting for events.
    pub(super) fn may_have_pending(&self) -> bool {
        self.may_have_pending.load(Relaxed)
    }

    /// Returns the idle bytes of a context, including those in threads' caches.
    pub(super) fn of(&self, context_pool: &ContextPool) -> u64 {
        let of_threads = self.caches.of(context_pool);
        context_pool.idle() + of_threads.iter().map(|cache| cache.bytes()).sum::<u64>()
    }

    /// Returns the idle bytes of a device.
    pub(super) fn on(&self, device: Device) -> u64 {
        self.contexts.on(device).iter().map(|context_pool| self.of(context_pool)).sum()
    }

    /// Returns the idle bytes of a device that can go back for a request, even while the device works.
    pub(super) fn to_be_had_on(&self, device: Device) -> u64 {
        let mut go = self.contexts.on(device);
        go.retain(|context_pool| {
            !context_pool.frees_wait()
                || context_pool.known_idle()
                || context_pool.calls.has_context_events() && context_pool.is_idle()
        });
        go.iter().map(|context_pool| self.of(context_pool)).sum()
    }

    /// Returns this thread's cache.
    #[inline]
    pub(super) fn cache(&self) -> &'static ThreadCache {
        match threads::local(ThreadCache::of) {
            Some(cache) => cache,
            None => self.new_cache(),
        }
    }

    #[cold]
    fn new_cache(&self) -> &'static ThreadCache {
        let cache = self.caches.begin();
        self.share_out();
        threads::local(|local| cache.belongs_to(local));
        cache
    }

    /// Returns the pool of the calling thread's context. `cache`: that thread's cache.
    #[inline]
    pub(super) fn context_pool_here(&self, shim: &'static Shim, cache: &ThreadCache) -> Option<&'static ContextPool> {
        self.contexts.here(shim, cache.context_pool(), |context| self.find_context_pool(shim, context))
    }

    /// Returns the pool of the calling thread's context, as the records know it.
    pub(super) fn context_pool_of_thread(&self, shim: &'static Shim) -> Option<&'static ContextPool> {
        self.context_pool_here(shim, self.cache())
    }

    #[cold]
    fn find_context_pool(&self, shim: &'static Shim, context: u64) -> Option<&'static ContextPool> {
        let (context_pool, is_new) = self.contexts.find(shim, context)?;
        if is_new {
            self.measure(context_pool);
            self.share_out();
            pooled::limit(shim, context_pool.record(), shim.in_force.limit());
        }
        Some(context_pool)
    }

    /// Takes an idle block of a context for a request.
    pub(super) fn take(
        &self,
        rules: &BlockRules,
        context_pool: &'static ContextPool,
        rounded: u64,
    ) -> Option<&'static Block> {
        if context_pool.idle() == 0 {
            return None;
        }
        let take = || context_pool.take(rounded, rules.slack(rounded));
        take().or_else(|| {
            self.may_have_pending().then(|| context_pool.reap(clock::now_ns()))?;
            take()
        })
    }

    /// Takes a block from the cache of a thread that has ended.
    #[inline]
    pub(super) fn take_of_ended_threads(
        &self,
        shim: &'static Shim,
        rules: &BlockRules,
        context_pool: &'static ContextPool,
        rounded: u64,
    ) -> Option<&'static Block> {
        if !self.caches.has_threads() || !self.caches.collect_ended(shim) {
            return None;
        }
        self.share_out();
        self.take(rules, context_pool, rounded)
    }

    /// Takes unused blocks out of threads' caches.
    pub(super) fn collect(&self, shim: &'static Shim) {
        self.caches.collect(shim, self.thread_cache_limit());
        self.share_out();
    }

    /// Returns true if the shim chooses the bound, not the user.
    pub(super) fn chooses_bound(&self) -> bool {
        self.max.load(Relaxed) == AUTO
    }

    /// Computes what each thread may keep. Called after threads or devices came or went, or the bound changed.
    pub(super) fn share_out(&self) {
        let context_pools = self.contexts.all();
        let bound = match self.max.load(Relaxed) {
            // 0: the share is not known.
            AUTO => {
                let shares = context_pools.iter().map(|context_pool| context_pool.share);
                shares.filter(|&share| share != 0).min().unwrap_or(AUTO)
            }
            max => max,
        };
        let beside_work = context_pools.iter().filter(|context_pool| context_pool.frees_wait());
        let bound = beside_work.map(|context_pool| context_pool.beside_work()).fold(bound, u64::min);
        let threads = self.caches.count();
        self.thread_cache_limit.store(most_of_each(bound, threads), Relaxed);
        self.threads.store(threads, Relaxed);
    }

    /// Returns the idle bytes that a thread may keep for itself.
    #[inline(always)]
    pub(super) fn thread_cache_limit(&self) -> u64 {
        self.thread_cache_limit.load(Relaxed)
    }

    /// Returns the idle bytes that a context's device may keep.
    pub(super) fn most(&self, context_pool: &ContextPool) -> u64 {
        match (self.max.load(Relaxed), context_pool.frees_wait()) {
            (AUTO, false) => context_pool.share,
            (max, false) => max,
            (max, true) => max.min(context_pool.beside_work()),
        }
    }

    /// Measures how much may be kept if frees wait for work, unless that cannot have changed.
    #[inline(always)]
    pub(super) fn measure(&self, context_pool: &ContextPool) {
        if context_pool.frees_wait() && context_pool.measure_beside_work() {
            self.share_out();
        }
    }

    /// Returns the idle bytes above that bound, of all contexts of the device together, including those in threads'
    /// caches.
    #[inline]
    pub(super) fn over_most(&self, context_pool: &ContextPool) -> u64 {
        let idle = match context_pool.has_neighbours() {
            false => context_pool.idle(),
            true => self.idle_of_neighbours(context_pool),
        };
        let most = self.most(context_pool);
        let of_threads = self.threads.load(Relaxed) * self.thread_cache_limit();
        if idle.saturating_add(of_threads) <= most {
            0
        } else {
            (idle + self.caches.bytes_on(context_pool.device)).saturating_sub(most)
        }
    }

    /// Returns the idle bytes of all contexts on the context's device that are in no thread's cache.
    #[cold]
    fn idle_of_neighbours(&self, context_pool: &ContextPool) -> u64 {
        let others = self.contexts.on(context_pool.device).into_iter();
        others
            .filter(|other| !std::ptr::eq(*other, context_pool))
            .fold(context_pool.idle(), |sum, other| sum + other.idle())
    }

    /// Records the idle bytes and the number of idle blocks of a context. For threads' caches these are the numbers of
    /// the last look.
    pub(super) fn tell(&self, shim: &Shim, context_pool: &'static ContextPool) {
        let (mut bytes, mut blocks) = context_pool.idle_blocks();
        for cache in self.caches.of(context_pool) {
            let (more, in_blocks) = cache.looked();
            (bytes, blocks) = (bytes + more, blocks + in_blocks);
        }
        block_records::idle(shim, context_pool, bytes, blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::State;

    const MIB: u64 = 1 << 20;

    fn block(bytes: u64) -> &'static Block {
        let block: &'static Block = Box::leak(Box::default());
        block.set_bytes(bytes);
        block.set(State::Busy);
        block
    }

    fn idle_memory(set: Option<(&str, &str)>) -> IdleMemory {
        let idle = IdleMemory::new(Vendor::Cuda);
        idle.apply_settings(&Settings::read(set.map(|(name, value)| (name.into(), value.into())).into_iter()).0);
        idle
    }

    #[test]
    fn all_threads_together_keep_half_of_the_bound_at_most() {
        assert_eq!([1, 8, 16, 64].map(|threads| most_of_each(64 * MIB, threads) >> 10), [4096, 4096, 2048, 512]);
        assert_eq!((most_of_each(AUTO, 1), most_of_each(AUTO, 1000), most_of_each(0, 1)), (64 * MIB, 64 * MIB, 0));
        let idle = idle_memory(Some(("GPUMEM_POOL_MAX", "64MiB")));
        let mut caches = Vec::new();
        for n in 0..100 {
            let cache = idle.caches.add_for_test();
            caches.push(cache);
            let begin = move || cache.begin();
            assert!(if n == 0 { begin() } else { std::thread::spawn(begin).join().unwrap() });
            idle.share_out();
            assert!(idle.thread_cache_limit() * (n + 1) <= 32 * MIB);
        }
        assert_eq!(caches.iter().filter(|cache| cache.end(|| true)).count(), 99);
        idle.share_out();
        assert_eq!(idle.thread_cache_limit(), 4 * MIB, "nobody else is left");
    }

    /// A bound that the shim chooses is that of the smallest device.
    #[test]
    fn what_threads_keep_counts_as_idle_on_the_device() {
        let idle = idle_memory(None);
        let context_pools = [(1, 0, 16 * MIB), (2, 1, 1 << 40)]
            .map(|(context, device, share)| idle.contexts.add_for_test(context, device, share));
        let cache = idle.caches.add_for_test();
        assert!(cache.begin());
        idle.share_out();
        assert_eq!(idle.thread_cache_limit(), MIB);
        let mut taken = cache.take().unwrap();
        taken.rebind(Some(context_pools[0]));
        assert!(matches!(taken.push(3, block(MIB), idle.thread_cache_limit()), Some(None)));
        drop(taken);
        context_pools[0].keep(block(15 * MIB), 0);
        assert_eq!(idle.over_most(context_pools[0]), 0);
        context_pools[0].keep(block(MIB), 0);
        assert_eq!((idle.over_most(context_pools[0]), idle.over_most(context_pools[1])), (MIB, 0));
        assert_eq!((idle.on(0), idle.of(context_pools[0]), idle.on(1)), (17 * MIB, 17 * MIB, 0));
    }
}
