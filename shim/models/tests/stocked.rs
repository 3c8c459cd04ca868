//! The free slots of a table of the ledger: none is lost, and none is taken by two threads.

mod atomic {
    pub use gpumem_models::one_order::*;
}
mod process {
    pub mod heap {
        pub(crate) use crate::list;
    }
}

#[allow(dead_code, reason = "the heap's number of bits")]
#[path = "../../src/process/heap/list.rs"]
mod list;
#[path = "../../src/ledger/stocked.rs"]
mod stocked;

use atomic::{AtomicU32, Ordering::*};
use gpumem_models::{Arc, Plain, model, thread};
use stocked::{FreeSlots, Stocked};

const SLOTS: usize = 2;

/// Two lists, as two threads have them.
struct Table {
    stocked: Stocked,
    lists: [FreeSlots; 2],
    links: [AtomicU32; SLOTS],
    /// The owner's contents.
    slots: [Plain<u64>; SLOTS],
}

impl Table {
    /// Creates a table with free slots in the list of thread 0.
    fn new(free: u32) -> Arc<Self> {
        let table = Self {
            stocked: Stocked::default(),
            lists: std::array::from_fn(|_| FreeSlots::new()),
            links: std::array::from_fn(|_| AtomicU32::new(0)),
            slots: std::array::from_fn(|_| Plain::new(0)),
        };
        (0..free).for_each(|slot| table.put(0, slot));
        Arc::new(table)
    }

    fn take(&self, own: usize) -> Option<u32> {
        let slot =
            self.stocked.take(&self.lists, own, |number| self.links[number as usize - 1].load(Relaxed).into())?;
        self.slots[slot as usize].write(own as u64);
        Some(slot)
    }

    fn put(&self, own: usize, slot: u32) {
        self.slots[slot as usize].write(own as u64);
        self.stocked.put(&self.lists, own, slot, |next| self.links[slot as usize].store(next as u32, Relaxed));
    }

    /// Returns all free slots that a thread finds.
    fn rest(&self, own: usize) -> Vec<u32> {
        let mut all: Vec<u32> = std::iter::from_fn(|| self.take(own)).collect();
        all.sort_unstable();
        all
    }
}

/// One thread takes the last slot of another thread's list, and marks the list as empty while its thread puts a slot
/// there.
///
/// Red if the bits in `put` or the head in `FreeList::take` are loaded with `Acquire`, or without the second look in
/// `emptied`: a slot is in a list without a bit, where no thread looks for it.
#[test]
fn a_slot_that_is_put_into_an_emptied_list_is_found() {
    for own in [0, 1] {
        model(3, move || {
            let table = Table::new(1);
            let other = {
                let table = table.clone();
                thread::spawn(move || [table.take(1), table.take(1)])
            };
            table.put(0, 1);
            let taken = other.join().unwrap();
            let mut all = table.rest(own);
            all.extend(taken.into_iter().flatten());
            all.sort_unstable();
            assert_eq!(all, [0, 1], "none is lost, and none is there twice");
        });
    }
}

/// The second look takes one of two slots that were put there meanwhile. Red if `emptied` does not set the bit again.
#[test]
fn a_list_that_is_emptied_only_in_part_is_searched_again() {
    model(3, || {
        let table = Table::new(1);
        let first = table.take(0).expect("it has one");
        let other = {
            let table = table.clone();
            thread::spawn(move || table.take(1))
        };
        table.put(0, first);
        table.put(0, 1);
        let mut all: Vec<u32> = other.join().unwrap().into_iter().collect();
        all.extend(table.rest(1));
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}

/// Two threads empty a third one's list while that thread puts a slot there.
#[test]
fn two_that_mark_a_list_as_empty_lose_no_slot() {
    model(2, || {
        let table = Table::new(1);
        let others = [1, 1].map(|own| {
            let table = table.clone();
            thread::spawn(move || table.take(own))
        });
        table.put(0, 1);
        let mut all: Vec<u32> = others.into_iter().filter_map(|other| other.join().unwrap()).collect();
        all.extend(table.rest(1));
        all.sort_unstable();
        assert_eq!(all, [0, 1]);
    });
}
