//! Memory is read: zones of live blocks, and freed blocks. Findings are reported.

use super::Guard;
use super::jobs::{Job, work_through};
use super::report::{self, Where, Writes};
use super::zones;
use crate::backend::reader::Mismatch;
use crate::gate;
use crate::pool::block::{Block, INTACT, WATCHED};
use crate::pool::claims::Claim;
use crate::pool::context_pool::ContextPool;
use crate::process::lock::lock;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::layout::AllocSlot;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Longest wait of a free for the guard's kernel. The free has already waited for the device, so the kernel runs at
/// once, unless another thread uses the device by then.
pub(super) const DONE_WITHIN: Duration = Duration::from_secs(1);

/// Returns the record of a live block.
pub(super) fn record(shim: &Shim, block: &Block) -> AllocSlot {
    shim.ledger.allocs.read(block.slot()).filter(|slot| slot.addr == block.addr()).unwrap_or_default()
}

/// A range that is read.
pub(super) enum Target {
    /// A zone of a live block, and the address at which it begins.
    Zone(&'static Block, Where, u64),
    Freed(&'static Block),
}

pub(super) type Read = (Target, Job);

/// Returns the reads of these blocks' zones.
pub(super) fn zones_of(blocks: &[&'static Block]) -> Vec<Read> {
    let of = |block: &&'static Block| {
        let block = *block;
        zones::jobs(block, Job::Read).map(move |(place, from, job)| (Target::Zone(block, place, from), job))
    };
    blocks.iter().filter(|block| block.is_watched()).flat_map(of).collect()
}

/// Returns the reads of freed blocks, without those of which a write was reported.
pub(super) fn freed_of(guard: &Guard, blocks: &[&'static Block]) -> Vec<Read> {
    let all = lock(&guard.freed);
    let is_filled = |block: &&&'static Block| all.get(&block.addr()).is_some_and(|freed| !freed.told);
    let read = |block: &&'static Block| (Target::Freed(block), Job::Read(block.base(), block.bytes()));
    blocks.iter().filter(is_filled).map(read).collect()
}

pub(super) fn claim_of<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Claim {
    Claim::of(blocks.into_iter().map(Block::addr).collect())
}

impl Guard {
    /// Reads, and then fills, in memory of claimed blocks of a context. Reports findings. Returns their number; `None`
    /// if it is unknown.
    pub(super) fn read(
        &self,
        owner: &ContextPool,
        reads: &[Read],
        fill: Option<Job>,
        claim: &Claim,
        longest: Duration,
    ) -> Option<u64> {
        let jobs: Vec<Job> = reads.iter().map(|read| read.1).chain(fill).collect();
        if jobs.is_empty() {
            return Some(0);
        }
        let found = work_through(owner, &jobs, claim, longest);
        for (at, (target, _)) in reads.iter().enumerate() {
            let is_intact = || found.as_ref().is_some_and(|found| found[at].count == 0);
            match target {
                Target::Freed(block) if is_intact() => block.mark(INTACT),
                Target::Freed(block) => _ = block.unmark(INTACT),
                Target::Zone(..) => {}
            }
        }
        let mut hit = 0;
        gate::note(|shim| {
            let count = if found.is_some() { counters::GUARD_CHECKS } else { counters::GUARD_UNCHECKED };
            shim.count(count, reads.len() as u64);
            for ((target, _), found) in reads.iter().zip(found.iter().flatten()).filter(|(_, found)| found.count > 0) {
                hit += 1;
                self.tell(shim, target, *found);
            }
        });
        found.map(|_| hit)
    }

    /// Reports a finding.
    fn tell(&self, shim: &'static Shim, target: &Target, mut found: Mismatch) {
        match *target {
            Target::Zone(block, place, from) => {
                // Each block is reported once.
                block.unmark(WATCHED);
                let record = record(shim, block);
                let (addr, asked) = (block.addr(), block.asked());
                let zoned_ns = if block.has(INTACT) { block.idle_ns() } else { record.time_ns };
                let good_ns = self.all_good_ns.load(Relaxed).max(zoned_ns);
                report::tell(shim, self, &Writes { place, found, from, addr, asked, record, good_ns, freed: None });
            }
            Target::Freed(block) => {
                let (addr, front) = (block.addr(), block.addr() - block.base());
                let mut all = lock(&self.freed);
                let Some(freed) = all.get_mut(&addr) else { return };
                freed.told = true;
                let freed = &*freed;
                (found.first, found.end) = (found.first.saturating_sub(front), found.end.saturating_sub(front));
                let (record, asked, good_ns) = (freed.record, freed.asked, freed.time_ns);
                let place = Where::Freed;
                let writes = Writes { place, found, from: addr, addr, asked, record, good_ns, freed: Some(freed) };
                report::tell(shim, self, &writes);
            }
        }
    }

    /// Reads the zones of claimed blocks, and reports findings. The blocks' context is held. Returns the number of
    /// findings; `None` if it is unknown.
    pub(super) fn read_zones(
        &self,
        owner: &'static ContextPool,
        (blocks, claim): (&[&'static Block], &Claim),
        longest: Duration,
    ) -> Option<u64> {
        self.read(owner, &zones_of(blocks), None, claim, longest)
    }

    /// Reads freed blocks that are not in use, and reports findings. Returns the number of findings; `None` if it is
    /// unknown.
    pub(super) fn read_freed(
        &self,
        owner: &'static ContextPool,
        blocks: &[&'static Block],
        longest: Duration,
    ) -> Option<u64> {
        self.read(owner, &freed_of(self, blocks), None, &claim_of(blocks.iter().copied()), longest)
    }

    /// Remembers that all blocks were read without a finding at this time, ns.
    pub(super) fn remember_good(&self, then: u64) {
        self.all_good_ns.fetch_max(then, Relaxed);
    }
}
