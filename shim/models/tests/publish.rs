//! A slot of the ledger changes while a reader without a lock, possibly in another process, reads it.

mod atomic {
    pub use gpumem_models::atomic::*;
}

#[path = "../../src/ledger/publish.rs"]
mod publish;

use atomic::{AtomicU64, Ordering::*};
use gpumem_models::{Arc, model, thread};
use gpumem_wire::layout::{Sealed, TableKind};
use publish::{publish, read_whole};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

const WORDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Slot {
    check: u32,
    owner: u32,
    addr: u64,
    bytes: u64,
    /// Behind the sealed part.
    total: u64,
}

impl Sealed for Slot {
    const TABLE: TableKind = TableKind::Allocs;
    const SEALED: usize = 24;
}

fn slot_of(owner: u32) -> Slot {
    let number = u64::from(owner);
    Slot { check: 0, owner, addr: number << 12, bytes: number << 24, total: number }
}

fn slot_in_use() -> Arc<[AtomicU64; WORDS]> {
    let words: Arc<[AtomicU64; WORDS]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
    publish(&*words, &slot_of(1));
    words
}

/// Frees the slot as its owner, and writes it as the next one.
fn change(words: &[AtomicU64]) {
    words[0].store(0, Release);
    publish(words, &slot_of(2));
}

/// Runs a thread that reads while this one changes the slot. This one comes first in loom's first run, and the reader
/// may then see any value that was ever there, as far as the orders allow it.
fn read_while_it_changes(read: impl Fn(&[AtomicU64]) + Clone + Send + Sync + 'static) {
    model(3, move || {
        let words = slot_in_use();
        let reader = {
            let (words, read) = (words.clone(), read.clone());
            thread::spawn(move || read(&*words))
        };
        change(&*words);
        reader.join().unwrap();
        let mut slot = Slot::new_zeroed();
        assert!(read_whole(&*words, &mut slot) && slot.owner == 2, "nobody changes it any more");
    });
}

#[test]
fn a_slot_that_is_read_whole_is_one_owners_with_its_totals() {
    read_while_it_changes(|words| {
        let mut slot = Slot::new_zeroed();
        if read_whole(words, &mut slot) {
            assert_eq!(slot, Slot { check: slot.check, ..slot_of(slot.owner) });
        }
    });
}

/// Checks a copy of the words by the kernel for another process, in any order, which relies on the check alone.
fn copied_is_never_a_mix(order: [usize; WORDS]) {
    read_while_it_changes(move |words| {
        let mut slot = Slot::new_zeroed();
        for at in order {
            slot.as_mut_bytes()[8 * at..][..8].copy_from_slice(&words[at].load(Relaxed).to_le_bytes());
        }
        if slot.seal() == slot.check {
            let Slot { owner, addr, bytes, .. } = slot;
            assert_eq!((addr, bytes), (slot_of(owner).addr, slot_of(owner).bytes));
        }
    });
}

#[test]
fn a_copy_from_the_front_is_never_a_mix() {
    copied_is_never_a_mix([0, 1, 2, 3]);
}

#[test]
fn a_copy_from_the_back_is_never_a_mix() {
    copied_is_never_a_mix([3, 2, 1, 0]);
}
