//! Freed blocks that are kept from use for a while, in the order in which they were freed.
//!
//! Blocks that are taken out are in transit until they are stored again, so that a request that runs out waits for them
//! ([`InTransit`](super::super::in_transit::InTransit)). A transit is noted only if there are blocks: any transit makes
//! such a request try again.

use super::super::block::{Block, State};
use super::super::in_transit::Transit;
use super::{ContextPool, KeptBlocks};
use crate::process::lock::lock;
use std::ops::Range;
use std::sync::atomic::Ordering::*;

/// Blocks that were taken out of the quarantine.
pub(crate) struct Out {
    pub blocks: Vec<&'static Block>,
    /// Held until the blocks are stored again.
    _transit: Transit<'static>,
}

impl ContextPool {
    /// Keeps a block from use until `most` more bytes were freed after it. Returns the blocks that have been kept that
    /// long.
    pub(crate) fn quarantine(&self, block: &'static Block, most: u64) -> Option<Out> {
        let mut inner = lock(&self.inner);
        if block.is(State::Gone) {
            return None;
        }
        block.set(State::Idle);
        inner.quarantined += block.bytes();
        self.idle.fetch_add(block.bytes(), Relaxed);
        block.set_turn(inner.turn);
        let turn = inner.turn;
        inner.quarantine.insert(turn, block);
        inner.turn += 1;
        self.leave_until(&mut inner, most)
    }

    /// Makes room for a block that is about to be kept from use, as [`ContextPool::quarantine`] would. Returns the
    /// blocks that leave.
    pub(in crate::pool) fn make_room(&self, bytes: u64, most: u64) -> Option<Out> {
        self.leave_until(&mut lock(&self.inner), most.saturating_sub(bytes))
    }

    /// Takes out the blocks that were freed first, until at most `most` bytes are left.
    fn leave_until(&self, inner: &mut KeptBlocks, most: u64) -> Option<Out> {
        let mut due = Vec::new();
        while inner.quarantined > most
            && let Some((_, first)) = inner.quarantine.pop_first()
        {
            self.leaves(inner, first);
            due.push(first);
        }
        self.out(due)
    }

    /// Takes out all blocks that are kept from use.
    pub(crate) fn take_quarantine(&self) -> Option<Out> {
        let mut inner = lock(&self.inner);
        let blocks: Vec<_> = std::mem::take(&mut inner.quarantine).into_values().collect();
        blocks.iter().for_each(|block| self.leaves(&mut inner, block));
        self.out(blocks)
    }

    /// Returns the turns of all blocks that are kept from use now, for [`ContextPool::lend_quarantined`].
    pub(crate) fn quarantined_turns(&self) -> Range<u64> {
        0..lock(&self.inner).turn
    }

    /// Takes out the first blocks of these turns, at most `most`. The caller puts them back soon
    /// ([`ContextPool::put_in_quarantine`]). They still count as idle.
    pub(crate) fn lend_quarantined(&self, turns: &mut Range<u64>, most: usize) -> Option<Out> {
        let mut inner = lock(&self.inner);
        let blocks: Vec<_> = inner.quarantine.range(turns.clone()).take(most).map(|(_, block)| *block).collect();
        for block in &blocks {
            inner.quarantine.remove(&block.turn());
            turns.start = block.turn() + 1;
        }
        self.out(blocks)
    }

    /// Puts blocks back at their turns.
    pub(crate) fn put_in_quarantine(&self, lent: Out) {
        let mut inner = lock(&self.inner);
        for block in lent.blocks.iter().filter(|block| !block.is(State::Gone)) {
            inner.quarantine.insert(block.turn(), block);
        }
    }

    /// Stops counting a block as quarantined.
    fn leaves(&self, inner: &mut KeptBlocks, block: &Block) {
        let bytes = block.bytes();
        inner.quarantined = inner.quarantined.saturating_sub(bytes);
        self.idle.fetch_sub(bytes, Relaxed);
    }

    /// Notes that these blocks are in transit, while the lock is held under which they were taken out.
    fn out(&self, blocks: Vec<&'static Block>) -> Option<Out> {
        if blocks.is_empty() { None } else { Some(Out { blocks, _transit: self.in_transit.blocks.begin() }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::in_transit::are_unchanged;
    use std::time::Duration;

    fn filled() -> (&'static ContextPool, Vec<&'static Block>) {
        let context_pool = ContextPool::for_test(1, 0, 0);
        let blocks: Vec<&'static Block> = (1..=5_u64)
            .map(|n| {
                let block: &'static Block = Box::leak(Box::default());
                block.set_addr(n << 12);
                block.set_bytes(4096);
                block.set(State::Busy);
                assert!(context_pool.quarantine(block, 1 << 20).is_none());
                block
            })
            .collect();
        (context_pool, blocks)
    }

    fn addresses(out: &Out) -> Vec<u64> {
        out.blocks.iter().map(|block| block.addr() >> 12).collect()
    }

    /// A check reads them in parts. A request that runs out finds the others, and waits for the part being read.
    #[test]
    fn what_a_check_has_in_hand_is_on_its_way_and_comes_back_in_its_turn() {
        let (context_pool, _) = filled();
        let counts = &context_pool.in_transit.blocks;
        let mut turns = context_pool.quarantined_turns();
        let part = context_pool.lend_quarantined(&mut turns, 2).unwrap();
        assert_eq!((addresses(&part), context_pool.idle()), (vec![1, 2], 5 * 4096));
        std::thread::scope(|scope| {
            let before = counts.ended();
            let waits = scope.spawn(move || are_unchanged(&[(counts, before)], Duration::from_secs(600)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished(), "it waits for the part");
            context_pool.put_in_quarantine(part);
            assert!(!waits.join().unwrap(), "and is told that something came back");
        });
        let part = context_pool.lend_quarantined(&mut turns, 9).unwrap();
        assert_eq!(addresses(&part), [3, 4, 5]);
        assert!(context_pool.lend_quarantined(&mut turns, 9).is_none());
        let all = context_pool.take_quarantine().unwrap();
        assert_eq!((addresses(&all), context_pool.idle()), (vec![1, 2], 3 * 4096));
        context_pool.put_in_quarantine(part);
        assert_eq!(addresses(&context_pool.take_quarantine().unwrap()), [3, 4, 5]);
        assert_eq!(context_pool.idle(), 0);
        let before = counts.ended();
        drop(all);
        assert!(
            context_pool.take_quarantine().is_none() && counts.ended() == before + 1,
            "what is not there moves not"
        );
    }

    /// The oldest leave first, also after a check has had them.
    #[test]
    fn the_bound_holds() {
        let (context_pool, blocks) = filled();
        let lent = context_pool.lend_quarantined(&mut context_pool.quarantined_turns(), 1).unwrap();
        let more: &'static Block = Box::leak(Box::default());
        more.set_bytes(4096);
        more.set(State::Busy);
        let due = context_pool.quarantine(more, 4 * 4096).unwrap();
        assert_eq!(addresses(&due), [2, 3]);
        context_pool.put_in_quarantine(lent);
        blocks[0].set(State::Gone);
        assert_eq!(context_pool.idle(), 4 * 4096);
        // Those that are due leave before the block is freed for which they leave.
        assert!(context_pool.make_room(4096, 5 * 4096).is_none());
        assert_eq!(addresses(&context_pool.make_room(4096, 3 * 4096).unwrap()), [1, 4]);
    }
}
