//! The states of a block: one thread takes it, with all that its owner before left in it, and as the allocation that
//! the thread means.

mod sync {
    pub use gpumem_models::atomic::*;
}

/// Part of the ledger that the file below uses.
mod ledger {
    pub mod table {
        pub const NO_SLOT: u32 = u32::MAX;
    }
}

#[allow(dead_code, reason = "these models are about the state")]
#[path = "../../src/pool/block.rs"]
mod block;

use block::{Block, State};
use gpumem_models::{Arc, Plain, model, thread};

const ADDR: u64 = 0x1000;
const NEXT_ADDR: u64 = 0x2000;

/// A block, and what only its owner touches: its record, its place among the idle blocks.
struct Owned {
    block: Block,
    record: Plain<u64>,
}

impl Owned {
    /// Creates a block that the program has.
    fn new() -> Arc<Self> {
        let owned = Self { block: Block::default(), record: Plain::new(0) };
        owned.is_served_at(ADDR);
        Arc::new(owned)
    }

    /// Gives the block to the program.
    fn is_served_at(&self, addr: u64) {
        self.record.write(addr);
        self.block.set_addr(addr);
        self.block.set(State::Live);
    }

    /// Takes the block by one of the two functions, and returns true if it is this thread's now.
    fn is_freed(&self, addr: u64, fast: bool) -> bool {
        let taken = if fast { self.block.turn_idle(addr) } else { self.block.turn_to(addr, State::Live, State::Busy) };
        if taken {
            assert_eq!(self.record.read(), addr, "another allocation was taken");
            self.record.write(0);
        }
        taken
    }
}

/// Two threads free a block at once, as only a wrong program does. Red without the look at what `swap` returned.
#[test]
fn one_of_two_frees_gets_the_block() {
    for [here, there] in [[false, false], [true, false], [true, true]] {
        model(3, move || {
            let owned = Owned::new();
            let other = {
                let owned = owned.clone();
                thread::spawn(move || owned.is_freed(ADDR, there))
            };
            let taken = owned.is_freed(ADDR, here);
            assert!(taken != other.join().unwrap());
            assert!(!owned.block.is(State::Live) && !owned.block.is(State::Gone));
        });
    }
}

/// A block is served, and another thread takes it, which has its address from elsewhere: a context that ends. Red if
/// `set` does not release, or if `turn_to` does not acquire.
#[test]
fn who_takes_a_block_sees_what_was_written_before() {
    for fast in [false, true] {
        model(3, move || {
            let owned = Owned::new();
            assert!(owned.is_freed(ADDR, true));
            let other = {
                let owned = owned.clone();
                thread::spawn(move || owned.is_freed(ADDR, fast))
            };
            owned.is_served_at(ADDR);
            if !other.join().unwrap() {
                assert!(owned.is_freed(ADDR, fast));
            }
        });
    }
}

/// A block goes back to the driver and stands for another allocation, while a thread still means the first one: that of
/// a context that ends. Red without the look at the address behind the exchange, and if `set` does not release.
#[test]
fn a_block_that_stands_for_another_allocation_is_left_to_it() {
    for here in [false, true] {
        model(3, move || {
            let owned = Owned::new();
            let late = {
                let owned = owned.clone();
                thread::spawn(move || owned.is_freed(ADDR, false))
            };
            let first = owned.is_freed(ADDR, here);
            if first {
                owned.block.set(State::Gone);
                owned.is_served_at(NEXT_ADDR);
            }
            assert!(first != late.join().unwrap(), "one of the two has freed the first allocation");
            assert_eq!(first, owned.block.is(State::Live));
            assert_eq!(first, owned.is_freed(NEXT_ADDR, here));
        });
    }
}
