//! Two counts that say whether anything is between its beginning and its end, kept by many threads at
//! little cost and read by whoever wants to know.
//!
//! Each thread writes a line of its own: `begun` before, `done` after. The reader sums `done`, then `begun`.
//! On each line `begun` is never behind `done`, so equal sums are equal counts on every line, and since all
//! of `begun` was read after all of `done`, nothing was open in between: at the reader's fence.

use super::atomic::{AtomicU64, AtomicUsize, Ordering::*, fence, raise_before};

/// One thread's counts, or those of several that share the line.
#[repr(align(64))]
pub(super) struct Shard {
    pub begun: AtomicU64,
    pub done: AtomicU64,
}

/// `N` lines, of which the first `OWN` have one writer each.
pub(super) struct Counts<const N: usize, const OWN: usize> {
    pub shards: [Shard; N],
    /// Lines from this one on were never written.
    pub used: AtomicUsize,
}

/// Something has begun; it is done when this goes, however that comes about.
pub(super) struct Open<'a> {
    shard: &'a Shard,
    alone: bool,
}

impl<const N: usize, const OWN: usize> Counts<N, OWN> {
    /// Counts something as begun before it begins. `thread` is the number of the calling thread, which no
    /// other has.
    #[inline(always)]
    pub(super) fn open(&self, thread: usize) -> Open<'_> {
        let index = if thread < OWN { thread } else { OWN + (thread - OWN) % (N - OWN) };
        let shard = &self.shards[index];
        // Once it has counted, `used` is beyond it: who sees the one sees the other.
        if shard.begun.load(Acquire) == 0 {
            self.grow(index);
        }
        let alone = index < OWN;
        raise_before(&shard.begun, alone);
        Open { shard, alone }
    }

    #[cold]
    fn grow(&self, index: usize) {
        self.used.fetch_max(index + 1, Relaxed);
        fence(SeqCst);
    }

    /// How many have begun, as far as the calling thread knows of them. Where that is what [`Counts::if_none_open`] said
    /// before, each of them is done, since no line ever goes back.
    #[inline(always)]
    pub(super) fn begun(&self) -> u64 {
        let used = self.used.load(Acquire);
        self.shards.iter().take(used).map(|shard| shard.begun.load(Acquire)).sum()
    }

    /// How many are done, if that is all that have begun.
    #[inline]
    pub(super) fn if_none_open(&self) -> Option<u64> {
        self.quiet_but(0)
    }

    /// As [`Counts::if_none_open`], from within something that thread `thread` has begun itself.
    pub(super) fn if_none_open_but_of(&self, thread: usize) -> Option<u64> {
        // A line that others write, too, does not tell whose is open.
        let own = self.shards[..OWN].get(thread);
        self.quiet_but(own.map_or(0, |own| own.begun.load(Relaxed) - own.done.load(Relaxed)))
    }

    fn quiet_but(&self, open: u64) -> Option<u64> {
        let used = self.used.load(Relaxed);
        // Acquire: what was done, and that it had begun, is seen with it.
        let done: u64 = self.shards.iter().take(used).map(|shard| shard.done.load(Acquire)).sum();
        // What has not raised `begun` by now begins after this.
        fence(SeqCst);
        let used = self.used.load(Relaxed);
        let begun: u64 = self.shards.iter().take(used).map(|shard| shard.begun.load(Relaxed)).sum();
        (begun == done + open).then_some(done)
    }
}

impl Drop for Open<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let done = &self.shard.done;
        if self.alone {
            done.store(done.load(Relaxed) + 1, Release);
        } else {
            done.fetch_add(1, Release);
        }
    }
}
