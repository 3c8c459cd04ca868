//! Words of device memory that refer to allocations. Live blocks of the pool are read. A kernel reads them while their
//! context is idle. Otherwise they are copied out, piece by piece, beside whatever the device does.

use super::targets::Targets;
use super::{END, Limit};
use crate::pool;
use crate::pool::context_pool::Scan;
use crate::pool::reading::{LiveBlock, Piece};
use crate::process::cancel;
use crate::progress::activity::WHY_BROKEN;
use crate::vendor::reader::ROOM;
use crate::vendor::scan::Wanted;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::references::{Place, Seen};
use rustc_hash::FxHashSet;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How much the kernel reads at a time (about a millisecond), and how little is not worth a launch.
const SCANNED: u64 = 4 << 30;
/// There is room for all words of a piece of this size.
const LEAST_SCANNED: u64 = 64 << 10;
/// For so many pairs it is kept which one refers to which.
const MOST_EDGES: usize = 1 << 20;
/// How long to wait while something captures: nothing is read then.
const NAP: Duration = Duration::from_millis(1);
/// How long a copy may take. It waits for nothing, so one that takes longer never completes.
const LONGEST: Duration = Duration::from_secs(1);

/// The result of the search of device memory.
#[derive(Default)]
pub(super) struct DeviceSearch {
    /// How many allocations were read. Below: their bytes.
    pub allocs: u64,
    /// How many were freed meanwhile.
    pub gone: u64,
    pub bytes: u64,
    /// How many of these bytes a kernel has read.
    pub by_kernel: u64,
    /// Pairs of indexes of targets: the first refers to the second.
    pub edges: FxHashSet<(u32, u32)>,
    /// There were more pairs.
    pub more_edges: bool,
    pub incomplete: Option<&'static str>,
    /// Why no device memory is ever read here.
    pub never: Option<&'static str>,
}

/// Counts the words of device memory that refer to a target.
pub(super) fn count(targets: &Targets, seen: &mut [Seen], limit: &mut Limit) -> DeviceSearch {
    let mut found = DeviceSearch::default();
    let Some(pool) = pool::of(Vendor::Cuda) else {
        found.never = Some("gpumem has no pool here");
        return found;
    };
    let wanted = Wanted::new(targets.all().iter().map(|target| target.start..target.end));
    let mut read = Read { pool, wanted, targets, seen, limit, scanned: SCANNED };
    for block in pool.live_blocks() {
        let Some(from) = targets.find(block.addr) else { continue };
        match read.block(&mut found, &block, from) {
            Ok(Some(())) => found.allocs += 1,
            Ok(None) => found.gone += 1,
            Err(why) => {
                found.incomplete = Some(why);
                break;
            }
        }
    }
    found
}

/// What a block is read with.
struct Read<'a> {
    pool: &'a pool::Pool,
    wanted: Wanted,
    targets: &'a Targets,
    seen: &'a mut [Seen],
    limit: &'a mut Limit,
    /// How much the kernel reads next: less if it found more words than there is room for.
    scanned: u64,
}

impl Read<'_> {
    /// Reads a block; `None`: it is not there any more.
    ///
    /// # Errors
    /// Why nothing more is read.
    fn block(&mut self, found: &mut DeviceSearch, block: &LiveBlock, from: usize) -> Result<Option<()>, &'static str> {
        // Words are aligned, as allocations are.
        let (mut at, mut no_time) = (0, "there was no time to read all of it");
        while at < block.bytes {
            if self.limit.check() {
                return Err(no_time);
            }
            let (read, bytes) = self.piece(found, block, at, from);
            match read {
                Piece::Read => {
                    at += bytes;
                    found.bytes += bytes;
                }
                Piece::Gone => return Ok(None),
                Piece::Captured => {
                    no_time = "a stream was being captured all the time";
                    cancel::sleep(NAP);
                }
                Piece::Broken => return Err(WHY_BROKEN),
                Piece::Refused if self.limit.check() => return Err(no_time),
                Piece::Refused => return Err("the driver does not copy it"),
            }
        }
        Ok(Some(()))
    }

    /// Reads a piece, by the kernel if possible, otherwise by a copy. The answer has the bytes of the piece.
    fn piece(&mut self, found: &mut DeviceSearch, block: &LiveBlock, at: u64, from: usize) -> (Piece, u64) {
        // No longer than the search itself may take.
        let longest = LONGEST.min(self.limit.until.saturating_duration_since(Instant::now()));
        let bytes = (block.bytes - at).min(self.scanned) / 8 * 8;
        let mut take = |words: &[u64]| found.words(from, words.iter().copied(), self.targets, self.seen);
        if bytes >= LEAST_SCANNED {
            let until = self.limit.until;
            let is_over = || END.load(Relaxed) || Instant::now() >= until;
            let how = Scan { wanted: &self.wanted, longest, is_over: &is_over };
            let read = self.pool.scan_piece(block, at, bytes / 8, &how, &mut take);
            if read == Piece::Read {
                found.by_kernel += bytes;
                self.scanned = (self.scanned * 2).min(SCANNED);
            }
            if read != Piece::Refused {
                return (read, bytes);
            }
            self.scanned = (self.scanned / 8).max(LEAST_SCANNED);
        }
        let bytes = (block.bytes - at).min(ROOM as u64);
        let read = |copied: &[u8]| {
            let (words, _) = copied.as_chunks::<8>();
            found.words(from, words.iter().map(|word| u64::from_ne_bytes(*word)), self.targets, self.seen);
        };
        (self.pool.read_piece(block, at, bytes as usize, longest, read), bytes)
    }
}

impl DeviceSearch {
    /// Words of a target's memory.
    fn words(&mut self, from: usize, words: impl Iterator<Item = u64>, targets: &Targets, seen: &mut [Seen]) {
        for to in words.filter_map(|word| targets.find(word)) {
            if to == from {
                seen[to].add(Place::Itself, 1);
                continue;
            }
            seen[to].add(Place::Device, 1);
            if self.edges.len() < MOST_EDGES {
                self.edges.insert((from as u32, to as u32));
            } else {
                self.more_edges = true;
            }
        }
    }
}
