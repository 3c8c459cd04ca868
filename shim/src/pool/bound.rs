//! How much may be idle: on a device, and of that with each thread.
//!
//! Whenever threads come or go, each thread's share is computed anew. At its next look the control thread takes what a
//! thread keeps above its share and puts it where all threads find it. In the same way goes what a thread's cache holds
//! above the bound of the device.

use super::context_pool::ContextPool;
use super::thread::ThreadCache;
use super::{Pool, lock};
use crate::process::clock;
use std::sync::atomic::Ordering::*;

/// A value of [`Pool::max`]: a share of the device.
const AUTO: u64 = u64::MAX;
/// Bytes that a thread may keep for itself.
const MOST_OF_A_THREAD: u64 = 64 << 20;
/// Where a free waits for work, idle memory cannot go back while the device works. Then this share of the free memory
/// may be kept.
const BESIDE_WORK: u64 = 16;
/// The free memory is measured again after this time, ns, or when more was taken from the driver.
const MEASURED_EVERY_NS: u64 = 100_000_000;
/// A thread keeps no more than this part of the bound, and all threads together keep no more than that part.
const PART_OF_A_THREAD: u64 = 16;
const PART_OF_THREADS: u64 = 2;

/// The idle bytes that each of `threads` threads may keep, if `bound` is the bound for all.
fn most_of_each(bound: u64, threads: u64) -> u64 {
    let parts = (threads * PART_OF_THREADS).max(PART_OF_A_THREAD);
    (bound / parts).min(MOST_OF_A_THREAD)
}

impl Pool {
    pub(crate) fn set_max(&self, max: Option<u64>) {
        self.max.store(max.unwrap_or(AUTO), Relaxed);
        self.share_out();
    }

    /// Whether the bound is not the user's.
    pub(crate) fn chooses_bound(&self) -> bool {
        self.max.load(Relaxed) == AUTO
    }

    /// Threads or devices came or went, or the bound changed: computes what each thread may keep.
    pub(super) fn share_out(&self) {
        let bound = match self.max.load(Relaxed) {
            // 0: the share is not known.
            AUTO => self
                .context_pools()
                .iter()
                .map(|context_pool| context_pool.share)
                .filter(|&share| share != 0)
                .min()
                .unwrap_or(AUTO),
            max => max,
        };
        let beside_work = self.context_pools().into_iter().filter(|context_pool| context_pool.frees_wait());
        let bound = beside_work.map(|context_pool| context_pool.beside_work.load(Relaxed)).fold(bound, u64::min);
        let threads = lock(&self.caches).iter().filter(|cache| cache.has_thread()).count() as u64;
        self.most_of_a_thread.store(most_of_each(bound, threads), Relaxed);
        self.threads.store(threads, Relaxed);
    }

    /// Idle bytes that a thread may keep for itself.
    #[inline(always)]
    pub(crate) fn most_of_a_thread(&self) -> u64 {
        self.most_of_a_thread.load(Relaxed)
    }

    /// Idle bytes that the device of a context may keep.
    pub(crate) fn most_idle(&self, context_pool: &ContextPool) -> u64 {
        match (self.max.load(Relaxed), context_pool.frees_wait()) {
            (AUTO, false) => context_pool.share,
            (max, false) => max,
            (max, true) => max.min(context_pool.beside_work.load(Relaxed)),
        }
    }

    /// Measures how much may be kept where frees wait for work, if that may have changed.
    #[inline(always)]
    pub(super) fn measure(&self, context_pool: &ContextPool) {
        if context_pool.frees_wait() {
            self.measure_beside_work(context_pool);
        }
    }

    #[cold]
    fn measure_beside_work(&self, context_pool: &ContextPool) {
        let (held, now, (held_then, then)) = (context_pool.held(), clock::now_ns(), &context_pool.measured);
        if held <= held_then.swap(held, Relaxed) && now.saturating_sub(then.load(Relaxed)) < MEASURED_EVERY_NS {
            return;
        }
        then.store(now, Relaxed);
        let may = context_pool.within(|| context_pool.calls.free_bytes()).map_or(0, |free| free / BESIDE_WORK);
        if context_pool.beside_work.swap(may, Relaxed) != may {
            self.share_out();
        }
    }

    /// Idle bytes above that bound, of all contexts of the device together, those in threads' caches among them.
    #[inline]
    pub(crate) fn over_most_idle(&self, context_pool: &ContextPool) -> u64 {
        let idle = match context_pool.has_neighbours.load(Relaxed) {
            false => context_pool.idle(),
            true => self.neighbours(context_pool).iter().fold(context_pool.idle(), |sum, other| sum + other.idle()),
        };
        let most = self.most_idle(context_pool);
        let of_threads = self.threads.load(Relaxed) * self.most_of_a_thread();
        if idle.saturating_add(of_threads) <= most {
            0
        } else {
            (idle + self.with_threads(context_pool)).saturating_sub(most)
        }
    }

    /// Idle bytes of a context's device that are in threads' caches.
    #[cold]
    fn with_threads(&self, context_pool: &ContextPool) -> u64 {
        let is_there = |cache: &&&ThreadCache| {
            // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
            unsafe { cache.last_context_pool().as_ref() }.is_some_and(|its| its.device == context_pool.device)
        };
        lock(&self.caches).iter().filter(is_there).map(|cache| cache.bytes.load(Relaxed)).sum()
    }

    /// The other contexts on the device of one.
    #[cold]
    fn neighbours(&self, context_pool: &ContextPool) -> Vec<&'static ContextPool> {
        let mut on_device = self.context_pools();
        on_device.retain(|other| other.device == context_pool.device && !std::ptr::eq(*other, context_pool));
        on_device
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::{Block, State};
    use crate::pool::thread::Pushed;
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;

    const MIB: u64 = 1 << 20;

    fn block(bytes: u64) -> &'static Block {
        let block: &'static Block = Box::leak(Box::default());
        block.bytes.store(bytes, Relaxed);
        block.set(State::Busy);
        block
    }

    #[test]
    fn all_threads_together_keep_half_of_the_bound_at_most() {
        assert_eq!([1, 8, 16, 64].map(|threads| most_of_each(64 * MIB, threads) >> 10), [4096, 4096, 2048, 512]);
        assert_eq!((most_of_each(AUTO, 1), most_of_each(AUTO, 1000), most_of_each(0, 1)), (64 * MIB, 64 * MIB, 0));
        let (settings, _) = Settings::read(std::iter::once(("GPUMEM_POOL_MAX".into(), "64MiB".into())));
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let caches: Vec<&'static ThreadCache> = (0..100).map(|_| &*Box::leak(Box::default())).collect();
        for (n, &cache) in caches.iter().enumerate() {
            let begin = move || cache.begin();
            assert!(if n == 0 { begin() } else { std::thread::spawn(begin).join().unwrap() });
            lock(&pool.caches).push(cache);
            pool.share_out();
            assert!(pool.most_of_a_thread() * (n as u64 + 1) <= 32 * MIB);
        }
        assert_eq!(caches.iter().filter(|cache| cache.end(|| true)).count(), 99);
        pool.share_out();
        assert_eq!(pool.most_of_a_thread(), 4 * MIB, "nobody else is left");
    }

    /// A bound that is chosen is that of the smallest device.
    #[test]
    fn what_threads_keep_counts_as_idle_on_the_device() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let context_pools: Vec<&'static ContextPool> = [(1, 0, 16 * MIB), (2, 1, 1 << 40)]
            .map(|(context, device, share)| ContextPool::made_up(context, device, share))
            .to_vec();
        lock(&pool.context_pools).extend(&context_pools);
        let cache: &'static ThreadCache = Box::leak(Box::default());
        assert!(cache.begin());
        lock(&pool.caches).push(cache);
        pool.share_out();
        assert_eq!(pool.most_of_a_thread(), MIB);
        let mut taken = cache.take().unwrap();
        taken.rebind(context_pools[0]);
        assert!(matches!(taken.push(3, block(MIB), pool.most_of_a_thread()), Pushed::Kept(None)));
        drop(taken);
        context_pools[0].keep(block(15 * MIB), 0);
        assert_eq!(pool.over_most_idle(context_pools[0]), 0);
        context_pools[0].keep(block(MIB), 0);
        assert_eq!((pool.over_most_idle(context_pools[0]), pool.over_most_idle(context_pools[1])), (MIB, 0));
    }
}
