//! Live blocks are read in two ways. Copies read one piece of one block at a time, beside any work of the program. A
//! kernel reads many blocks at a time, while the context is idle. If the program writes a word meanwhile, the old or
//! the new value is read.
//!
//! A block may be freed and reused while it is read, which is harmless. It goes back to the driver only after the read
//! has ended ([`crate::pool::claims`]).

use crate::backend::scan::{ALIGNED, Found, PIECE, RANGES, Range};
use crate::pool::Pool;
use crate::pool::block::{Block, SPILLED, State};
use crate::pool::claims::Claim;
use crate::pool::context_pool::{ContextPool, PoolHold, Scan, Scanning};
use crate::progress::activity;
use crate::progress::queries::capturing;
use std::time::{Duration, Instant};

/// Longest wait for a copy that did not complete in time.
const AT_MOST: Duration = Duration::from_secs(5);

/// A live block: the start of the program's part, and the bytes that it asked for.
#[derive(Clone, Copy)]
pub(super) struct LiveMemory {
    block: &'static Block,
    context_pool: &'static ContextPool,
    pub addr: u64,
    pub bytes: u64,
}

impl LiveMemory {
    /// Returns true if the block is still the same and has at least `bytes`. Asked after the block is claimed.
    fn is_there(&self, pool: &Pool, bytes: u64) -> bool {
        let is_same = |block: &Block| std::ptr::eq(block, self.block);
        self.block.is(State::Live)
            && self.block.addr() == self.addr
            && self.addr + bytes <= self.block.base() + self.block.bytes()
            && pool.releaser.blocks().get(self.addr).is_some_and(is_same)
    }

    /// Returns true if both blocks belong to one context and can be read together.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        std::ptr::eq(self.context_pool, other.context_pool)
    }

    /// Returns a sort key that groups the blocks of one context.
    pub(super) fn order(&self) -> (usize, u64) {
        (std::ptr::from_ref(self.context_pool) as usize, self.addr)
    }

    /// Returns the bytes to scan together now. `is_another`: another scan is running. `None`: begin none beside it.
    pub(super) fn scanned_at_once(&self, is_another: bool) -> Option<u64> {
        self.context_pool.scanned_at_once(is_another)
    }
}

/// A part of a live block to be scanned: whole words.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub live: LiveMemory,
    pub at: u64,
    pub words: u64,
    /// The block is gone.
    pub is_gone: bool,
}

impl Part {
    /// Returns the number of pieces of a launch that this many words take.
    pub(super) fn pieces(words: u64) -> usize {
        words.div_ceil(PIECE) as usize
    }

    fn ranges(&self) -> impl Iterator<Item = Range> {
        let (start, words) = (self.live.addr + self.at, self.words);
        (0..words).step_by(PIECE as usize).map(move |from| [start + from * 8, (words - from).min(PIECE)])
    }
}

/// Parts that are being scanned. The scan ends with [`Flight::end`].
pub(super) struct Flight {
    context_pool: &'static ContextPool,
    hold: PoolHold<'static>,
    claim: Claim,
    scanning: Scanning,
}

impl Flight {
    /// Waits for the scan to end, and passes to `take` the words that may be addresses, each with its position. The
    /// scan ends early if a thread gives one of its blocks back, or ends the context. `ended`: on entry the end of the
    /// previous flight, on return the end of this one.
    pub(super) fn end(
        self,
        is_over: &dyn Fn() -> bool,
        ended: &mut Option<Instant>,
        take: impl FnOnce(&[Found]),
    ) -> PieceRead {
        let Self { context_pool, hold, claim, scanning } = self;
        let is_over = || claim.is_waited_for() || hold.is_wanted() || is_over();
        PieceRead::of(context_pool, context_pool.end_scan(scanning, &claim, ended, &is_over, take))
    }
}

/// Result of reading a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceRead {
    Read,
    /// The block or its context is gone.
    Gone,
    /// A capture is going on: nothing is read now.
    Captured,
    /// A context is broken, and every call returns its error.
    Broken,
    /// The driver did not copy the piece, or did not in time.
    Refused,
}

impl PieceRead {
    fn of(context_pool: &ContextPool, was_read: Option<()>) -> Self {
        if was_read.is_none() {
            // A read that did not complete in time may still be running.
            context_pool.settle_readers_within(AT_MOST);
        }
        match was_read {
            Some(()) => Self::Read,
            None if activity::broken() => Self::Broken,
            None => Self::Refused,
        }
    }
}

/// Returns the live block of device memory whose program's part begins at this address.
pub(super) fn live_block(pool: &Pool, addr: u64) -> Option<LiveMemory> {
    let block = pool.releaser.blocks().get(addr)?;
    let context_pool = ContextPool::of(block)?;
    let is_live = block.is(State::Live) && !block.has(SPILLED) && block.addr() == addr;
    is_live.then_some(LiveMemory { block, context_pool, addr, bytes: block.asked() })
}

/// Reads a piece of a live block, of at most [`crate::backend::reader::ROOM`] bytes, within a time limit.
pub(super) fn read_piece(
    pool: &Pool,
    live: &LiveMemory,
    at: u64,
    bytes: usize,
    longest: Duration,
    read: impl FnOnce(&[u8]),
) -> PieceRead {
    if let Err(why) = may_read(pool) {
        return why;
    }
    let context_pool = live.context_pool;
    let Some(_hold) = context_pool.hold() else { return PieceRead::Gone };
    let claim = Claim::of(vec![live.addr]);
    if !live.is_there(pool, at + bytes as u64) {
        return PieceRead::Gone;
    }
    PieceRead::of(context_pool, context_pool.copy_out((live.addr + at, bytes), &claim, longest, read))
}

/// Begins a scan by a kernel of parts of live blocks of one context. The kernel is told to end early if a block is to
/// go back. Marks the parts whose blocks are gone. Returns `None` if no block is left.
///
/// # Errors
/// [`PieceRead::Refused`]: a kernel cannot read them here or now; copies may read them.
pub(super) fn begin_scan(pool: &Pool, parts: &mut [Part], how: &Scan<'_>) -> Result<Option<Flight>, PieceRead> {
    let Some(first) = parts.first().map(|part| part.live) else { return Ok(None) };
    let context_pool = first.context_pool;
    let pieces: usize = parts.iter().map(|part| Part::pieces(part.words)).sum();
    let is_aligned = |part: &Part| (part.live.addr + part.at).is_multiple_of(ALIGNED);
    if pieces > RANGES || !parts.iter().all(|part| is_aligned(part) && first.is_beside(&part.live)) {
        return Err(PieceRead::Refused);
    }
    may_read(pool)?;
    let hold = context_pool.hold().ok_or(PieceRead::Gone)?;
    let claim = Claim::of(parts.iter().map(|part| part.live.addr).collect());
    for part in &mut *parts {
        part.is_gone = !part.live.is_there(pool, part.at + part.words * 8);
    }
    if parts.iter().any(|part| part.is_gone) {
        claim.retain(|&block| parts.iter().any(|part| !part.is_gone && part.live.addr == block));
    }
    let ranges: Vec<Range> = parts.iter().filter(|part| !part.is_gone).flat_map(Part::ranges).collect();
    if ranges.is_empty() {
        return Ok(None);
    }
    match context_pool.begin_scan(&ranges, &claim, how) {
        Some(scanning) => Ok(Some(Flight { context_pool, hold, claim, scanning })),
        None => Err(PieceRead::of(context_pool, None)),
    }
}

/// Checks that memory may be read now.
fn may_read(pool: &Pool) -> Result<(), PieceRead> {
    if activity::broken() {
        return Err(PieceRead::Broken);
    }
    if pool.releaser.switch().is_ending() {
        return Err(PieceRead::Gone);
    }
    if capturing() { Err(PieceRead::Captured) } else { Ok(()) }
}
