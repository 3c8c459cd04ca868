//! Zones: the bytes of a block outside the program's part. They are filled and watched.

use super::report::Where;
use super::{BEHIND, Guard};
use crate::gate;
use crate::pool::block::{Block, FRONT, FRONTED, INTACT, WATCHED, ZONED};
use crate::pool::claims::Claim;
use crate::pool::context_pool::{ContextPool, Job};
use crate::pool::size;
use crate::shim::Shim;
use gpumem_wire::counters;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Longest wait of an allocation for its zones to be filled. While the program's work runs, copies fill them, since no
/// kernel holds up a copy.
const FILLED_WITHIN: Duration = Duration::from_secs(1);

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
fn more(block: &Block) -> u64 {
    let asked = block.asked();
    block.bytes().saturating_sub(size::rounded(asked).unwrap_or(asked))
}

impl Guard {
    /// Returns the bytes of the block for a request, with room for zones if they fit in `GPUMEM_GUARD_MAX`. `None` if
    /// that is more than any device has.
    pub(crate) fn rounded(&self, bytes: u64) -> Option<u64> {
        let in_front = bytes.checked_add(self.front_bytes())?;
        let (least, with_zone) = (size::rounded(in_front)?, size::rounded(in_front.checked_add(BEHIND)?)?);
        let fits = self.zones.load(Relaxed).saturating_add(with_zone - least) <= self.most;
        Some(if fits { with_zone } else { least })
    }

    fn front_bytes(&self) -> u64 {
        if self.front { FRONT } else { 0 }
    }

    /// Returns the start of the program's part of a block, and its flags. The driver gave the block at `addr`.
    pub(crate) fn start(&self, addr: u64, bytes: u64, asked: u64) -> (u64, u32) {
        match self.front && bytes >= asked.saturating_add(FRONT) {
            true => (addr + FRONT, FRONTED),
            false => (addr, 0),
        }
    }

    /// Watches a block that is about to be the program's.
    pub(crate) fn watch(&self, owner: &'static ContextPool, block: &Block) {
        let more = more(block);
        self.zones.fetch_add(more, Relaxed);
        block.mark(ZONED);
        let jobs: Vec<Job> = jobs(block, Job::Fill).map(|(.., job)| job).collect();
        let claim = || Claim::of(vec![block.addr()]);
        let is_filled = || block.has(INTACT) || owner.work_through(&jobs, &claim(), FILLED_WITHIN).is_some();
        let watched = !jobs.is_empty() && is_filled();
        if watched {
            block.mark(WATCHED);
        }
        gate::note(|shim| {
            shim.count(counters::GUARD_BYTES_ADDED, more);
            shim.count(counters::GUARD_WITHOUT, u64::from(!watched));
        });
    }

    /// Returns the present bytes of the zones of all other blocks.
    pub(super) fn zones_without(&self, block: &Block) -> u64 {
        self.zones().saturating_sub(if block.has(ZONED) { more(block) } else { 0 })
    }

    /// Stops watching a block. May be called while the program's call is being recorded.
    pub(crate) fn unwatch(&self, shim: Option<&Shim>, block: &Block) {
        if block.unmark(ZONED | WATCHED | INTACT) & ZONED == 0 {
            return;
        }
        let more = more(block);
        self.zones.fetch_sub(more, Relaxed);
        if let Some(shim) = shim {
            shim.count(counters::GUARD_BYTES_REMOVED, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_wire::settings::Settings;

    fn guard(kind: &str, most: &str) -> Guard {
        let set = [("GPUMEM_GUARD".into(), kind.into()), ("GPUMEM_GUARD_MAX".into(), most.into())];
        Guard::new(&Settings::read(set.into_iter()).0).unwrap()
    }

    #[test]
    fn a_block_has_room_behind_what_was_asked_for() {
        for (kind, front) in [("1", 0), ("front", FRONT), ("sync", 0)] {
            let guard = guard(kind, "1GiB");
            for asked in (1..5000).chain((5000..40 << 20).step_by(40_093)).chain([1 << 20, 2 << 20, 4 << 20]) {
                let bytes = guard.rounded(asked).unwrap();
                assert!(bytes >= front + asked + BEHIND && size::rounded(bytes) == Some(bytes), "{kind} {asked}");
            }
            assert_eq!(guard.rounded(u64::MAX), None);
        }
        assert_eq!(guard("1", "1GiB").rounded(2 << 20), Some(4 << 20), "a whole unit costs a unit");
    }

    #[test]
    fn zones_stay_within_their_bound() {
        let guard = guard("1", "1MiB");
        assert_eq!(guard.rounded(2 << 20), Some(2 << 20), "its zone would take 2 MiB");
        assert_eq!(guard.rounded(1 << 20), Some((1 << 20) + (128 << 10)));
        guard.zones.store(1 << 20, Relaxed);
        assert_eq!(guard.rounded(1 << 20), Some(1 << 20));
    }

    #[test]
    fn the_zones_are_what_the_program_does_not_have() {
        let guard = guard("front", "1GiB");
        let block = Block::default();
        let (addr, flags) = guard.start(0x10_0000, 2048, 1000);
        block.set_addr(addr);
        block.mark(flags);
        block.set_bytes(2048);
        block.set_asked(1000);
        assert_eq!((addr, block.base()), (0x10_0200, 0x10_0000));
        let [behind, front] = zones(&block);
        assert_eq!(behind, (Where::Behind, 0x10_05e8..0x10_0800));
        assert_eq!(front, (Where::InFront, 0x10_0000..0x10_0200));
        assert_eq!(guard.start(0x10_0000, 1024, 1000), (0x10_0000, 0), "no room in front");
    }
}
