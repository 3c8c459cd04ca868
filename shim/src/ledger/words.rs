//! Consecutive plain 64-bit words in the ledger.

use super::file::{Backing, Full, Used};
use super::slots::Slots;
use gpumem_wire::layout::TableKind;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A table of plain 64-bit words: frames, counters.
pub(crate) struct Words {
    words: Slots<u64>,
    used: Used,
    capacity: u64,
    next: AtomicU64,
}

// SAFETY: the words belong to no thread, and `Backing`, which mapped them, never unmaps them.
unsafe impl Send for Words {}
// SAFETY: words are reached only through `at`, `append` and `Slots`, which use atomics alone.
unsafe impl Sync for Words {}

impl Words {
    pub(crate) fn new(backing: &'static Backing, kind: TableKind) -> Self {
        let (base, capacity, used) = backing.table(kind);
        Self { words: Slots::new(base), used, capacity, next: AtomicU64::new(0) }
    }

    /// Returns the address of its words.
    pub(crate) fn words(&self) -> Slots<u64> {
        self.words
    }

    /// Backs the whole table.
    ///
    /// # Errors
    /// [`Full`] if the ledger has no storage for it.
    pub(crate) fn filled(self) -> Result<Self, Full> {
        self.used.grow(self.capacity)?;
        Ok(self)
    }

    /// Returns a backed word.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        debug_assert!((index as u64) < self.used.used());
        self.words.at(index)
    }

    /// Appends words; returns the index of the first one, or `None` if there is no more room.
    pub(crate) fn append(&self, words: &[u64]) -> Option<u64> {
        let len = words.len() as u64;
        let first = self.next.fetch_add(len, Relaxed);
        let end = first + len;
        if end > self.capacity || (end > self.used.used() && self.used.grow(end).is_err()) {
            self.next.fetch_sub(len, Relaxed);
            return None;
        }
        for (index, &word) in words.iter().enumerate() {
            self.at(first as usize + index).store(word, Relaxed);
        }
        Some(first)
    }
}
