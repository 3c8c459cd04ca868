//! Freed blocks that the guard keeps from use for a while.

use super::super::block::{Block, State};
use super::ContextPool;
use crate::process::lock::lock;
use std::sync::atomic::Ordering::*;

impl ContextPool {
    /// Keeps a block from use until `most` more bytes were freed after it. The answer is the blocks that have been kept
    /// that long.
    pub(crate) fn quarantine(&self, block: &'static Block, most: u64) -> Vec<&'static Block> {
        let mut inner = lock(&self.inner);
        if block.is(State::Gone) {
            return Vec::new();
        }
        block.set(State::Idle);
        inner.quarantined += block.bytes.load(Relaxed);
        self.idle.fetch_add(block.bytes.load(Relaxed), Relaxed);
        inner.quarantine.push_back(block);
        let mut due = Vec::new();
        while inner.quarantined > most
            && let Some(first) = inner.quarantine.pop_front()
        {
            inner.quarantined -= first.bytes.load(Relaxed);
            self.idle.fetch_sub(first.bytes.load(Relaxed), Relaxed);
            due.push(first);
        }
        due
    }

    /// Takes out all blocks that are kept from use.
    pub(crate) fn take_quarantine(&self) -> Vec<&'static Block> {
        let mut inner = lock(&self.inner);
        self.idle.fetch_sub(std::mem::take(&mut inner.quarantined), Relaxed);
        std::mem::take(&mut inner.quarantine).into()
    }

    /// Puts blocks back in front of the others, since they were freed first.
    pub(crate) fn put_in_quarantine(&self, blocks: Vec<&'static Block>) {
        let mut inner = lock(&self.inner);
        for block in blocks.into_iter().rev().filter(|block| !block.is(State::Gone)) {
            let bytes = block.bytes.load(Relaxed);
            inner.quarantined += bytes;
            self.idle.fetch_add(bytes, Relaxed);
            inner.quarantine.push_front(block);
        }
    }
}
