//! The blocks that the pool hands over at its door: those that the program gets, that it frees, and that go back to the
//! driver.

use super::jobs::{Job, work_through};
use super::reads::{DONE_WITHIN, claim_of, freed_of, record, zones_of};
use super::zones::{self, BEHIND, more};
use super::{Freed, Guard};
use crate::call::Call;
use crate::gate;
use crate::graphs::memory_use;
use crate::pool::block::{Block, FRONTED, INTACT, WATCHED, ZONED};
use crate::pool::claims;
use crate::pool::context_pool::ContextPool;
use crate::pool::size;
use crate::pool::watcher::Watcher;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::registry::sites::Made;
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Longest wait of an allocation for its zones to be filled. While the program's work runs, copies fill them, since no
/// kernel holds up a copy.
const FILLED_WITHIN: Duration = Duration::from_secs(1);

impl Watcher for Guard {
    /// With room for zones if they fit in `GPUMEM_GUARD_MAX`.
    fn rounded(&self, bytes: u64) -> Option<u64> {
        let in_front = bytes.checked_add(self.front)?;
        let (least, with_zone) = (size::rounded(in_front)?, size::rounded(in_front.checked_add(BEHIND)?)?);
        let fits = self.taken().saturating_add(with_zone - least) <= self.most;
        Some(if fits { with_zone } else { least })
    }

    fn start(&self, addr: u64, bytes: u64, asked: u64) -> (u64, u32) {
        match self.front != 0 && bytes >= asked.saturating_add(self.front) {
            true => (addr + self.front, FRONTED),
            false => (addr, 0),
        }
    }

    fn watch(&self, owner: &'static ContextPool, block: &Block) {
        let more = more(block);
        self.zones.fetch_add(more, Relaxed);
        block.mark(ZONED);
        let jobs: Vec<Job> = zones::jobs(block, Job::Fill).map(|(.., job)| job).collect();
        let fills = || work_through(owner, &jobs, &claim_of([block]), FILLED_WITHIN);
        let watched = !jobs.is_empty() && (block.has(INTACT) || fills().is_some());
        if watched {
            block.mark(WATCHED);
        }
        gate::note(|shim| {
            shim.count(counters::GUARD_BYTES_ADDED, more);
            shim.count(counters::GUARD_WITHOUT, u64::from(!watched));
        });
    }

    fn most_kept(&self, block: &Block) -> u64 {
        let of_others = self.taken().saturating_sub(if block.has(ZONED) { more(block) } else { 0 });
        self.most.saturating_sub(of_others)
    }

    /// Reads its zones, and fills the whole block.
    fn freed(
        &self,
        call: &Call,
        owner: &'static ContextPool,
        block: &'static Block,
        leaving: &[&'static Block],
    ) -> bool {
        let stack = gate::note(|shim| shim.site(call.site(), Made::Stream)).unwrap_or(0);
        let (addr, asked) = (block.addr(), block.asked());
        if !claims::wait(addr, || owner.settle_readers(), DONE_WITHIN) {
            self.read_freed(owner, leaving, DONE_WITHIN);
            return false;
        }
        let (mut reads, mut blocks) = (zones_of(&[block]), leaving.to_vec());
        reads.extend(freed_of(self, leaving));
        blocks.push(block);
        let fill = Job::Fill(block.base(), block.bytes());
        if self.read(owner, &reads, Some(fill), &claim_of(blocks), DONE_WITHIN).is_none() {
            return false;
        }
        block.unmark(INTACT);
        gate::note(|shim| {
            let in_graph = memory_use::refers_to(&(addr..addr + asked));
            self.in_graphs.fetch_or(in_graph, Relaxed);
            let (record, time_ns) = (record(shim, block), clock::precise_ns());
            let freed = Freed { block, asked, record, stack, time_ns, in_graph, told: false };
            self.unwatch(block);
            shim.count(counters::GUARD_BYTES_ADDED, block.bytes());
            lock(&self.freed).insert(addr, freed);
        });
        true
    }

    /// Reads them whole.
    fn leave(&self, owner: &'static ContextPool, blocks: &[&'static Block]) {
        self.read_freed(owner, blocks, DONE_WITHIN);
    }

    /// Reads its zones.
    fn given_up(&self, owner: &'static ContextPool, block: &'static Block) {
        if claims::wait(block.addr(), || owner.settle_readers(), Duration::ZERO) {
            self.read_zones(owner, (&[block], &claim_of([block])), DONE_WITHIN);
        }
    }

    fn forget(&self, block: &Block) {
        self.unwatch(block);
        let mut all = lock(&self.freed);
        // The driver may have given the address away again, and another block may have been freed there.
        let addr = block.addr();
        if !all.get(&addr).is_some_and(|freed| std::ptr::eq(freed.block, block)) {
            return;
        }
        let Some(freed) = all.remove(&addr) else { return };
        if freed.in_graph && !all.values().any(|freed| freed.in_graph) {
            self.in_graphs.store(false, Relaxed);
        }
        drop(all);
        if let Some(shim) = gate::shim() {
            shim.count(counters::GUARD_BYTES_REMOVED, block.bytes());
        }
    }

    fn taken(&self) -> u64 {
        self.zones.load(Relaxed)
    }
}

impl Guard {
    /// Stops watching the zones of a block.
    fn unwatch(&self, block: &Block) {
        if block.unmark(ZONED | WATCHED) & ZONED == 0 {
            return;
        }
        let more = more(block);
        self.zones.fetch_sub(more, Relaxed);
        if let Some(shim) = gate::shim() {
            shim.count(counters::GUARD_BYTES_REMOVED, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::report::Where;
    use crate::pool::block::FRONT;
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
        block.begin((addr, 2048), 1000, None, flags);
        assert_eq!((addr, block.base()), (0x10_0200, 0x10_0000));
        let [behind, front] = zones::zones(&block);
        assert_eq!(behind, (Where::Behind, 0x10_05e8..0x10_0800));
        assert_eq!(front, (Where::InFront, 0x10_0000..0x10_0200));
        assert_eq!(guard.start(0x10_0000, 1024, 1000), (0x10_0000, 0), "no room in front");
    }
}
