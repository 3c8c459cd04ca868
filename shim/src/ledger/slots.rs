//! Addresses of slots and words of the ledger.

use gpumem_wire::layout::Sealed;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;

/// The address of a table's slots or words, kept apart from the table for code that should touch few cache lines.
pub(crate) struct Slots<T> {
    pub(super) base: *mut u8,
    slot: PhantomData<fn() -> T>,
}

impl<T> Clone for Slots<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Slots<T> {}

// SAFETY: what the pointer leads to is changed through atomics alone, so any thread may have it.
unsafe impl<T> Send for Slots<T> {}
// SAFETY: what the pointer leads to is changed through atomics alone, so threads may share it.
unsafe impl<T> Sync for Slots<T> {}

impl<T> Slots<T> {
    pub(super) fn new(base: *mut u8) -> Self {
        Self { base, slot: PhantomData }
    }
}

impl<T: Sealed> Slots<T> {
    #[inline(always)]
    pub(super) fn words(&self, index: u32) -> &[AtomicU64] {
        // SAFETY: `Table::take` gave `index`, so the slot is backed. A slot is a whole number of u64s and
        // aligned to them, and slots change through atomics only.
        unsafe {
            let at = self.base.add(index as usize * size_of::<T>());
            std::slice::from_raw_parts(at.cast(), size_of::<T>() / 8)
        }
    }

    /// Returns one of the slot's unsealed 64-bit fields, by its offset in the struct.
    #[inline(always)]
    pub(crate) fn field(&self, index: u32, offset: usize) -> &AtomicU64 {
        debug_assert!(offset >= T::SEALED && offset.is_multiple_of(8));
        &self.words(index)[offset / 8]
    }
}

impl Slots<u64> {
    /// Returns a backed word.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        // SAFETY: callers pass an index below what `Words::filled` or `Words::append` has backed. That memory is
        // aligned and never taken away.
        unsafe { &*self.base.add(index * 8).cast() }
    }
}
