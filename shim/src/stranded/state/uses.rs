//! Tells which older blocks of a growing call site work still uses, from what the program gives the device: arguments
//! of kernels, copies and fills.
//!
//! Until a site may strand memory this costs one load per submission. Then each argument that is an address in a
//! watched block marks that block, under a lock that is only tried, never waited for. A use that one call misses is
//! seen at the next. Launches of graphs show no arguments.

use super::sites::Watched;
use crate::process::clock;
use crate::process::lock::lock;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The range of all watched blocks.
struct Wanted {
    from: AtomicU64,
    /// 0: no block is watched.
    to: AtomicU64,
    /// True if the guard needs all uses, whichever blocks are watched here.
    all: AtomicBool,
}

static WANTED: Wanted = Wanted::new();

impl Wanted {
    const fn new() -> Self {
        Self { from: AtomicU64::new(0), to: AtomicU64::new(0), all: AtomicBool::new(false) }
    }

    #[inline(always)]
    fn holds(&self, word: u64) -> bool {
        word >= self.from.load(Relaxed) && word < self.to.load(Relaxed)
    }
}

/// Examines all arguments from now on.
pub(crate) fn watch_all() {
    WANTED.all.store(true, Relaxed);
    // No device memory lies below this address.
    WANTED.from.store(1 << 32, Relaxed);
    WANTED.to.store(u64::MAX, Relaxed);
}

/// True if uses are wanted.
#[inline(always)]
pub(crate) fn watching() -> bool {
    WANTED.to.load(Relaxed) != 0
}

/// True if a word may be a wanted address.
#[inline]
pub(crate) fn may_matter(word: u64) -> bool {
    WANTED.holds(word)
}

/// The watched blocks, by address.
pub(crate) struct Uses {
    wanted: &'static Wanted,
    blocks: Mutex<Vec<WatchedRange>>,
    /// True if some of them were used since the last [`Uses::take`].
    any: AtomicBool,
}

struct WatchedRange {
    range: Range<u64>,
    /// Time of the last seen use. 0: none since the last [`Uses::take`].
    used_ns: u64,
}

impl Default for Uses {
    fn default() -> Self {
        Self::of(&WANTED)
    }
}

impl Uses {
    fn of(wanted: &'static Wanted) -> Self {
        Self { wanted, blocks: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Watches one block more or less, or exactly these blocks.
    pub(crate) fn watch(&self, changed: Watched) {
        let mut blocks = lock(&self.blocks);
        let place = |blocks: &[WatchedRange], addr| blocks.partition_point(|block| block.range.start < addr);
        match changed {
            Watched::Came(range) => {
                let at = place(&blocks, range.start);
                blocks.insert(at, WatchedRange { range, used_ns: 0 });
            }
            Watched::Went(addr) => {
                let at = place(&blocks, addr);
                if blocks.get(at).is_some_and(|block| block.range.start == addr) {
                    blocks.remove(at);
                }
            }
            Watched::All(mut ranges) => {
                ranges.sort_unstable_by_key(|range| range.start);
                *blocks = ranges.into_iter().map(|range| WatchedRange { range, used_ns: 0 }).collect();
            }
        }
        if self.wanted.all.load(Relaxed) {
            return;
        }
        self.wanted.from.store(blocks.first().map_or(0, |first| first.range.start), Relaxed);
        self.wanted.to.store(blocks.last().map_or(0, |last| last.range.end), Relaxed);
    }

    /// True if there are uses to take.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Returns the addresses of blocks used since the last call, and when.
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        if !self.any.swap(false, Relaxed) {
            return Vec::new();
        }
        let mut blocks = lock(&self.blocks);
        let used = blocks.iter_mut().filter(|block| block.used_ns != 0);
        used.map(|block| (block.range.start, std::mem::take(&mut block.used_ns))).collect()
    }

    /// Marks the blocks that these words are addresses in.
    pub(crate) fn mark(&self, words: &[u64]) {
        let Ok(mut blocks) = self.blocks.try_lock() else { return };
        // With a guard all arguments are examined, and mostly no block is watched here.
        if blocks.is_empty() {
            return;
        }
        let now_ns = clock::precise_ns();
        for &word in words.iter().filter(|&&word| self.wanted.holds(word)) {
            let behind = blocks.partition_point(|block| block.range.start <= word);
            if let Some(block) = behind.checked_sub(1).and_then(|index| blocks.get_mut(index))
                && word < block.range.end
            {
                block.used_ns = now_ns;
                self.any.store(true, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mark_the_blocks_that_they_lie_in() {
        // The range of the process belongs to the other tests of this process as well.
        static WANTED: Wanted = Wanted::new();
        let uses = Uses::of(&WANTED);
        assert_eq!(uses.take(), []);
        uses.watch(Watched::All(vec![0x5000..0x6000, 0x1000..0x3000]));
        assert_eq!([8, 0x1000, 0x6000].map(|word| WANTED.holds(word)), [false, true, false]);
        uses.mark(&[0x0fff, 0x3000, 0x4fff, 0x6000, 7]);
        assert_eq!(uses.take(), []);
        uses.mark(&[0x5fff]);
        let used = uses.take();
        assert!(matches!(used[..], [(0x5000, at)] if at > 0), "{used:?}");
        uses.mark(&[0x5000, 0x1000]);
        assert_eq!(uses.take().len(), 2);
        assert_eq!(uses.take(), [], "each is told once");
        uses.watch(Watched::Came(0x8000..0x9000));
        uses.watch(Watched::Went(0x1000));
        uses.mark(&[0x8fff, 0x1000, 0x5000]);
        let used: Vec<_> = uses.take().into_iter().map(|(addr, _)| addr).collect();
        assert_eq!((used, WANTED.holds(0x1000)), (vec![0x5000, 0x8000], false));
        uses.watch(Watched::All(Vec::new()));
        assert_eq!(WANTED.to.load(Relaxed), 0);
    }
}
