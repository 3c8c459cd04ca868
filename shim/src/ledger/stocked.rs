//! The free slots of a table, in lists over which threads are spread, and which of the lists may hold slots.

use super::atomic::{AtomicU32, AtomicU64, Ordering::*};
use crate::process::heap::list::FreeList;

/// A list of free slots, by their numbers from 1.
#[repr(align(64))]
pub(super) struct FreeSlots(FreeList<32>);

impl FreeSlots {
    pub(super) fn new() -> Self {
        Self(FreeList(AtomicU64::new(0)))
    }

    #[inline]
    fn pop(&self, link: impl Fn(u64) -> u64) -> Option<u32> {
        self.0.take(link).map(|number| number as u32 - 1)
    }
}

/// A bit for each list that may hold slots. A list that never got a slot back is not searched.
#[derive(Default)]
#[repr(transparent)]
pub(super) struct Stocked(AtomicU32);

impl Stocked {
    /// Takes a slot from a list; `None` if none is found. `own` is the index of the calling thread's list. `link`
    /// returns the link of a slot that was in a list: the number of the next one.
    #[inline(always)]
    pub(super) fn take<const LISTS: usize>(
        &self,
        lists: &[FreeSlots; LISTS],
        own: usize,
        link: impl Fn(u64) -> u64,
    ) -> Option<u32> {
        // Slots that other threads gave back are used before new storage. Otherwise the table would grow for ever if
        // one thread allocates and another frees.
        let stocked = self.0.load(Relaxed);
        let mut to_search = (0..LISTS).map(|i| (own + i) % LISTS).filter(|list| stocked & (1 << list) != 0);
        let take = |list: usize| {
            let slots: &FreeSlots = &lists[list];
            slots.pop(&link).or_else(|| if list == own { None } else { self.emptied(slots, list, &link) })
        };
        if stocked == 0 { None } else { to_search.find_map(take) }
    }

    /// Marks another thread's list as empty, then looks at it once more. A thread that puts a slot there meanwhile
    /// either sees that the bit is gone and sets it, or did so early enough for the second look to find the slot.
    #[cold]
    fn emptied(&self, slots: &FreeSlots, list: usize, link: impl Fn(u64) -> u64) -> Option<u32> {
        self.0.fetch_and(!(1 << list), SeqCst);
        let found = slots.pop(link);
        if found.is_some() {
            self.0.fetch_or(1 << list, SeqCst);
        }
        found
    }

    /// Puts a slot on the calling thread's list. `set_link` sets the slot's link.
    #[inline(always)]
    pub(super) fn put<const LISTS: usize>(
        &self,
        lists: &[FreeSlots; LISTS],
        own: usize,
        slot: u32,
        set_link: impl Fn(u64),
    ) {
        lists[own].0.put(u64::from(slot) + 1, set_link);
        if self.0.load(SeqCst) & (1 << own) == 0 {
            self.0.fetch_or(1 << own, SeqCst);
        }
    }
}
