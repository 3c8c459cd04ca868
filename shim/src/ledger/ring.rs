//! A ring of slots, for events.

use super::file::{Backing, Full, Used};
use super::publish::publish;
use gpumem_wire::layout::Sealed;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A ring of slots; the newest overwrites the oldest. It is backed as it fills.
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
        used.grow(1)?;
        Ok(Self { base, used, capacity, slot: PhantomData })
    }

    /// Writes the slot that `make` returns for the next sequence number.
    pub(crate) fn push(&self, make: impl FnOnce(u64) -> T) {
        let seq = self.used.written().fetch_add(1, Relaxed);
        // SAFETY: the place is backed. A slot is a whole number of aligned u64s.
        let words: &[AtomicU64] = unsafe {
            let at = self.base.add(self.place(seq) as usize * size_of::<T>());
            std::slice::from_raw_parts(at.cast(), size_of::<T>() / 8)
        };
        publish(words, &make(seq));
    }

    /// Returns the backed place of an entry. While there is no storage for another place, the ring is as long as what is
    /// backed.
    fn place(&self, seq: u64) -> u64 {
        let place = seq % self.capacity;
        let is_backed = place < self.used.used() || self.used.grow(place + 1).is_ok();
        if is_backed { place } else { place % self.used.used() }
    }
}
