//! Blocks that a thread keeps for itself, so that threads need not wait for each other.
//!
//! Each thread has a cache, which is bound to one context at a time. The thread enters its cache for a few instructions
//! at a time. Another thread that wants to empty the cache announces this and waits until the cache's thread is out.
//! The cache's thread never waits: it works without its cache meanwhile. Caches are never freed. Those of ended threads
//! are emptied and reused.

use super::biased_lock::{BiasedLock, Held};
use super::block::Block;
use super::context_pool::ContextPool;
use super::size::{self, CLASSES};
use crate::process::thread_end::Lifetime;
use crate::process::threads::Local;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering::*};

/// The most blocks of one size.
const DEPTH: usize = 4;
/// How often another thread looks at a cache that its own thread may be in for a few instructions.
pub(super) const LOOKS: usize = 1000;

/// The cache of one thread.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct ThreadCache {
    /// Its owner is the cache's thread.
    lock: BiasedLock,
    /// The cache has a thread, which may have ended. Only a thread that holds `life` changes this.
    has_thread: AtomicBool,
    /// The pool of the context whose blocks are in the cache.
    context_pool: AtomicPtr<ContextPool>,
    /// Live bytes that are not in the context's total yet.
    unreported: AtomicI64,
    /// Bytes of the blocks in it.
    bytes: AtomicU64,
    /// Changes on each use of the cache.
    uses: AtomicU64,
    /// `uses` at the last look.
    last_uses: AtomicU64,
    /// Bytes and blocks in the cache at the control thread's last look.
    looked: [AtomicU64; 2],
    life: Lifetime,
    bins: UnsafeCell<Bins>,
}

struct Bins {
    all: [Bin; CLASSES],
    /// The class from which the last block was evicted.
    next: usize,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    len: usize,
    blocks: [Option<&'static Block>; DEPTH],
}

impl Default for Bins {
    fn default() -> Self {
        Self { all: [Bin::default(); CLASSES], next: 0 }
    }
}

// SAFETY: the bins are reached only through a `Taken`, and a lock allows one `Taken` at a time. The other fields are
// atomics.
unsafe impl Sync for ThreadCache {}

/// Exclusive access to a cache.
pub(crate) struct Taken<'a> {
    cache: &'a ThreadCache,
    _held: Held<'a>,
}

impl ThreadCache {
    /// Returns the cache of a thread.
    #[inline(always)]
    pub(crate) fn of(local: &Local) -> Option<&'static Self> {
        // SAFETY: only `belongs_to` stores into this slot, and it stores a ThreadCache.
        unsafe { local.cache.get() }
    }

    /// Makes this the cache that [`ThreadCache::of`] finds for a thread.
    pub(crate) fn belongs_to(&'static self, local: &Local) {
        local.cache.set(Some(self));
    }

    /// Makes this the calling thread's cache for that thread's lifetime, unless the cache has a thread.
    pub(crate) fn begin(&'static self) -> bool {
        if self.has_thread() {
            return false;
        }
        let Some(held) = self.life.hold() else { return false };
        let is_mine = !self.has_thread.swap(true, AcqRel);
        if is_mine {
            held.for_life();
        }
        is_mine
    }

    /// Releases the cache for another thread, if its thread has ended and `empty` returns true: nothing is left in it.
    pub(crate) fn end(&self, empty: impl FnOnce() -> bool) -> bool {
        let held = if self.has_thread() { self.life.hold() } else { None };
        // Another thread may have been faster.
        let ended = held.is_some() && self.has_thread() && empty();
        if ended {
            self.has_thread.store(false, Release);
        }
        ended
    }

    /// Returns true if the cache has a thread, as far as is known.
    pub(crate) fn has_thread(&self) -> bool {
        self.has_thread.load(Acquire)
    }

    /// For the cache's own thread: enters, unless another thread wants the cache, or this thread is inside already (in
    /// a signal handler).
    #[inline(always)]
    pub(crate) fn enter(&self) -> Option<Taken<'_>> {
        self.lock.enter().map(|held| Taken { cache: self, _held: held })
    }

    /// For any thread: enters once the cache's thread is out. `None` if another thread is doing the same, or if the
    /// cache's thread does not come out (it may have been stopped inside).
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        self.lock.take().map(|held| Taken { cache: self, _held: held })
    }

    /// Returns the bytes and blocks at the control thread's last look. The two are consistent.
    pub(crate) fn looked(&self) -> (u64, u64) {
        (self.looked[0].load(Relaxed), self.looked[1].load(Relaxed))
    }

    /// Resets the result of the last look to zero.
    pub(crate) fn clear_looked(&self) {
        self.looked.iter().for_each(|looked| looked.store(0, Relaxed));
    }

    /// Returns the bytes of the blocks in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Notes the uses so far. Returns true if there were any since the last call.
    pub(crate) fn count_uses(&self) -> bool {
        let uses = self.uses.load(Relaxed);
        self.last_uses.swap(uses, Relaxed) != uses
    }

    /// Returns true if some live bytes are not in the context's total yet.
    pub(crate) fn keeps_bytes(&self) -> bool {
        self.unreported.load(Acquire) != 0
    }

    /// Returns the pool of the context whose blocks are in the cache.
    #[inline(always)]
    pub(crate) fn context_pool(&self) -> Option<&'static ContextPool> {
        // SAFETY: null, or the pointer that `rebind` stored: a ContextPool from a leaked box, which is never freed.
        unsafe { self.context_pool.load(Relaxed).as_ref() }
    }

    /// Returns true if the cache is bound to this context.
    #[inline]
    pub(crate) fn is_of(&self, context_pool: &ContextPool) -> bool {
        std::ptr::eq(self.context_pool.load(Relaxed), context_pool)
    }
}

impl Taken<'_> {
    /// Returns the pool of the context whose blocks are in the cache.
    #[inline]
    pub(crate) fn context_pool(&self) -> Option<&'static ContextPool> {
        self.cache.context_pool()
    }

    /// Returns the bytes of the blocks in the cache.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.bytes.load(Relaxed)
    }

    /// Counts live bytes that came (or went) for the context's total. Returns the bytes to add to that total now: 0
    /// until the sum reaches `most`.
    #[inline]
    pub(crate) fn report(&self, bytes: i64, most: i64) -> i64 {
        let unreported = self.cache.unreported.load(Relaxed).wrapping_add(bytes);
        let now = unreported.abs() >= most;
        self.cache.unreported.store(if now { 0 } else { unreported }, Relaxed);
        if now { unreported } else { 0 }
    }

    /// Lets `add` add the live bytes that are not in the context's total yet. A thread that finds none left out finds
    /// them in the total: the process may end at any moment.
    pub(crate) fn report_all(&self, add: impl FnOnce(i64)) {
        add(self.cache.unreported.load(Relaxed));
        self.cache.unreported.store(0, Release);
    }

    #[inline]
    fn bins(&mut self) -> &mut Bins {
        // SAFETY: a `Taken` holds the cache's lock until it is dropped, and `self` is borrowed mutably. So there is no
        // other reference to the bins.
        unsafe { &mut *self.cache.bins.get() }
    }

    /// Takes a block for a request of this class. Takes one of the next class if it may serve the request, as the
    /// context's pool does. Otherwise larger blocks of the context's pool would pass through this cache one by one and
    /// never stay.
    #[inline(always)]
    pub(crate) fn pop_for(&mut self, class: usize) -> Option<&'static Block> {
        match self.pop(class) {
            None => self.pop(size::next_that_serves(class)?),
            found => found,
        }
    }

    /// Takes the block of a class with the lowest address.
    #[inline(always)]
    fn pop(&mut self, class: usize) -> Option<&'static Block> {
        let bin = self.bins().all.get_mut(class)?;
        bin.len = bin.len.checked_sub(1)?;
        let block = bin.blocks[bin.len % DEPTH].take()?;
        let bytes = self.bytes() - block.bytes();
        self.cache.bytes.store(bytes, Relaxed);
        self.used();
        Some(block)
    }

    /// Returns true if a block of `bytes` fits without evicting another one, if all blocks together may have `most`
    /// bytes.
    #[inline(always)]
    pub(crate) fn has_room(&self, class: usize, bytes: u64, most: u64) -> bool {
        // SAFETY: a `Taken` holds the cache's lock until it is dropped. Only `bins`, which borrows it mutably, gives
        // out a mutable reference.
        let bins = unsafe { &*self.cache.bins.get() };
        self.bytes() + bytes <= most && bins.all.get(class).is_some_and(|bin| bin.len < DEPTH)
    }

    /// Keeps a block, if all blocks together may have `most` bytes. Returns the block that was evicted for it, if any.
    /// `None`: there is no room for its size.
    pub(crate) fn push(&mut self, class: usize, block: &'static Block, most: u64) -> Option<Option<&'static Block>> {
        let bytes = self.bytes() + block.bytes();
        if self.bins().all.get(class).is_none_or(|bin| bin.len == DEPTH) {
            return None;
        }
        let mut leaves = None;
        if bytes > most {
            let evicted = self.evict(class, bytes - most)?;
            self.cache.bytes.store(self.bytes() - evicted.bytes(), Relaxed);
            leaves = Some(evicted);
        }
        self.keep(class, block);
        Some(leaves)
    }

    /// Keeps a block for which there is room ([`Taken::has_room`]).
    #[inline(always)]
    pub(crate) fn keep(&mut self, class: usize, block: &'static Block) {
        let Some(bin) = self.bins().all.get_mut(class).filter(|bin| bin.len < DEPTH) else { return };
        // The lowest address is last and is taken first. So a program that repeats itself gets the same addresses.
        let addr = block.addr();
        let mut at = bin.len;
        while at > 0 && bin.blocks[at - 1].is_some_and(|other| other.addr() < addr) {
            bin.blocks[at] = bin.blocks[at - 1];
            at -= 1;
        }
        bin.blocks[at] = Some(block);
        bin.len += 1;
        self.cache.bytes.store(self.bytes() + block.bytes(), Relaxed);
        self.used();
    }

    /// Takes out one block of another size and of at least `bytes`. The sizes take turns, since sizes that are in use
    /// come back.
    #[cold]
    fn evict(&mut self, kept: usize, bytes: u64) -> Option<&'static Block> {
        let bins = self.bins();
        for _ in 0..CLASSES {
            bins.next = (bins.next + 1) % CLASSES;
            let bin = &mut bins.all[bins.next];
            let Some(last) = bin.len.checked_sub(1).filter(|_| bins.next != kept) else { continue };
            if bin.blocks[last].is_some_and(|block| block.bytes() >= bytes) {
                bin.len = last;
                return bin.blocks[last].take();
            }
        }
        None
    }

    #[inline]
    fn used(&self) {
        self.cache.uses.store(self.cache.uses.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Takes out the blocks that were not handed out since the last call.
    pub(crate) fn unused(&mut self) -> Vec<&'static Block> {
        let mut all = Vec::new();
        for bin in &mut self.bins().all {
            let blocks = std::mem::take(bin).blocks;
            for block in blocks.into_iter().flatten() {
                // Handing out a block writes how much was asked for, which is never 0.
                if block.take_asked() == 0 {
                    all.push(block);
                } else {
                    bin.blocks[bin.len] = Some(block);
                    bin.len += 1;
                }
            }
        }
        let bytes: u64 = all.iter().map(|block| block.bytes()).sum();
        self.cache.bytes.store(self.bytes() - bytes, Relaxed);
        all
    }

    /// Remembers the bytes and blocks in the cache.
    pub(crate) fn look(&mut self) {
        let blocks: usize = self.bins().all.iter().map(|bin| bin.len).sum();
        self.cache.looked[0].store(self.bytes(), Relaxed);
        self.cache.looked[1].store(blocks as u64, Relaxed);
    }

    /// Takes everything out and binds the cache to another context's pool.
    pub(crate) fn rebind(&mut self, context_pool: Option<&'static ContextPool>) -> Vec<&'static Block> {
        let mut all = Vec::new();
        for bin in &mut self.bins().all {
            all.extend(bin.blocks.iter_mut().filter_map(Option::take));
            bin.len = 0;
        }
        self.cache.bytes.store(0, Relaxed);
        self.cache.clear_looked();
        let bound_to = context_pool.map_or(std::ptr::null(), std::ptr::from_ref);
        self.cache.context_pool.store(bound_to.cast_mut(), Relaxed);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::fences;

    fn block(bytes: u64) -> &'static Block {
        let block: &'static Block = Box::leak(Box::default());
        block.set_bytes(bytes);
        block
    }

    /// A process that ends just now leaves a ledger whose total has them.
    #[test]
    fn live_bytes_are_in_the_total_before_the_cache_has_none() {
        let cache = ThreadCache::default();
        assert_eq!(cache.enter().unwrap().report(6000, 1 << 20), 0);
        let mut total = 0;
        cache.take().unwrap().report_all(|bytes| {
            assert!(cache.keeps_bytes(), "whoever adds them up now would miss them");
            total += bytes;
        });
        assert_eq!((total, cache.keeps_bytes()), (6000, false));
    }

    #[test]
    fn a_cache_keeps_a_few_of_each_size_and_so_many_bytes() {
        let cache = ThreadCache::default();
        let mut taken = cache.take().unwrap();
        assert!(cache.take().is_none() && cache.enter().is_none());
        const MOST: u64 = 64 << 20;
        let mut push = |class, block| Some(taken.push(class, block, MOST)?.map(|block: &Block| block.bytes()));
        for _ in 0..DEPTH {
            assert_eq!(push(3, block(1024)), Some(None));
        }
        assert_eq!((push(3, block(1024)), push(CLASSES, block(1)), push(9, block(MOST + 1))), (None, None, None));
        // The block that was kept longest makes room: it has 4096 bytes.
        let (large, larger) = (block(MOST - 4096), block(8192));
        assert_eq!(push(110, large), Some(None));
        assert_eq!(push(4, larger), Some(Some(MOST - 4096)));
        assert!(taken.pop(110).is_none() && std::ptr::eq(taken.pop(4).unwrap(), larger));
        assert_eq!(cache.bytes(), 4096);
        assert_eq!(taken.rebind(None).len(), DEPTH);
        assert_eq!(cache.bytes(), 0);
        drop(taken);
        let inside = cache.enter().unwrap();
        assert!(cache.enter().is_none() && cache.take().is_none());
        drop(inside);
        assert!(cache.enter().is_some() && cache.take().is_some());
    }

    #[test]
    fn the_next_larger_block_serves_where_there_is_none_of_the_size() {
        let cache = ThreadCache::default();
        let mut taken = cache.enter().unwrap();
        let [class, of_a_unit] = [6, 2].map(|units| size::class_of(units * size::UNIT).unwrap());
        for class in [class, class, of_a_unit] {
            taken.push(class, block(4096), 64 << 20);
        }
        assert!(taken.pop_for(class - 2).is_none() && taken.pop_for(of_a_unit - 1).is_none());
        assert!(taken.pop_for(class - 1).is_some() && taken.pop_for(class).is_some() && taken.pop_for(class).is_none());
    }

    /// Both sides change a count without an atomic addition. That is correct only if they are never inside together.
    #[test]
    fn its_thread_and_others_are_never_in_it_together() {
        const EACH: u64 = 200_000;
        fences::prepare();
        let cache = ThreadCache::default();
        let more = |taken: Taken<'_>| taken.used();
        let taken = std::thread::scope(|scope| {
            let others = [(); 2]
                .map(|()| scope.spawn(|| (0..EACH / 20).filter(|_| cache.take().map(more).is_some()).count() as u64));
            let own = (0..EACH).filter(|_| cache.enter().map(more).is_some()).count() as u64;
            own + others.into_iter().map(|other| other.join().unwrap()).sum::<u64>()
        });
        assert_eq!(cache.uses.load(Relaxed), taken);
    }
}
