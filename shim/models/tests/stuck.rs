//! Readers that did not complete in time. A thread that is told that all of them have completed may free the memory
//! that they read.

mod sync {
    pub use gpumem_models::Mutex;
    pub use gpumem_models::atomic::{AtomicBool, Ordering};

    #[cfg(not(miri))]
    pub use loom::sync::MutexGuard;
    #[cfg(miri)]
    pub use std::sync::MutexGuard;

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

#[path = "../../src/pool/context_pool/stuck.rs"]
mod stuck;

use gpumem_models::{Arc, Plain, model, thread};
use stuck::Stuck;
use sync::{AtomicBool, Mutex, Ordering::*, lock};

/// A reader's work: the device reads the memory, and reports it.
struct Work {
    memory: Plain<u64>,
    done: AtomicBool,
}

impl Work {
    fn new(done: bool) -> Arc<Self> {
        Arc::new(Self { memory: Plain::new(0), done: AtomicBool::new(done) })
    }

    fn complete(&self) {
        self.memory.write(1);
        self.done.store(true, Release);
    }
}

type Readers = Stuck<Arc<Work>>;

fn settle(stuck: &Readers) -> bool {
    stuck.settle(|all| all.into_iter().partition(|work| work.done.load(Acquire)), |_| ())
}

fn stuck_with(works: &[&Arc<Work>]) -> Arc<Readers> {
    let stuck = Arc::new(Stuck::default());
    works.iter().for_each(|work| stuck.add((*work).clone()));
    stuck
}

/// Two threads ask at once, while the device is at work.
#[test]
fn memory_goes_back_only_once_the_device_is_done_with_it() {
    model(3, || {
        let work = Work::new(false);
        let stuck = stuck_with(&[&work]);
        let device = {
            let work = work.clone();
            thread::spawn(move || work.complete())
        };
        let other = {
            let stuck = stuck.clone();
            thread::spawn(move || settle(&stuck))
        };
        if settle(&stuck) {
            assert!(work.done.load(Relaxed), "another thread was just asking the device");
            // It was freed: loom and Miri report it if the device may still read it.
            work.memory.write(2);
        }
        device.join().unwrap();
        other.join().unwrap();
        assert!(settle(&stuck), "the device is done, and each reader was put back");
        assert_eq!(stuck.len(), 0);
    });
}

/// Another thread has asked already: what it saw as done comes before what follows here.
#[test]
fn who_hears_that_all_are_done_comes_after_it() {
    model(3, || {
        let work = Work::new(false);
        let stuck = stuck_with(&[&work]);
        let other = {
            let (stuck, work) = (stuck.clone(), work.clone());
            thread::spawn(move || {
                work.complete();
                settle(&stuck)
            })
        };
        // Without this loom does not try the order in which the other thread is done first.
        thread::yield_now();
        if settle(&stuck) {
            work.memory.write(2);
        }
        other.join().unwrap();
    });
}

/// A reader is found stuck while another thread asks about an earlier one.
#[test]
fn a_reader_that_is_added_meanwhile_counts() {
    model(3, || {
        let (first, second) = (Work::new(true), Work::new(false));
        let stuck = stuck_with(&[&first]);
        let other = {
            let stuck = stuck.clone();
            thread::spawn(move || settle(&stuck))
        };
        stuck.add(second.clone());
        assert!(!settle(&stuck), "the second one has not completed");
        other.join().unwrap();
        assert!(!settle(&stuck) && stuck.len() == 1);
        second.complete();
        assert!(settle(&stuck));
    });
}

/// A context ends, and its readers with it, while a thread asks about one. The pool may then serve another context.
#[test]
fn no_reader_of_a_context_that_ended_comes_back() {
    model(3, || {
        let spare = Arc::new(Mutex::new(0));
        let stuck = stuck_with(&[&Work::new(true), &Work::new(false)]);
        let other = {
            let (stuck, spare) = (stuck.clone(), spare.clone());
            thread::spawn(move || {
                let ask = |all: Vec<Arc<Work>>| all.into_iter().partition(|work| work.done.load(Acquire));
                stuck.settle(ask, |_| *lock(&spare) += 1);
            })
        };
        stuck.clear();
        *lock(&spare) = 0;
        // Of the next context.
        stuck.add(Work::new(false));
        other.join().unwrap();
        assert_eq!((*lock(&spare), stuck.len()), (0, 1));
        assert!(!settle(&stuck));
    });
}
