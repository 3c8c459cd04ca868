//! The idle blocks of a context: kept by size and age, taken for a request, or taken out to go back.

use super::super::block::{Block, State};
use super::{ContextPool, KeptBlocks};
use crate::process::lock::lock;
use std::sync::atomic::Ordering::*;

/// Bound on the oldest idle blocks that go back.
#[derive(Clone, Copy)]
pub(in crate::pool) enum Most {
    /// At least this many bytes, in at most this many blocks.
    AtLeast(u64, usize),
    /// At most this many bytes, in at most this many blocks.
    Within(u64, usize),
}

impl Most {
    pub(in crate::pool) const ALL: Self = Self::AtLeast(u64::MAX, usize::MAX);

    pub(in crate::pool) fn bytes(self) -> u64 {
        match self {
            Self::AtLeast(bytes, _) | Self::Within(bytes, _) => bytes,
        }
    }
}

impl ContextPool {
    /// Takes an idle block of at least `rounded` and at most `rounded + slack` bytes.
    pub(crate) fn take(&self, rounded: u64, slack: u64) -> Option<&'static Block> {
        let mut inner = lock(&self.inner);
        let (&key, &block) = inner.by_size.range((rounded, 0)..).next()?;
        if key.0 > rounded + slack {
            return None;
        }
        inner.by_size.remove(&key);
        inner.by_age.remove(&block.turn());
        let idle = self.idle.fetch_sub(key.0, Relaxed) - key.0;
        self.live_peak.fetch_max(self.held().saturating_sub(idle), Relaxed);
        Some(block)
    }

    /// Keeps a block that no work uses any more.
    pub(crate) fn keep(&self, block: &'static Block, now_ns: u64) {
        let mut inner = lock(&self.inner);
        self.idle.fetch_add(block.bytes(), Relaxed);
        self.keep_in(&mut inner, block, now_ns);
    }

    /// Keeps a block whose bytes are counted as idle already.
    pub(super) fn keep_in(&self, inner: &mut KeptBlocks, block: &'static Block, now_ns: u64) {
        // The block's context ended while a thread had the block. This pool may now be for another context, so the
        // block is not kept.
        if block.is(State::Gone) {
            self.idle.fetch_sub(block.bytes(), Relaxed);
            return;
        }
        let (bytes, addr) = (block.bytes(), block.addr());
        block.set_idle_ns(now_ns);
        block.set_turn(inner.turn);
        block.set(State::Idle);
        inner.by_age.insert(inner.turn, block);
        inner.turn += 1;
        inner.by_size.insert((bytes, addr), block);
        self.idle_peak.fetch_max(self.idle(), Relaxed);
    }

    /// Takes out the blocks that have been idle longest, at most `count` of them. `most` bounds the bytes, and is
    /// lowered by the bytes that were taken.
    pub(in crate::pool) fn oldest(&self, most: &mut Most, count: usize) -> Vec<&'static Block> {
        let mut inner = lock(&self.inner);
        let mut out = Vec::new();
        while out.len() < count
            && let Some((&turn, &block)) = inner.by_age.first_key_value()
        {
            let bytes = Block::bytes(block);
            match most {
                Most::AtLeast(0, _) | Most::AtLeast(_, 0) | Most::Within(_, 0) => break,
                Most::AtLeast(left, blocks) => (*left, *blocks) = (left.saturating_sub(bytes), *blocks - 1),
                Most::Within(left, blocks) => match left.checked_sub(bytes) {
                    Some(less) => (*left, *blocks) = (less, *blocks - 1),
                    None => break,
                },
            }
            inner.by_age.remove(&turn);
            inner.by_size.remove(&(bytes, block.addr()));
            self.idle.fetch_sub(bytes, Relaxed);
            out.push(block);
        }
        out
    }

    /// Returns the bytes and age, ns, of each idle block that can be given back.
    pub(crate) fn ages(&self, now_ns: u64) -> Vec<(u64, u64)> {
        let inner = lock(&self.inner);
        let age = |block: &&Block| now_ns.saturating_sub(block.idle_ns());
        inner.by_age.values().map(|block| (block.bytes(), age(block))).collect()
    }

    /// Takes out all blocks, since the context ends. Returns first the blocks that no work uses, then those that wait
    /// for work.
    pub(crate) fn let_go(&self) -> (Vec<&'static Block>, Vec<&'static Block>) {
        self.events_now().clear();
        let mut inner = lock(&self.inner);
        let KeptBlocks { by_age, open, batches, quarantine, .. } = std::mem::take(&mut *inner);
        let idle: Vec<_> = by_age.into_values().chain(quarantine.into_values()).collect();
        let waiting: Vec<_> = open.into_iter().chain(batches.into_iter().flat_map(|batch| batch.blocks)).collect();
        let bytes = idle.iter().chain(&waiting).map(|block| block.bytes()).sum();
        self.idle.fetch_sub(bytes, Relaxed);
        (idle, waiting)
    }

    /// Returns the idle bytes and the number of idle blocks.
    pub(crate) fn idle_blocks(&self) -> (u64, u64) {
        let inner = lock(&self.inner);
        let pending: usize = inner.batches.iter().map(|batch| batch.blocks.len()).sum();
        (self.idle(), (inner.by_age.len() + inner.open.len() + inner.quarantine.len() + pending) as u64)
    }
}
