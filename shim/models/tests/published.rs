//! A value that is replaced while others read it, as the list of loaded objects is: no thread reads a value that was
//! freed, and none stays for ever.

mod atomic {
    pub use gpumem_models::one_order::*;
}

#[path = "../../src/stacks/modules/published.rs"]
mod published;

use atomic::{AtomicPtr, AtomicU32, Ordering::*};
use gpumem_models::{Arc, Plain, model, thread};
use published::{Published, enter, leave};
use std::ptr::null_mut;

/// Values of a run, by their numbers.
const VALUES: usize = 4;

struct Shared {
    readers: AtomicU32,
    published: Published<Plain<bool>, 2>,
    /// True while the value lives. A value that is freed is written, so loom and Miri report its readers.
    values: [Plain<bool>; VALUES],
}

impl Shared {
    /// Creates the memory with value 0.
    fn new() -> Arc<Self> {
        let retired = std::array::from_fn(|_| AtomicPtr::new(null_mut()));
        let published = Published { current: AtomicPtr::new(null_mut()), retired };
        let values = std::array::from_fn(|_| Plain::new(false));
        let shared = Arc::new(Self { readers: AtomicU32::new(0), published, values });
        shared.refreshes(0);
        shared
    }

    fn value(&self, index: usize) -> *mut Plain<bool> {
        std::ptr::from_ref(&self.values[index]).cast_mut()
    }

    /// Reads the present value.
    fn reads(&self) {
        enter(&self.readers);
        // SAFETY: null, or one of `values`, which live as long as this.
        if let Some(value) = unsafe { self.published.get().as_ref() } {
            assert!(value.read(), "it was freed");
        }
        leave(&self.readers);
    }

    /// Replaces the present value by the one of this number, as `refresh` does. Returns false if another thread was
    /// faster.
    fn refreshes(&self, new: usize) -> bool {
        enter(&self.readers);
        let old = self.published.get();
        self.values[new].write(true);
        let is_new = self.published.replace(old, self.value(new));
        if is_new {
            // SAFETY: `retire` gives values that were published: of `values`, which live as long as this.
            self.published.retire(old, Some(&self.readers), |value| unsafe { (*value).write(false) });
        } else {
            self.values[new].write(false);
        }
        leave(&self.readers);
        is_new
    }

    /// Returns how many values live.
    fn living(&self) -> usize {
        self.values.iter().filter(|value| value.read()).count()
    }
}

/// Red if `get` or the number of readers in `retire` is loaded with `Acquire`, if `leave` is relaxed, or if `replace`
/// is.
#[test]
fn no_thread_reads_a_value_that_was_freed() {
    model(3, || {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.reads();
                shared.reads();
            })
        };
        assert!(shared.refreshes(1));
        other.join().unwrap();
        assert_eq!(shared.readers.load(Relaxed), 0);
        assert!(shared.refreshes(2));
        assert_eq!(shared.living(), 1, "a replaced value stays");
    });
}

/// Two threads replace a value at once, and a third one reads.
#[test]
fn two_that_replace_a_value_free_all_but_the_last() {
    model(1, || {
        let shared = Shared::new();
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.refreshes(1))
        };
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || shared.reads())
        };
        let here = shared.refreshes(2);
        assert!(other.join().unwrap() || here);
        reader.join().unwrap();
        assert!(shared.refreshes(3));
        assert_eq!(shared.living(), 1, "a replaced value stays");
    });
}
