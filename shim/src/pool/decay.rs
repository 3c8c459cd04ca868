//! Idle blocks go back to the driver: with time, above a bound, and on request.
//!
//! [`super::release_unhurried`] says how, so that neither the program nor the control thread waits for the device's
//! work.

use super::block_records;
use super::context_pool::{ContextPool, Most};
use super::thread::ThreadCache;
use super::{Pool, all, lock};
use crate::process::clock;
use crate::shim::Shim;
use crate::{gate, vendor};
use gpumem_abi::types::Device;
use gpumem_wire::{counters, units};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// How often the frees of a program look at the curve at most, ns.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Idle memory goes back when less than this share of the device is free.
const LOW: u64 = 16;

/// The share of memory that may stay after it was idle for so long: 1 at first, 0 after the whole time, smooth at both
/// ends, as in jemalloc.
fn staying(age_ns: u64, decay_ns: u64) -> f64 {
    let x = (age_ns as f64 / decay_ns as f64).min(1.0);
    1.0 - x * x * x * (x * (x * 6.0 - 15.0) + 10.0)
}

impl Pool {
    /// Idle bytes of a context that are due to go back by now. 0 if that was computed just before.
    pub(super) fn decayed(&self, context_pool: &ContextPool, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(context_pool.aged_ns.load(Relaxed)) < LOOK_EVERY_NS {
            return 0;
        }
        context_pool.aged_ns.store(now_ns, Relaxed);
        self.due(context_pool, now_ns)
    }

    fn due(&self, context_pool: &ContextPool, now_ns: u64) -> u64 {
        let decay = self.decay_ns.load(Relaxed);
        if decay == 0 || context_pool.idle() == 0 {
            return 0;
        }
        let (mut idle, mut may_stay) = (0, 0.0);
        for (bytes, age) in context_pool.ages(now_ns) {
            idle += bytes;
            may_stay += bytes as f64 * staying(age, decay);
        }
        idle - (may_stay as u64).min(idle)
    }

    /// What is done once a second, by the control thread.
    pub(crate) fn housekeeping(&'static self, shim: &'static Shim) {
        self.collect(shim);
        self.report_all(shim);
        for context_pool in self.context_pools() {
            let Some(staying) = context_pool.hold().filter(|_| !self.is_ending()) else { continue };
            let now = clock::now_ns();
            if context_pool.has_pending() {
                context_pool.reap(now);
            }
            self.measure(context_pool);
            if self.is_closed() {
                self.end_quarantine(context_pool);
            }
            let all_goes = self.is_closed() || self.is_low(context_pool);
            let over = if all_goes { context_pool.idle() } else { self.over_most_idle(context_pool) };
            let due = self.due(context_pool, now).max(over);
            if due > 0 {
                self.release_unhurried(context_pool, Most::Within(due, usize::MAX));
            }
            self.tell_idle(shim, context_pool);
            drop(staying);
        }
    }

    /// Whether the device has little memory left for other processes, and the bound is ours to choose.
    fn is_low(&self, context_pool: &ContextPool) -> bool {
        if !self.chooses_bound() || context_pool.idle() == 0 {
            return false;
        }
        let info = context_pool.within(|| vendor::of(self.vendor).memory_info());
        info.is_some_and(|(free, total)| free < total / LOW)
    }

    /// Takes blocks out of threads' caches and puts them where all threads find them. All blocks of a cache are taken
    /// if its thread has ended, has not used the cache for a second, or keeps more than it may. Of the other caches
    /// only those blocks are taken that their threads have not used for so long.
    fn collect(&self, shim: &'static Shim) {
        for cache in self.caches() {
            let uses = cache.uses.load(Relaxed);
            let unused = cache.last_uses.swap(uses, Relaxed) == uses;
            let holds = cache.bytes.load(Relaxed) != 0 || cache.keeps_bytes();
            let over = cache.bytes.load(Relaxed) > self.most_of_a_thread();
            if cache.end(|| self.empty(shim, cache)) {
                continue;
            }
            if unused && holds || over {
                self.empty(shim, cache);
            } else {
                self.collect_unused(cache);
            }
        }
        self.share_out();
    }

    /// Takes the blocks out of a thread's cache that the thread has not used since the last call.
    fn collect_unused(&self, cache: &ThreadCache) {
        if cache.bytes.load(Relaxed) == 0 {
            return cache.clear_looked();
        }
        let Some(mut taken) = cache.take() else { return };
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        let Some(context_pool) = (unsafe { taken.context_pool().as_ref() }) else { return };
        let _transit = context_pool.in_transit.blocks.begin();
        let (unused, now) = (taken.unused(), clock::now_ns());
        taken.look();
        if !context_pool.gone.load(Relaxed) {
            unused.into_iter().for_each(|block| context_pool.keep(block, now));
        }
    }

    /// Takes in the caches of ended threads, as far as a few looks find them. Whether there were any.
    #[cold]
    pub(super) fn collect_ended(&self) -> bool {
        /// A look reads a word that another thread writes.
        const LOOKS: usize = 16;
        let Some(shim) = gate::shim() else { return false };
        let mut looked_at: [Option<&ThreadCache>; LOOKS] = [None; LOOKS];
        {
            let caches = lock(&self.caches);
            let first = self.looked.fetch_add(LOOKS, Relaxed);
            let next = (0..caches.len()).map(|index| caches[(first + index) % caches.len()]);
            looked_at.iter_mut().zip(next).for_each(|(place, cache)| *place = Some(cache));
        }
        let mut any = false;
        for cache in looked_at.into_iter().flatten() {
            any |= cache.bytes.load(Relaxed) != 0 && cache.end(|| self.empty(shim, cache));
        }
        if any {
            self.share_out();
        }
        any
    }

    /// Gives back all idle blocks, of one device or of all. The answer is the bytes that went back and the bytes that
    /// stay because work is pending. `at_once`: somebody waits for it, so a release stream is used where there can be
    /// one.
    pub(super) fn give_back(&'static self, shim: &'static Shim, device: Option<Device>, at_once: bool) -> (u64, u64) {
        self.gather(shim);
        let (mut back, mut stays) = (0, 0);
        for context_pool in self
            .context_pools()
            .into_iter()
            .filter(|context_pool| device.is_none_or(|device| device == context_pool.device))
        {
            let Some(_hold) = context_pool.hold().filter(|_| !self.is_ending()) else { continue };
            if context_pool.has_pending() {
                context_pool.reap(clock::now_ns());
            }
            self.end_quarantine(context_pool);
            back += match at_once && context_pool.gives_back_at_once() {
                true => self.release(context_pool, Most::AtLeast(u64::MAX, usize::MAX), || false),
                false => self.release_for_user(context_pool),
            };
            stays += self.idle(context_pool);
            self.tell_idle(shim, context_pool);
        }
        (back, stays)
    }

    /// Writes down what is idle in a context: bytes and the number of blocks. For threads' caches these are the numbers
    /// of the last look.
    fn tell_idle(&self, shim: &Shim, context_pool: &'static ContextPool) {
        let (mut bytes, mut blocks) = context_pool.idle_blocks();
        for cache in self.caches().into_iter().filter(|cache| std::ptr::eq(cache.last_context_pool(), context_pool)) {
            let (more, in_blocks) = cache.looked();
            (bytes, blocks) = (bytes + more, blocks + in_blocks);
        }
        block_records::idle(shim, context_pool, bytes, blocks);
    }
}

/// What is done once a second.
pub(crate) fn housekeeping(shim: &'static Shim) {
    all().for_each(|pool| pool.housekeeping(shim));
}

/// Gives back all that is idle, for `gpumem trim`. The answer is a sentence for people.
pub(crate) fn trim(shim: &'static Shim) -> String {
    shim.count(counters::TRIMS, 1);
    let (back, stays) = all().fold((0, 0), |(back, stays), pool| {
        let (more, left) = pool.give_back(shim, None, false);
        (back + more, stays + left)
    });
    match stays {
        0 => format!("{} given back", units::bytes(back)),
        _ => format!("{} given back; {} stay while their contexts work", units::bytes(back), units::bytes(stays)),
    }
}

/// The process is ending: nothing is given back any more, not even by threads of ours.
///
/// What waits for threads is done here and not once the library has ended: from then on each call of the program fails,
/// and threads that go on have the less time to act on that.
extern "C" fn at_exit() {
    for pool in all() {
        pool.end();
        for context_pool in pool.context_pools() {
            // Not for ever: such a release may wait for something that the program does only later.
            context_pool.wait_for_releases(Duration::from_secs(1));
        }
        gate::record_if_started(|shim| pool.report_all(shim));
    }
}

/// Registers [`at_exit`] so that it runs before the library's own handlers: handlers run in the opposite order of their
/// registration.
pub(crate) fn end_before_the_library() {
    // SAFETY: `at_exit` has the type that is asked for. It is code of this library, which is never
    // unloaded.
    unsafe { libc::atexit(at_exit) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::{Block, State};
    use crate::pool::thread::Pushed;
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;

    /// A thread that goes on with one size gives up the others.
    #[test]
    fn what_a_thread_does_not_use_is_everybodys() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let (context_pool, cache) = (ContextPool::made_up(1, 0, 0), ThreadCache::default());
        let push = |class, bytes| {
            let block: &'static Block = Box::leak(Box::default());
            block.bytes.store(bytes, Relaxed);
            block.asked.store(bytes, Relaxed);
            block.set(State::Idle);
            let mut taken = cache.enter().unwrap();
            assert!(matches!(taken.push(class, block, 1 << 20), Pushed::Kept(None)));
        };
        cache.take().unwrap().rebind(context_pool);
        [(3, 1024), (3, 1024), (20, 65536)].into_iter().for_each(|(class, bytes)| push(class, bytes));
        for _ in 0..5 {
            pool.collect_unused(&cache);
            // As a request and its free do.
            let block = cache.enter().unwrap().pop_for(3).unwrap();
            block.asked.store(1000, Relaxed);
            block.set(State::Idle);
            assert!(matches!(cache.enter().unwrap().push(3, block, 1 << 20), Pushed::Kept(None)));
        }
        assert_eq!((cache.bytes.load(Relaxed), context_pool.idle()), (1024, 1024 + 65536));
        assert_eq!(cache.looked(), (1024, 1), "what a thread keeps is in blocks, too");
        pool.collect_unused(&cache);
        pool.collect_unused(&cache);
        assert_eq!((cache.bytes.load(Relaxed), context_pool.idle_blocks()), (0, (2 * 1024 + 65536, 3)));
    }

    /// The frees of one context do not keep another context from looking.
    #[test]
    fn each_context_looks_for_itself() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool = Pool::new(Vendor::Cuda, &settings, true);
        let due = [1, 2].map(|context| {
            let context_pool = ContextPool::made_up(context, 0, 0);
            let block: &'static Block = Box::leak(Box::default());
            block.bytes.store(1024, Relaxed);
            block.set(State::Busy);
            context_pool.keep(block, 1);
            let now = 1 + pool.decay_ns.load(Relaxed) * 2;
            (pool.decayed(context_pool, now), pool.decayed(context_pool, now))
        });
        assert_eq!(due, [(1024, 0), (1024, 0)]);
    }

    #[test]
    fn what_is_idle_goes_slowly_at_first_and_is_gone_in_the_end() {
        assert_eq!(staying(0, 10), 1.0);
        assert_eq!(staying(10, 10), 0.0);
        assert_eq!(staying(1000, 10), 0.0);
        assert!((staying(5, 10) - 0.5).abs() < 1e-9);
        let curve: Vec<f64> = (0..=10).map(|age| staying(age, 10)).collect();
        assert!(curve.is_sorted_by(|a, b| a >= b) && curve[1] > 0.99);
    }
}
