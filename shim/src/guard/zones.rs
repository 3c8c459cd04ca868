//! Zones: the bytes of a block outside the program's part.

use super::jobs::Job;
use super::report::Where;
use crate::pool::block::Block;
use crate::pool::size;
use std::ops::Range;

/// Least bytes of a zone after an allocation.
pub(super) const BEHIND: u64 = 512;

/// Returns the bytes of a block after and before the program's part.
pub(super) fn zones(block: &Block) -> [(Where, Range<u64>); 2] {
    let (addr, asked) = (block.addr(), block.asked());
    let base = block.base();
    [(Where::Behind, addr + asked..base + block.bytes()), (Where::InFront, base..addr)]
}

/// Returns the jobs for both zones of a block.
pub(super) fn jobs(block: &Block, job: fn(u64, u64) -> Job) -> impl Iterator<Item = (Where, u64, Job)> {
    let ranges = zones(block).into_iter().filter(|(_, range)| !range.is_empty());
    ranges.map(move |(place, range)| (place, range.start, job(range.start, range.end - range.start)))
}

/// Returns by how many bytes the guard makes a block larger.
pub(super) fn more(block: &Block) -> u64 {
    let asked = block.asked();
    block.bytes().saturating_sub(size::rounded(asked).unwrap_or(asked))
}
