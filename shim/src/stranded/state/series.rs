//! The shape of creeping growth: blocks of one call site, each a little larger than the one before, all still
//! allocated.

/// Minimum number of blocks in a series.
const LEAST: usize = 4;
/// A step of at most a quarter is creeping: ggml's pool requests 5 % more than it needs each time.
const CREEP: (u64, u64) = (5, 4);
/// A larger step is no creeping growth and ends the series. Early on, a context of 512 tokens doubles.
const JUMP: u64 = 2;

/// Number of blocks that are considered, from the newest back.
pub(super) const BACK: usize = 256;

/// A live block of a call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeriesBlock {
    pub addr: u64,
    pub bytes: u64,
    pub made_ns: u64,
    /// Count of submitted work when the block was made: see [`older`].
    pub work: u64,
    /// Time of the last seen use by work. 0: never.
    pub used_ns: u64,
}

/// The older blocks of a series: all but the requested one, or but the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::stranded) struct Older {
    pub blocks: usize,
    pub bytes: u64,
    /// Number of creeping steps among them, including the step to the newest block.
    creeps: usize,
    /// All blocks and creeping steps of the series, including blocks that work still uses.
    all: (usize, usize),
}

impl Older {
    /// True if this is a series: with the newest block it is long enough, and takes more than twice as much as that
    /// block.
    pub(super) fn strand(&self, newest: u64) -> bool {
        self.blocks + 1 >= LEAST && self.creeps + 1 >= LEAST && self.bytes > newest
    }

    /// True if the next block may make this a series. From here on it matters which blocks are used.
    pub(super) fn may_strand(&self) -> bool {
        self.all.0 + 2 >= LEAST && self.all.1 + 2 >= LEAST
    }
}

/// Returns the blocks that a new block of `newest` bytes leaves behind, in the order in which they were made, once work
/// has been submitted `work` times. A block that no later work could use is not left behind.
pub(super) fn older(blocks: &[SeriesBlock], newest: u64, work: u64) -> Older {
    let mut found = Older::default();
    let mut next = newest;
    // A block used by work after the last one was made is not left behind. The last one itself was used until now,
    // since its successor is only being made.
    let last_ns = blocks.last().map_or(0, |last| last.made_ns);
    for (back, block) in blocks.iter().rev().take(BACK).enumerate() {
        if block.bytes > next || next > block.bytes.saturating_mul(JUMP) {
            break;
        }
        // Blocks of one size are several pools or streams that grow alike.
        let creeps = block.bytes < next && next / CREEP.0 <= block.bytes / CREEP.1;
        next = block.bytes;
        found.all = (found.all.0 + 1, found.all.1 + usize::from(creeps));
        if block.work >= work || back > 0 && block.used_ns > last_ns {
            continue;
        }
        found.creeps += usize::from(creeps);
        found.blocks += 1;
        found.bytes += block.bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn blocks(sizes: &[u64]) -> Vec<SeriesBlock> {
        let block = |(n, &bytes): (usize, &u64)| SeriesBlock {
            addr: n as u64,
            bytes,
            made_ns: n as u64,
            work: n as u64,
            used_ns: 0,
        };
        sizes.iter().enumerate().map(block).collect()
    }

    fn strands(sizes: &[u64]) -> bool {
        let (newest, before) = sizes.split_last().unwrap();
        older(&blocks(before), *newest, before.len() as u64).strand(*newest)
    }

    #[test]
    fn steps_of_five_percent_are_a_series_from_the_fourth_block_on() {
        let sizes: Vec<u64> = std::iter::successors(Some(100 * MIB), |last| Some(last * 105 / 100)).take(20).collect();
        for len in 1..=20 {
            assert_eq!(strands(&sizes[..len]), len >= 4, "{len}");
        }
        let (newest, before) = sizes.split_last().unwrap();
        let found = older(&blocks(before), *newest, before.len() as u64);
        assert_eq!((found.blocks, found.bytes), (19, before.iter().sum::<u64>()));
    }

    #[test]
    fn a_prefill_is_recognised_early() {
        // A multiple of 512 tokens each time: doubles, then half more, then creeps.
        let sizes: Vec<u64> = (1..=64).map(|n| n * 17 * MIB).collect();
        let first = (1..=64).find(|&len| strands(&sizes[..len]));
        assert!(first.is_some_and(|first| first <= 9), "{first:?}");
    }

    #[test]
    fn what_only_looks_like_it_is_none() {
        // Weights of equal layers, sizes up and down, doubling, one larger block among small ones.
        assert!(!strands(&[64 * MIB; 30]));
        assert!(!strands(&[10 * MIB, 30 * MIB, 12 * MIB, 25 * MIB, 9 * MIB, 28 * MIB, 11 * MIB, 29 * MIB]));
        assert!(!strands(&[MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB]));
        assert!(!strands(&[MIB, 1100 << 10, 1200 << 10, 64 * MIB]));
        // Growth, but the present request is small.
        assert!(!strands(&[100 * MIB, 105 * MIB, 110 * MIB, 116 * MIB, 50 * MIB]));
    }

    #[test]
    fn two_pools_that_grow_alike_are_both_seen() {
        let sizes: Vec<u64> = (20..30).flat_map(|n| [n * MIB, n * MIB]).collect();
        assert!(strands(&sizes));
    }

    #[test]
    fn a_block_that_is_still_used_is_not_left_behind() {
        let mut all = blocks(&[100 * MIB, 105 * MIB, 110 * MIB, 116 * MIB]);
        let newest = 121 * MIB;
        assert!(older(&all, newest, 4).strand(newest));
        // The last block is always used until the next is made.
        all[3].used_ns = 1000;
        assert!(older(&all, newest, 4).strand(newest));
        all.iter_mut().for_each(|block| block.used_ns = 1000);
        let found = older(&all, newest, 4);
        assert_eq!((found.blocks, found.bytes), (1, 116 * MIB));
        assert!(!found.strand(newest) && found.may_strand());
        // Used as long as the block before it was, and no longer.
        all.iter_mut().for_each(|block| block.used_ns = 3);
        assert!(older(&all, newest, 4).strand(newest));
    }

    /// If a program allocates but gives the device no work, no block counts as unused.
    #[test]
    fn what_no_work_came_after_is_not_left_behind() {
        let sizes: Vec<u64> = (100..120).map(|n| n * MIB).collect();
        let mut all = blocks(&sizes);
        all.iter_mut().for_each(|block| block.work = 7);
        let found = older(&all, 120 * MIB, 7);
        assert_eq!((found.blocks, found.strand(120 * MIB), found.may_strand()), (0, false, true));
        // Work has come since.
        assert!(older(&all, 120 * MIB, 8).strand(120 * MIB));
    }
}
