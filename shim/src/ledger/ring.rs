//! A ring of slots, for events.

use super::file::{Backing, Full, Used};
use super::publish::publish;
use gpumem_wire::layout::Sealed;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A ring of slots; the newest overwrites the oldest. The whole ring is backed from the start.
pub(crate) struct Ring<T: Sealed> {
    base: *mut u8,
    used: Used,
    capacity: u64,
    slot: PhantomData<fn() -> T>,
}

// SAFETY: the ring's memory belongs to no thread, and its mapping is never taken away.
unsafe impl<T: Sealed> Send for Ring<T> {}
// SAFETY: words are changed through atomics only. Two writers of one place leave a slot whose check
// does not hold, which readers pass over.
unsafe impl<T: Sealed> Sync for Ring<T> {}

impl<T: Sealed> Ring<T> {
    /// # Errors
    /// [`Full`] if the ledger has no storage for it.
    pub(crate) fn new(backing: &'static Backing) -> Result<Self, Full> {
        let (base, capacity, used) = backing.table(T::TABLE);
        used.grow(capacity)?;
        Ok(Self { base, used, capacity, slot: PhantomData })
    }

    /// Writes the slot that `make` returns for the next sequence number.
    pub(crate) fn push(&self, make: impl FnOnce(u64) -> T) {
        let seq = self.used.written().fetch_add(1, Relaxed);
        // SAFETY: the remainder is below the capacity, and `new` has backed the whole ring. A slot
        // is a whole number of aligned u64s.
        let words: &[AtomicU64] = unsafe {
            let at = self.base.add((seq % self.capacity) as usize * size_of::<T>());
            std::slice::from_raw_parts(at.cast(), size_of::<T>() / 8)
        };
        publish(words, &make(seq));
    }
}
