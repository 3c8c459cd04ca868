//! Freed blocks that pending work may still use, until events show that this work has completed.

use super::{Batch, ContextPool, KeptBlocks};
use crate::backend::memory::Event;
use crate::pool::block::{Block, State};
use crate::process::lock::lock;
use crate::process::{cancel, clock};
use crate::progress::activity;
use crate::progress::queries;
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Freed blocks are gathered, up to this many of at most [`GATHERED_BYTES`], before an event is recorded for them.
/// Recording an event and querying it takes longer than the rest of a free. A thread that needs one of the blocks has
/// the event recorded at once.
const GATHERED: usize = 8;
const GATHERED_BYTES: u64 = 32 << 20;
/// The most freed blocks that one event covers.
const BATCH: usize = 64;
/// The most events at a time, unless many blocks were freed since the last one.
const MOST_BATCHES: usize = 64;

impl ContextPool {
    /// Keeps a block until the work that may use it has completed.
    pub(crate) fn keep_until_completed(&self, block: &'static Block, now_ns: u64) {
        let submissions = activity::submissions_if_none_open();
        let is_full = {
            let mut inner = lock(&self.inner);
            // As in `keep_in`: this pool may now be for another context.
            if block.is(State::Gone) {
                return;
            }
            self.count_waiting(block, now_ns);
            // Nothing was submitted since the last event, so the event covers this block too.
            let covers = |batch: &&mut Batch| {
                submissions.is_some() && batch.submissions == submissions && batch.blocks.len() < BATCH
            };
            if let Some(batch) = inner.batches.back_mut().filter(covers) {
                return batch.blocks.push(block);
            }
            inner.open.push(block);
            let bytes: u64 = inner.open.iter().map(|block| block.bytes()).sum();
            // More events than this add no information.
            (inner.open.len() >= GATHERED || bytes > GATHERED_BYTES)
                && (inner.batches.len() < MOST_BATCHES || inner.open.len() > BATCH)
        };
        if is_full {
            self.reap(now_ns);
        }
    }

    /// Makes those of the waiting blocks idle that no work uses any more.
    pub(super) fn keep_all(
        &self,
        inner: &mut KeptBlocks,
        blocks: impl IntoIterator<Item = &'static Block>,
        now_ns: u64,
    ) {
        blocks.into_iter().for_each(|block| self.keep_in(inner, block, now_ns));
    }

    /// Keeps blocks that wait for an event, if they belong to the present context.
    fn push_batch(&self, generation: u32, event: Event, submissions: Option<u64>, blocks: Vec<&'static Block>) {
        let mut inner = lock(&self.inner);
        if self.generation() != generation {
            return;
        }
        let number = inner.next_batch;
        inner.next_batch += 1;
        inner.batches.push_back(Batch { number, event, submissions, blocks });
    }

    /// Records an event after the work that may use the blocks freed since the last batch.
    fn close_batch(&self) {
        let generation = self.generation();
        // Taken before the event is recorded: the event does not cover blocks that are freed from here on.
        let (blocks, _transit) = {
            let mut inner = lock(&self.inner);
            if inner.open.is_empty() {
                return;
            }
            (std::mem::take(&mut inner.open), self.in_transit.blocks.begin())
        };
        match self.within(|| self.event()) {
            Some((event, submissions)) => self.push_batch(generation, event, submissions, blocks),
            None => self.open_again(generation, blocks),
        }
    }

    /// Returns blocks that were about to get an event to the open batch.
    fn open_again(&self, generation: u32, blocks: impl IntoIterator<Item = &'static Block>) {
        let mut inner = lock(&self.inner);
        if self.generation() == generation {
            inner.open.extend(blocks);
        }
    }

    /// Makes blocks idle that no work uses any more, and covers the other freed blocks by events.
    pub(crate) fn reap(&self, now_ns: u64) {
        self.close_batch();
        let generation = self.generation();
        loop {
            let front = lock(&self.inner).batches.front().map(|batch| (batch.number, batch.event));
            let Some((number, event)) = front else { return };
            if !self.within(|| self.calls.completed(event)) {
                return;
            }
            let mut inner = lock(&self.inner);
            // Another thread may have taken the batch meanwhile.
            if self.generation() != generation || inner.batches.front().is_none_or(|batch| batch.number != number) {
                continue;
            }
            let Some(batch) = inner.batches.pop_front() else { return };
            self.keep_all(&mut inner, batch.blocks, now_ns);
            drop(inner);
            self.found_idle(batch.submissions);
            self.keep_event(generation, Some(event));
        }
    }

    /// Returns true if freed blocks wait for work to complete.
    pub(crate) fn has_pending(&self) -> bool {
        let inner = lock(&self.inner);
        !inner.open.is_empty() || !inner.batches.is_empty()
    }

    /// Waits at most `longest` until no work uses the blocks freed so far. Does not wait during a capture.
    pub(crate) fn wait_for_freed(&self, longest: Duration) {
        self.close_batch();
        // Blocks that are freed from here on are not waited for.
        let until = lock(&self.inner).next_batch;
        cancel::poll(longest, Duration::from_micros(50), || {
            self.reap(clock::now_ns());
            let waits = lock(&self.inner).batches.front().is_some_and(|batch| batch.number < until);
            !waits || activity::broken() || queries::capturing()
        });
    }

    /// As [`ContextPool::barrier`], and makes the blocks idle that were freed before it.
    pub(crate) fn barrier_for_all(&self, now_ns: u64) -> Option<Status> {
        let generation = self.generation();
        // The barrier does not cover blocks that are freed from here on.
        let (open, batches, _transit) = {
            let mut inner = lock(&self.inner);
            let (open, batches) = (std::mem::take(&mut inner.open), std::mem::take(&mut inner.batches));
            // A request that runs out meanwhile waits for them.
            let any = !open.is_empty() || !batches.is_empty();
            (open, batches, any.then(|| self.in_transit.blocks.begin()))
        };
        let status = self.barrier();
        let events: Vec<Event> = batches.iter().map(|batch| batch.event).collect();
        let blocks = open.into_iter().chain(batches.into_iter().flat_map(|batch| batch.blocks));
        match status {
            Some(SUCCESS) => self.keep_all(&mut lock(&self.inner), blocks, now_ns),
            _ => self.open_again(generation, blocks),
        }
        events.into_iter().for_each(|event| self.keep_event(generation, Some(event)));
        status
    }

    /// Keeps a block that work may use until that work has completed.
    pub(crate) fn keep_waiting(&self, block: &'static Block, now_ns: u64) {
        let mut inner = lock(&self.inner);
        self.count_waiting(block, now_ns);
        inner.open.push(block);
    }

    /// Counts a block as idle that waits for work.
    fn count_waiting(&self, block: &'static Block, now_ns: u64) {
        block.set_idle_ns(now_ns);
        block.set(State::Idle);
        self.idle.fetch_add(block.bytes(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that runs out has to wait for them, but must not wait if there are none.
    #[test]
    fn blocks_whose_barrier_or_event_is_made_are_on_their_way() {
        let context_pool = ContextPool::for_test(1, 0, 0);
        let moved = |what: &dyn Fn()| {
            let before = context_pool.in_transit.blocks.ended();
            what();
            context_pool.in_transit.blocks.ended() - before
        };
        let barrier = || assert!(context_pool.barrier_for_all(1).is_none(), "as if something captured");
        let reap = || context_pool.reap(1);
        assert_eq!((moved(&barrier), moved(&reap)), (0, 0));
        context_pool.keep_waiting(Box::leak(Box::default()), 1);
        assert_eq!((moved(&barrier), moved(&reap)), (1, 1));
    }
}
