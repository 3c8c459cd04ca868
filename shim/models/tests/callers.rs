//! While a record of a calling object is taken for another object, no reader gets the other object's function.

mod atomic {
    pub use gpumem_models::atomic::*;
}

#[path = "../../src/backend/providers/caller.rs"]
mod caller;

use atomic::{AtomicU64, AtomicUsize, Ordering::*};
use caller::{Caller, is_of};
use gpumem_models::{Arc, model, thread};

/// No object is unloaded meanwhile.
const GENERATION: usize = 7;
/// Two objects: the start of each, and its function.
const OBJECTS: [(usize, usize); 2] = [(0x1000, 11), (0x3000, 33)];

/// Returns the record, of the first object.
fn record() -> Arc<Caller<1>> {
    let (start, function) = OBJECTS[0];
    Arc::new(Caller {
        is_library: AtomicUsize::new(1),
        stamp: AtomicU64::new(GENERATION as u64),
        start: AtomicUsize::new(start),
        end: AtomicUsize::new(start + 0x1000),
        functions: [AtomicUsize::new(function)],
    })
}

/// Takes the record for the second object, which then has its function. Returns true if this thread did it.
fn take(record: &Caller<1>) -> bool {
    let (start, function) = OBJECTS[1];
    let was_begun = record.change(record.stamp.load(Acquire), GENERATION, |record| {
        record.start.store(start, Relaxed);
        record.end.store(start + 0x1000, Relaxed);
        record.is_library.store(0, Relaxed);
        record.functions[0].store(0, Relaxed);
    });
    let stamp = record.stamp.load(Acquire);
    was_begun
        && is_of(stamp, GENERATION)
        && record.holds(start)
        && record.change(stamp, GENERATION, |record| record.functions[0].store(function, Relaxed))
}

/// Returns what the record says of an object: nothing, that it was not asked yet, or its own function.
fn asks(record: &Caller<1>, object: usize) -> Option<usize> {
    let (start, function) = OBJECTS[object];
    let found = record.function(start + 8, 0, GENERATION);
    assert!(matches!(found, None | Some(0)) || found == Some(function), "{found:?} for {start:#x}");
    assert!(object == 0 || !record.is_library(start + 8, GENERATION), "only the first is a library of those");
    found
}

fn read_while_it_is_taken(object: usize) {
    model(3, move || {
        let record = record();
        let reader = {
            let record = record.clone();
            thread::spawn(move || asks(&record, object))
        };
        assert!(take(&record));
        reader.join().unwrap();
        assert_eq!((asks(&record, 0), asks(&record, 1)), (None, Some(OBJECTS[1].1)));
    });
}

#[test]
fn who_asks_for_the_object_before_gets_no_function_of_the_next_one() {
    read_while_it_is_taken(0);
}

#[test]
fn who_asks_for_the_next_object_gets_no_function_of_the_one_before() {
    read_while_it_is_taken(1);
}

#[test]
fn two_that_take_a_record_at_once_do_not_mix() {
    model(3, || {
        let record = record();
        let other = {
            let record = record.clone();
            thread::spawn(move || take(&record))
        };
        let here = take(&record);
        let there = other.join().unwrap();
        assert!(here || there || asks(&record, 1) == Some(0), "one of them at least began");
        assert_eq!(asks(&record, 0), None);
    });
}
