//! Live blocks are read while the program goes on. Copies read them a piece at a time, beside any work of the program.
//! What the program writes meanwhile is read either as it was or as it is.
//!
//! A block that is being read may be freed and used again; that harms nobody. But the block must not go back to the
//! driver before the piece is read. Whoever gives a block back first changes its state, or takes it out of the map, and
//! then asks here. Whoever reads a block first says so here, and then looks at its state. So one of the two sees the
//! other.

use super::block::{Block, SPILLED, State};
use super::context_pool::{ContextPool, Scan};
use super::{Pool, lock};
use crate::process::cancel;
use crate::progress::activity;
use crate::progress::queries::capturing;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*, fence};
use std::time::{Duration, Instant};

/// The address of the block that is being read. There is one search at a time.
static READ: Mutex<u64> = Mutex::new(0);
/// Somebody waits until that block is read.
static WAITED_FOR: AtomicBool = AtomicBool::new(false);
/// Whether any block was ever read.
static EVER: AtomicBool = AtomicBool::new(false);
/// The time between two looks, and the most looks. A piece takes less than a millisecond.
const NAP: Duration = Duration::from_micros(20);
const MOST_NAPS: u32 = 100_000;
/// How long a copy is waited for that did not complete in time.
const AT_MOST: Duration = Duration::from_secs(5);

/// Waits until nobody reads a block that is about to be the driver's.
pub(super) fn wait(addr: u64) {
    // A reader that this load does not see will see that the block is gone.
    fence(SeqCst);
    if !EVER.load(SeqCst) {
        return;
    }
    for _ in 0..MOST_NAPS {
        if *lock(&READ) != addr {
            break;
        }
        WAITED_FOR.store(true, Relaxed);
        cancel::sleep(NAP);
    }
}

/// While this lives, the block does not go back to the driver.
struct BeingRead;

impl BeingRead {
    fn begin(addr: u64) -> Self {
        EVER.store(true, SeqCst);
        WAITED_FOR.store(false, Relaxed);
        *lock(&READ) = addr;
        // As in `wait`.
        fence(SeqCst);
        Self
    }
}

impl Drop for BeingRead {
    fn drop(&mut self) {
        *lock(&READ) = 0;
    }
}

/// A live block: where the program's part of it begins, and the bytes that it asked for.
#[derive(Clone, Copy)]
pub(crate) struct LiveBlock {
    block: &'static Block,
    context_pool: &'static ContextPool,
    pub addr: u64,
    pub bytes: u64,
}

/// How the reading of a piece ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Read,
    /// The block, or its context, is gone.
    Gone,
    /// Something captures: nothing is read now.
    Captured,
    /// A context is broken, and every call answers its error.
    Broken,
    /// The driver did not copy the piece, or not in time.
    Refused,
}

impl Pool {
    /// Where the driver's block begins that has its program's part at `addr`, and the bytes that the driver gave.
    pub(crate) fn driver_range(&self, addr: u64) -> Option<(u64, u64)> {
        self.map.get(addr).map(|block| (block.base(), block.bytes.load(Relaxed)))
    }

    /// Live blocks of device memory.
    pub(crate) fn live_blocks(&self) -> Vec<LiveBlock> {
        let of = |block: &'static Block| {
            let context_pool = ContextPool::of(block)?;
            let is_live = block.is(State::Live) && !block.has(SPILLED);
            let (addr, bytes) = (block.addr.load(Relaxed), block.asked.load(Relaxed));
            is_live.then_some(LiveBlock { block, context_pool, addr, bytes })
        };
        self.map.all().into_iter().filter_map(of).collect()
    }

    /// Reads a piece of a live block, of at most [`crate::vendor::reader::ROOM`] bytes, within a time.
    pub(crate) fn read_piece(
        &self,
        live: &LiveBlock,
        at: u64,
        bytes: usize,
        longest: Duration,
        read: impl FnOnce(&[u8]),
    ) -> Piece {
        self.while_it_stays(live, || live.context_pool.copy_out(live.addr + at, bytes, longest, read))
    }

    /// A kernel looks through whole words of a piece of a live block, and `read` is given the words that may be
    /// addresses. The kernel is told to end early if the block is to go back. [`Piece::Refused`]: not possible here or
    /// not now; the piece may be copied instead.
    pub(crate) fn scan_piece(
        &self,
        live: &LiveBlock,
        at: u64,
        words: u64,
        how: &Scan<'_>,
        read: impl FnOnce(&[u64]),
    ) -> Piece {
        let is_over = || WAITED_FOR.load(Relaxed) || (how.is_over)();
        let how = Scan { is_over: &is_over, ..*how };
        self.while_it_stays(live, || live.context_pool.scan(live.addr + at, words, &how, read))
    }

    /// Runs what reads a block. The block stays meanwhile.
    fn while_it_stays(&self, live: &LiveBlock, read: impl FnOnce() -> Option<()>) -> Piece {
        if activity::broken() {
            return Piece::Broken;
        }
        if self.is_ending() {
            return Piece::Gone;
        }
        if capturing() {
            return Piece::Captured;
        }
        let Some(_hold) = live.context_pool.hold() else { return Piece::Gone };
        let _read = BeingRead::begin(live.addr);
        let is_there = live.block.is(State::Live)
            && live.block.addr.load(Relaxed) == live.addr
            && self.map.get(live.addr).is_some_and(|block| std::ptr::eq(block, live.block));
        if !is_there {
            return Piece::Gone;
        }
        let was_read = read();
        if was_read.is_none() {
            // A copy that did not complete in time may still read the block.
            let end = Instant::now() + AT_MOST;
            while !live.context_pool.settle_readers() && Instant::now() < end {
                cancel::sleep(Duration::from_millis(1));
            }
        }
        match was_read {
            Some(()) => Piece::Read,
            None if activity::broken() => Piece::Broken,
            None => Piece::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_a_block_back_waits_for_its_reader_and_nobody_else_does() {
        let read = BeingRead::begin(0x7f00_0000);
        wait(0x7f10_0000);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                wait(0x7f00_0000);
                assert!(is_over.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(20));
            is_over.store(true, SeqCst);
            drop(read);
            waits.join().expect("it waited");
        });
        wait(0x7f00_0000);
    }
}
