//! Two counts that tell if anything is under way, between its beginning and its end. Many threads write them cheaply,
//! and few read them.
//!
//! Each thread has its own line and raises `begun` there before, `done` after. The reader sums up `done`, then `begun`.
//! On each line `begun` is never behind `done`. So if the sums are equal, the counts of every line are equal. And since
//! all of `begun` was read after all of `done`, nothing was open in between: at the reader's fence.

use super::atomic::{AtomicU64, AtomicUsize, Ordering::*, fence, raise_before};

/// The counts of one thread, or of several that share the line.
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

/// Something that has begun. It is done on drop, also when unwinding.
pub(super) struct Open<'a> {
    shard: &'a Shard,
    alone: bool,
}

impl<const N: usize, const OWN: usize> Counts<N, OWN> {
    /// Counts something as begun, before it begins. `thread` is the calling thread's number, which no other thread has.
    #[inline(always)]
    pub(super) fn open(&self, thread: usize) -> Open<'_> {
        let index = if thread < OWN { thread } else { OWN + (thread - OWN) % (N - OWN) };
        let shard = &self.shards[index];
        // Before the line counts, `used` is beyond it. A reader that sees the count sees that too.
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

    /// Returns how many have begun, as far as the calling thread knows. If that equals an earlier answer of
    /// [`Counts::if_none_open`], all of them are done, since no line ever goes back.
    #[inline(always)]
    pub(super) fn begun(&self) -> u64 {
        let used = self.used.load(Acquire);
        self.shards.iter().take(used).map(|shard| shard.begun.load(Acquire)).sum()
    }

    /// Returns how many are done, if all that have begun are done.
    #[inline]
    pub(super) fn if_none_open(&self) -> Option<u64> {
        self.if_only_open(0)
    }

    /// As [`Counts::if_none_open`], called from within something that thread `thread` itself has begun.
    pub(super) fn if_none_open_but_of(&self, thread: usize) -> Option<u64> {
        // A line that several threads write does not tell whose is open.
        let own = self.shards[..OWN].get(thread);
        self.if_only_open(own.map_or(0, |own| own.begun.load(Relaxed) - own.done.load(Relaxed)))
    }

    /// Returns how many are done, if exactly `open` have begun and are not done.
    fn if_only_open(&self, open: u64) -> Option<u64> {
        let used = self.used.load(Relaxed);
        // Acquire: a reader that sees `done` also sees that it had begun before, and what was done.
        let done: u64 = self.shards.iter().take(used).map(|shard| shard.done.load(Acquire)).sum();
        // Anything that has not raised `begun` by now begins after this.
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
