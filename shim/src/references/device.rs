//! Words of device memory that refer to allocations: live blocks of the pool, copied out piece by piece beside whatever the
//! device does.

use super::Limit;
use super::targets::Targets;
use crate::pool;
use crate::pool::reading::{LiveBlock, Piece};
use crate::process::cancel;
use crate::vendor::reader::ROOM;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::references::{Place, Seen};
use rustc_hash::FxHashSet;
use std::time::Duration;

/// Who refers to whom is kept for so many pairs.
const MOST_EDGES: usize = 1 << 20;
/// While something captures nothing is read.
const NAP: Duration = Duration::from_millis(1);
/// A copy on a stream of its own waits for nothing; one that takes longer never ends.
const LONGEST: Duration = Duration::from_secs(1);

/// What the search of the device came to.
#[derive(Default)]
pub struct Found {
    /// Allocations that were read, and bytes of them.
    pub allocs: u64,
    pub bytes: u64,
    /// Indexes of targets: the first refers to the second.
    pub edges: FxHashSet<(u32, u32)>,
    /// There were more.
    pub more_edges: bool,
    pub incomplete: Option<&'static str>,
}

/// Counts the words of device memory that refer to a target.
pub fn count(targets: &Targets, seen: &mut [Seen], limit: &mut Limit) -> Found {
    let mut found = Found::default();
    let Some(pool) = pool::of(Vendor::Cuda) else {
        found.incomplete = Some("gpumem has no pool here");
        return found;
    };
    for block in pool.live_blocks() {
        let Some(from) = targets.find(block.addr) else { continue };
        match one(pool, &block, &mut |bytes| found.piece(from, bytes, targets, seen), limit) {
            Ok(Some(())) => found.allocs += 1,
            Ok(None) => {}
            Err(why) => {
                found.incomplete = Some(why);
                break;
            }
        }
    }
    found
}

/// Reads a block; `None`: it is not there any more.
///
/// # Errors
/// Why nothing more is read.
fn one(
    pool: &pool::Pool,
    block: &LiveBlock,
    read: &mut impl FnMut(&[u8]),
    limit: &mut Limit,
) -> Result<Option<()>, &'static str> {
    // Words are aligned, as allocations are.
    let (mut at, mut no_time) = (0, "there was no time to read all of it");
    while at < block.bytes {
        if limit.is_over() {
            return Err(no_time);
        }
        let piece = (block.bytes - at).min(ROOM as u64);
        match pool.read_piece(block, at, piece as usize, LONGEST, &mut *read) {
            Piece::Read => at += piece,
            Piece::Gone => return Ok(None),
            Piece::Captured => {
                no_time = "a stream was being captured all the time";
                cancel::sleep(NAP);
            }
            Piece::Broken => return Err("a context is broken: every call of it answers an error"),
            Piece::Refused => return Err("the driver does not copy it"),
        }
    }
    Ok(Some(()))
}

impl Found {
    fn piece(&mut self, from: usize, bytes: &[u8], targets: &Targets, seen: &mut [Seen]) {
        self.bytes += bytes.len() as u64;
        let (words, _) = bytes.as_chunks::<8>();
        for to in words.iter().filter_map(|word| targets.find(u64::from_ne_bytes(*word))) {
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
