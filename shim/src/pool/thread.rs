//! Blocks that a thread keeps for itself, so that threads do not meet.
//!
//! Each thread has a cache for one context at a time. Its lock is taken by its thread for a few
//! instructions, and by whoever empties it: never waited for by its thread. Caches are never freed;
//! those of threads that ended are emptied and used again.

use super::block::Block;
use super::owner::Owner;
use super::size::CLASSES;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Blocks of one size.
const DEPTH: usize = 4;

/// What became of a block that a thread was to keep.
pub enum Pushed {
    /// It is kept; what had to leave for it, if anything did.
    Kept(Option<&'static Block>),
    /// There is no room for its size.
    Full,
}

/// One thread's.
#[derive(Default)]
#[repr(align(128))]
pub struct ThreadCache {
    taken: AtomicBool,
    /// The thread; 0: nobody's.
    pub tid: AtomicU32,
    /// The context whose blocks these are.
    owner: AtomicPtr<Owner>,
    /// Live bytes that the context was not told of yet.
    pub untold: AtomicI64,
    /// Bytes of the blocks in it.
    pub bytes: AtomicU64,
    /// Changes when it is used.
    pub uses: AtomicU64,
    /// `uses` at the last look.
    pub seen: AtomicU64,
    bins: UnsafeCell<Bins>,
}

struct Bins {
    all: [Bin; CLASSES],
    /// Where the last block was evicted.
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

// SAFETY: the bins are reached through `Taken` only, of which there is one at a time.
unsafe impl Sync for ThreadCache {}

/// A cache whose lock is held.
pub struct Taken<'a>(&'a ThreadCache);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl ThreadCache {
    /// Its lock, unless somebody has it.
    #[inline]
    pub fn take(&self) -> Option<Taken<'_>> {
        // Read first: a line that is not ours is not made ours in vain.
        (!self.taken.load(Relaxed) && !self.taken.swap(true, Acquire)).then_some(Taken(self))
    }

    /// The context whose blocks it has.
    #[inline]
    pub fn last_owner(&self) -> *const Owner {
        self.owner.load(Relaxed)
    }
}

impl Taken<'_> {
    #[inline]
    pub fn owner(&self) -> *const Owner {
        self.0.owner.load(Relaxed)
    }

    /// Live bytes came (or went) that the context is to be told of some time.
    #[inline]
    pub fn tell(&self, bytes: i64) {
        self.0.untold.store(self.0.untold.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    /// What it is to be told now.
    pub fn untold(&self) -> i64 {
        self.0.untold.swap(0, Relaxed)
    }

    #[inline]
    fn bins(&mut self) -> &mut Bins {
        // SAFETY: the lock is held, by this value alone.
        unsafe { &mut *self.0.bins.get() }
    }

    /// The block of a class that has the lowest address.
    #[inline]
    pub fn pop(&mut self, class: usize) -> Option<&'static Block> {
        let bin = self.bins().all.get_mut(class)?;
        bin.len = bin.len.checked_sub(1)?;
        let block = bin.blocks[bin.len % DEPTH].take()?;
        let bytes = self.0.bytes.load(Relaxed) - block.bytes.load(Relaxed);
        self.0.bytes.store(bytes, Relaxed);
        self.used();
        Some(block)
    }

    /// Keeps a block, of all together `most` bytes.
    #[inline]
    pub fn push(&mut self, class: usize, block: &'static Block, most: u64) -> Pushed {
        let mut bytes = self.0.bytes.load(Relaxed) + block.bytes.load(Relaxed);
        if self.bins().all.get(class).is_none_or(|bin| bin.len == DEPTH) {
            return Pushed::Full;
        }
        let mut leaves = None;
        if bytes > most {
            leaves = self.evict(class, bytes - most);
            let Some(leaves) = leaves else { return Pushed::Full };
            bytes -= leaves.bytes.load(Relaxed);
        }
        let Some(bin) = self.bins().all.get_mut(class) else { return Pushed::Full };
        // The lowest address comes last, and is taken first: a program that does the same again gets the
        // same addresses.
        let addr = block.addr.load(Relaxed);
        let mut at = bin.len;
        while at > 0 && bin.blocks[at - 1].is_some_and(|other| other.addr.load(Relaxed) < addr) {
            bin.blocks[at] = bin.blocks[at - 1];
            at -= 1;
        }
        bin.blocks[at] = Some(block);
        bin.len += 1;
        self.0.bytes.store(bytes, Relaxed);
        self.used();
        Pushed::Kept(leaves)
    }

    /// Takes out a block of another size, and of so many bytes at least, of each in turn: sizes that are
    /// asked for come back.
    #[cold]
    fn evict(&mut self, kept: usize, bytes: u64) -> Option<&'static Block> {
        let bins = self.bins();
        for _ in 0..CLASSES {
            bins.next = (bins.next + 1) % CLASSES;
            let bin = &mut bins.all[bins.next];
            let Some(last) = bin.len.checked_sub(1).filter(|_| bins.next != kept) else { continue };
            if bin.blocks[last].is_some_and(|block| block.bytes.load(Relaxed) >= bytes) {
                bin.len = last;
                return bin.blocks[last].take();
            }
        }
        None
    }

    #[inline]
    fn used(&self) {
        self.0.uses.store(self.0.uses.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Takes everything out and binds the cache to another context.
    pub fn rebind(&mut self, owner: *const Owner) -> Vec<&'static Block> {
        let mut all = Vec::new();
        for bin in &mut self.bins().all {
            all.extend(bin.blocks.iter_mut().filter_map(Option::take));
            bin.len = 0;
        }
        self.0.bytes.store(0, Relaxed);
        self.0.owner.store(owner.cast_mut(), Relaxed);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: u64) -> &'static Block {
        let block: &'static Block = Box::leak(Box::default());
        block.bytes.store(bytes, Relaxed);
        block
    }

    #[test]
    fn a_cache_keeps_a_few_of_each_size_and_so_many_bytes() {
        let cache = ThreadCache::default();
        let mut taken = cache.take().unwrap();
        assert!(cache.take().is_none());
        const MOST: u64 = 64 << 20;
        let mut push = |class, block| match taken.push(class, block, MOST) {
            Pushed::Kept(leaves) => Some(leaves.map(|block: &Block| block.bytes.load(Relaxed))),
            Pushed::Full => None,
        };
        for _ in 0..DEPTH {
            assert_eq!(push(3, block(1024)), Some(None));
        }
        assert_eq!((push(3, block(1024)), push(CLASSES, block(1)), push(9, block(MOST + 1))), (None, None, None));
        // What is kept longest makes room: 4096 bytes are there.
        let (large, larger) = (block(MOST - 4096), block(8192));
        assert_eq!(push(110, large), Some(None));
        assert_eq!(push(4, larger), Some(Some(MOST - 4096)));
        assert!(taken.pop(110).is_none() && std::ptr::eq(taken.pop(4).unwrap(), larger));
        assert_eq!(cache.bytes.load(Relaxed), 4096);
        assert_eq!(taken.rebind(std::ptr::null()).len(), DEPTH);
        assert_eq!(cache.bytes.load(Relaxed), 0);
        drop(taken);
        assert!(cache.take().is_some());
    }
}
