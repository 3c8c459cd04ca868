//! One call site: the blocks it holds and strands, and its report for the user.

use crate::stranded::state::series::{SeriesBlock, older};
use gpumem_wire::layout::StackRef;
use std::ops::Range;

/// Sites that strand less are not reported, bytes.
const LEAST_REPORTED: u64 = 16 << 20;
/// A pool's site makes at least this many requests in the middle of a computation for each request at another time.
const SCRATCH: u64 = 4;

/// State of a call site.
#[derive(Debug, Default)]
pub(in crate::stranded) struct SiteState {
    pub stack: StackRef,
    pub pc: u64,
    /// Live blocks, in the order in which they were made.
    pub(super) blocks: Vec<SeriesBlock>,
    /// True if the site strands memory, or did once.
    pub strands: bool,
    /// Bytes and blocks that it strands now.
    pub stranded: (u64, u64),
    /// True if the site strands memory, or may with its next block. Then uses of its blocks matter.
    pub(super) watched: bool,
    /// The stranded bytes at its last report.
    pub(super) said: u64,
    /// Number of blocks made in the middle of a computation, and at other times.
    pub(super) inside: u64,
    pub(super) outside: u64,
    /// True if, after a failed request of this site, the program freed memory and asked again.
    pub retries: bool,
    /// True after a refusal in vain: the site is never refused again.
    pub barred: bool,
    /// True if the user wants the site's next request refused.
    pub marked: bool,
}

impl SiteState {
    /// True if the site's blocks are scratch, and not the program's working memory.
    pub(crate) fn is_scratch(&self) -> bool {
        self.inside > 0 && self.inside >= SCRATCH * self.outside
    }

    /// Recomputes what the site strands, and if its blocks are watched. `work`: see [`StrandedSites::work_given`].
    pub(super) fn look_again(&mut self, work: u64) -> SiteChange {
        let (before, was_watched) = (self.stranded.0, self.watched);
        self.watched = self.strands || self.marked;
        self.stranded = match self.blocks.split_last() {
            None => (0, 0),
            Some((newest, before)) => {
                let older = older(before, newest.bytes, work);
                self.strands |= older.strand(newest.bytes);
                self.watched |= self.strands || older.may_strand();
                if self.strands { (older.bytes, older.blocks as u64) } else { (0, 0) }
            }
        };
        if self.blocks.is_empty() {
            self.said = 0;
        }
        SiteChange { stranded: before..self.stranded.0, watched: self.watched != was_watched }
    }

    /// Returns the report for the user, if one is due: once the site strands enough, and again when it strands twice as
    /// much.
    pub(super) fn report(&mut self) -> Option<Report> {
        let (bytes, blocks) = self.stranded;
        if bytes < LEAST_REPORTED || bytes < self.said.saturating_mul(2) {
            return None;
        }
        self.said = bytes;
        Some(Report { stack: self.stack, bytes, blocks })
    }
}

/// Change that a look at a site found.
pub(super) struct SiteChange {
    /// The bytes that it strands, before and after.
    pub(super) stranded: Range<u64>,
    /// True if its blocks became watched, or ceased to be.
    pub(super) watched: bool,
}

/// A site's report for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stranded) struct Report {
    pub stack: StackRef,
    pub bytes: u64,
    pub blocks: u64,
}
