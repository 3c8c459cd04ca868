//! Frees under the guard, checks of freed blocks, and records of launches.

use super::report::{self, Where, Writes};
use super::{Freed, Guard, is_on, zones};
use crate::backend::reader::Mismatch;
use crate::call::Call;
use crate::graphs::memory_use;
use crate::pool::block::{Block, INTACT, WATCHED};
use crate::pool::claims::{self, Claim};
use crate::pool::context_pool::{ContextPool, Job};
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::{backend, gate};
use gpumem_abi::types::{Opaque, Stream};
use gpumem_wire::counters;
use gpumem_wire::layout::{AllocSlot, StackRef};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// Longest wait of a free for the guard's kernel. The free has already waited for the device, so the kernel runs at
/// once, unless another thread uses the device by then.
pub(in crate::pool) const DONE_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait of a free for late readers. They copy beside any work.
pub(in crate::pool) const LATE_WITHIN: Duration = Duration::from_secs(10);

/// Memory was freed while a live graph referred to it, and has not been reused yet.
static IN_GRAPHS: AtomicBool = AtomicBool::new(false);

/// Returns true if a launched graph may refer to freed memory.
#[inline(always)]
pub(crate) fn may_be_in_graphs() -> bool {
    IN_GRAPHS.load(Relaxed)
}

/// Kind of work that a program launches.
#[derive(Clone, Copy)]
pub(crate) enum LaunchKind {
    Kernel(Opaque),
    Graph,
    Other,
}

/// The call stack of the caller that frees.
pub(crate) struct FreeSite(pub StackRef);

impl FreeSite {
    /// Takes the stack of a call that frees.
    pub(crate) fn of(call: &Call) -> Self {
        if !is_on() {
            return Self(0);
        }
        Self(gate::note(|shim| shim.site(call.site(), Made::Stream)).unwrap_or(0))
    }
}

/// Returns the record of a live block.
fn record(shim: &Shim, block: &Block) -> AllocSlot {
    shim.ledger.allocs.read(block.slot()).filter(|slot| slot.addr == block.addr()).unwrap_or_default()
}

/// A range that is read.
enum Target {
    /// A zone of a live block, and the address at which it begins.
    Zone(&'static Block, Where, u64),
    Freed(&'static Block),
}

type Read = (Target, Job);

/// Returns the reads of these blocks' zones.
fn zones_of(blocks: &[&'static Block]) -> Vec<Read> {
    let of = |block: &&'static Block| {
        let block = *block;
        zones::jobs(block, Job::Read).map(move |(place, from, job)| (Target::Zone(block, place, from), job))
    };
    blocks.iter().filter(|block| block.is_watched()).flat_map(of).collect()
}

fn claim_of(blocks: &[&'static Block]) -> Claim {
    Claim::of(blocks.iter().map(|block| block.addr()).collect())
}

impl Guard {
    /// Reads, and then fills, in memory of claimed blocks of a context. Reports findings. Returns their number; `None`
    /// if it is unknown.
    fn work_through(
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
        let found = owner.work_through(&jobs, claim, longest);
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

    /// Returns the reads of freed blocks, without those of which a write was reported.
    fn freed_of(&self, blocks: &[&'static Block]) -> Vec<Read> {
        let all = lock(&self.freed);
        let is_filled = |block: &&&'static Block| all.get(&block.addr()).is_some_and(|freed| !freed.told);
        let read = |block: &&'static Block| (Target::Freed(block), Job::Read(block.base(), block.bytes()));
        blocks.iter().filter(is_filled).map(read).collect()
    }

    /// Reads the zones of claimed blocks, and reports findings. The blocks' context is held. Returns the number of
    /// findings; `None` if it is unknown.
    pub(in crate::pool) fn read_zones(
        &self,
        owner: &'static ContextPool,
        (blocks, claim): (&[&'static Block], &Claim),
        longest: Duration,
    ) -> Option<u64> {
        self.work_through(owner, &zones_of(blocks), None, claim, longest)
    }

    /// Frees a block that no work uses: reads its zones and fills the whole block. Returns false if that is not done;
    /// it may still be running then. Also reads the blocks that leave the quarantine for this one, in the same work for
    /// the device.
    pub(crate) fn freed(
        &self,
        asker: &FreeSite,
        owner: &'static ContextPool,
        block: &'static Block,
        leaving: &[&'static Block],
    ) -> bool {
        let (addr, asked) = (block.addr(), block.asked());
        if !claims::wait(addr, || owner.settle_readers(), DONE_WITHIN) {
            self.read_freed(owner, leaving, DONE_WITHIN);
            return false;
        }
        let (mut reads, mut blocks) = (zones_of(&[block]), leaving.to_vec());
        reads.extend(self.freed_of(leaving));
        blocks.push(block);
        let fill = Job::Fill(block.base(), block.bytes());
        if self.work_through(owner, &reads, Some(fill), &claim_of(&blocks), DONE_WITHIN).is_none() {
            return false;
        }
        block.unmark(INTACT);
        gate::note(|shim| {
            let in_graph = memory_use::refers_to(&(addr..addr + asked));
            IN_GRAPHS.fetch_or(in_graph, Relaxed);
            let (record, time_ns) = (record(shim, block), clock::precise_ns());
            let freed = Freed { block, asked, record, stack: asker.0, time_ns, in_graph, told: false };
            self.unwatch(Some(shim), block);
            shim.count(counters::GUARD_BYTES_ADDED, block.bytes());
            lock(&self.freed).insert(addr, freed);
        });
        true
    }

    /// Reads the zones of a block that is about to go back to the driver.
    pub(crate) fn given_up(&self, owner: &'static ContextPool, block: &'static Block) {
        let addr = block.addr();
        if claims::wait(addr, || owner.settle_readers(), Duration::ZERO) {
            self.read_zones(owner, (&[block], &claim_of(&[block])), DONE_WITHIN);
        }
    }

    /// Returns the bytes that may be kept from use in each of `contexts` contexts once this live block is freed.
    pub(crate) fn quarantine(&self, contexts: usize, block: &Block) -> u64 {
        self.most.saturating_sub(self.zones_without(block)) / contexts.max(1) as u64
    }

    /// Reads freed blocks that are not in use, and reports findings. Returns the number of findings; `None` if it is
    /// unknown.
    pub(in crate::pool) fn read_freed(
        &self,
        owner: &'static ContextPool,
        blocks: &[&'static Block],
        longest: Duration,
    ) -> Option<u64> {
        self.work_through(owner, &self.freed_of(blocks), None, &claim_of(blocks), longest)
    }

    /// Stops watching a block that was freed.
    pub(crate) fn forget_freed(&self, shim: Option<&Shim>, block: &Block) {
        let mut all = lock(&self.freed);
        // The driver may have given the address away again, and another block may have been freed there.
        let addr = block.addr();
        if !all.get(&addr).is_some_and(|freed| std::ptr::eq(freed.block, block)) {
            return;
        }
        let Some(freed) = all.remove(&addr) else { return };
        if freed.in_graph && !all.values().any(|freed| freed.in_graph) {
            IN_GRAPHS.store(false, Relaxed);
        }
        drop(all);
        if let Some(shim) = shim {
            shim.count(counters::GUARD_BYTES_REMOVED, block.bytes());
        }
    }

    /// Records a launch that may write. `words`: arguments that may be addresses.
    pub(crate) fn launched(&self, shim: &Shim, call: &Call, stream: Stream, what: LaunchKind, words: &[u64]) {
        let name = match what {
            LaunchKind::Graph => "a graph".into(),
            LaunchKind::Other => "a copy, fill or other work".into(),
            LaunchKind::Kernel(function) => self.launches.name(function as usize, || {
                // SAFETY: the driver has just accepted a launch of this function.
                let named = unsafe { backend::reader::name_of(function) };
                named.unwrap_or_else(|| format!("the kernel at {:#x}", function as usize)).into()
            }),
        };
        let stack = shim.site(call.site(), Made::Stream);
        self.launches.add(stream as u64, name, !matches!(what, LaunchKind::Other), stack, words);
    }

    /// Returns the freed memory that live graphs referred to when it was freed, sorted.
    pub(crate) fn freed_in_graphs(&self) -> Vec<Range<u64>> {
        let all = lock(&self.freed);
        let of_graphs = all.iter().filter(|(_, freed)| freed.in_graph);
        let mut ranges: Vec<_> = of_graphs.map(|(&addr, freed)| addr..addr + freed.asked.saturating_sub(1)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    /// Reports that a graph is about to run that refers to the freed memory at this address.
    pub(crate) fn tell_of_graph(&self, shim: &'static Shim, addr: u64) {
        if let Some(freed) = lock(&self.freed).get(&addr) {
            report::tell_of_graph(shim, addr, freed);
        }
    }

    /// Remembers that all blocks were read without a finding at this time, ns.
    pub(crate) fn remember_good(&self, then: u64) {
        self.all_good_ns.fetch_max(then, Relaxed);
    }
}
