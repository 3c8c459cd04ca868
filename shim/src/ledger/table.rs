//! Fixed slots in the ledger: taken, written and cleared without a lock.

use super::file::{Backing, Used};
use super::publish::{publish, read_whole};
use super::slots::Slots;
use super::stocked::{FreeSlots, Stocked};
use crate::process::threads;
use gpumem_wire::layout::Sealed;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Number of free lists, over which threads are spread.
const LISTS: usize = 16;
/// In place of a slot: the table was full at the recording. The thing is still counted.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// A table of slots that are taken and freed.
///
/// Free slots are chained through our own memory, not through the file, which another process may have damaged.
pub(crate) struct Table<T: Sealed> {
    slots: Slots<T>,
    used: Used,
    capacity: u64,
    next: AtomicU64,
    stocked: Stocked,
    free: [FreeSlots; LISTS],
    links: *mut AtomicU32,
}

// SAFETY: the slots and the links belong to no thread; `Backing`, which mapped them, never unmaps them.
unsafe impl<T: Sealed> Send for Table<T> {}
// SAFETY: slots and links are changed through atomics only. A slot is written by the caller that took it.
unsafe impl<T: Sealed> Sync for Table<T> {}

impl<T: Sealed> Table<T> {
    pub(crate) fn new(backing: &'static Backing) -> Self {
        let (base, capacity, used) = backing.table(T::TABLE);
        let (next, stocked, free) = (AtomicU64::new(0), Stocked::default(), std::array::from_fn(|_| FreeSlots::new()));
        Self { slots: Slots::new(base), used, capacity, next, stocked, free, links: backing.links(T::TABLE) }
    }

    /// Returns the address of its slots.
    pub(crate) fn slots(&self) -> Slots<T> {
        self.slots
    }

    /// Returns the maximum number of slots.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of slots ever handed out: only these are certainly backed.
    pub(crate) fn handed_out(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Returns a free slot; `None` if the table is full or the ledger cannot grow.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        // SAFETY: only slots that `take` gave come into a list.
        let link = |number| unsafe { self.link(number) }.load(Relaxed).into();
        self.stocked.take(&self.free, threads::shard() % LISTS, link).or_else(|| self.fresh())
    }

    /// Returns the link of a slot in its list: the number of the next one, from 1.
    ///
    /// # Safety
    /// `take` gave the slot that has this number.
    #[inline(always)]
    unsafe fn link(&self, number: u64) -> &AtomicU32 {
        // SAFETY: our caller vouches that the slot is below the capacity, and `links` has a word for each slot.
        unsafe { &*self.links.add(number as usize - 1) }
    }

    #[inline]
    fn fresh(&self) -> Option<u32> {
        let mut next = self.next.load(Relaxed);
        loop {
            if next >= self.capacity {
                return None;
            }
            if next >= self.used.used() {
                self.used.grow(next + 1).ok()?;
            }
            match self.next.compare_exchange_weak(next, next + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(next as u32),
                Err(now) => next = now,
            }
        }
    }

    #[inline(always)]
    fn words(&self, index: u32) -> &[AtomicU64] {
        self.slots.words(index)
    }

    /// Fills a slot that `take` gave, and makes it valid.
    #[inline(always)]
    pub(crate) fn write(&self, index: u32, slot: T) {
        publish(self.words(index), &slot);
    }

    /// Returns a slot's contents; `None` for [`NO_SLOT`]. Non-owners may see a mix of two writes.
    pub(crate) fn read(&self, index: u32) -> Option<T> {
        if index == NO_SLOT {
            return None;
        }
        let mut slot = T::new_zeroed();
        for (bytes, word) in slot.as_mut_bytes().chunks_exact_mut(8).zip(self.words(index)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        Some(slot)
    }

    /// As [`Table::read`], for non-owners: `None` for a slot that is free or changes meanwhile.
    pub(crate) fn read_if_whole(&self, index: u32) -> Option<T> {
        let mut slot = T::new_zeroed();
        read_whole(self.words(index), &mut slot).then_some(slot)
    }

    /// Visits every whole record. One that changes meanwhile may be left out.
    pub(crate) fn each(&self, mut each: impl FnMut(&T)) {
        self.each_slot(|_, slot| each(slot));
    }

    /// As [`Table::each`], with the index of each slot.
    pub(crate) fn each_slot(&self, mut each: impl FnMut(u32, &T)) {
        let mut slot = T::new_zeroed();
        for index in 0..self.handed_out() as u32 {
            if read_whole(self.words(index), &mut slot) {
                each(index, &slot);
            }
        }
    }

    /// Makes a slot invalid; it stays with its owner.
    #[inline]
    pub(crate) fn hide(&self, index: u32) {
        self.words(index)[0].store(0, Release);
    }

    /// Ends a slot and frees it.
    #[inline]
    pub(crate) fn clear(&self, index: u32) {
        self.hide(index);
        // SAFETY: `take` gave `index` to our caller.
        let set_link = |next| unsafe { self.link(u64::from(index) + 1) }.store(next as u32, Relaxed);
        self.stocked.put(&self.free, threads::shard() % LISTS, index, set_link);
    }

    /// As [`Table::hide`]; does nothing for [`NO_SLOT`].
    #[inline(always)]
    pub(crate) fn hide_if_any(&self, index: u32) {
        if index != NO_SLOT {
            self.hide(index);
        }
    }

    /// As [`Table::clear`]; does nothing for [`NO_SLOT`].
    #[inline]
    pub(crate) fn clear_if_any(&self, index: u32) {
        if index != NO_SLOT {
            self.clear(index);
        }
    }

    /// Returns one of the slot's unsealed 64-bit fields, by its offset in the struct.
    #[inline]
    pub(crate) fn field(&self, index: u32, offset: usize) -> &AtomicU64 {
        self.slots.field(index, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::file::{self, Plan};
    use gpumem_wire::layout::{AllocSlot, TableKind};
    use std::sync::mpsc;

    fn table(slots: u64) -> Table<AllocSlot> {
        let dir = std::env::temp_dir().join(format!("gpumem-table-{}-{slots}", std::process::id()));
        let sizes = [(TableKind::Allocs, slots)];
        let plan = Plan { id: file::this_process().unwrap(), uid: 0, stack_depth: 0, sizes: &sizes };
        std::fs::create_dir(&dir).unwrap();
        let (backing, path) = Backing::create(&plan, &dir, true).unwrap();
        let backing: &'static Backing = Box::leak(Box::new(backing));
        std::fs::remove_file(path).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
        Table::new(backing)
    }

    /// Each thread takes slots and the next thread frees them: none is lost, and none is handed out twice.
    #[test]
    fn slots_that_other_threads_give_back_serve_again() {
        const THREADS: usize = 6;
        const LIVE: usize = 40;
        let table = table(1 << 16);
        let held: Vec<AtomicU32> = (0..1 << 16).map(|_| AtomicU32::new(0)).collect();
        let (mut to, mut from): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::sync_channel::<u32>(LIVE)).unzip();
        to.rotate_left(1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (next, given) = (to.pop().unwrap(), from.pop().unwrap());
                let (table, held) = (&table, &held);
                scope.spawn(move || {
                    let give_back = |slot: u32| {
                        assert_eq!(held[slot as usize].swap(0, Relaxed), 1);
                        table.clear(slot);
                    };
                    for _ in 0..30_000 {
                        let slot = table.take().unwrap();
                        assert_eq!(held[slot as usize].swap(1, Relaxed), 0, "{slot} is another's");
                        if let Err(full) = next.try_send(slot) {
                            let (mpsc::TrySendError::Full(slot) | mpsc::TrySendError::Disconnected(slot)) = full;
                            give_back(slot);
                        }
                        given.try_iter().take(2).for_each(give_back);
                    }
                    drop(next);
                    given.iter().for_each(give_back);
                });
            }
        });
        // A few more slots may be used if two threads look at one list at once. Each slot served hundreds of times.
        let most = 2 * THREADS * LIVE;
        assert!(table.handed_out() <= most as u64, "{} slots for {most}", table.handed_out());
        // All freed slots come before any new one.
        let all = table.handed_out();
        assert!((0..all).all(|_| table.take().is_some()));
        assert_eq!(table.handed_out(), all);
    }
}
