//! Tests the counts of `activity` with loom, in every order of threads, and with every value that a weak memory may
//! show them.

mod atomic {
    pub use gpumem_models::atomic::*;

    /// Like the shim's own version without a locked instruction: loom takes `SeqCst` of anything but a fence for less
    /// than it is.
    pub fn raise_before(count: &AtomicU64, alone: bool) {
        if alone {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}

#[path = "../../src/progress/activity/counts.rs"]
mod counts;

use atomic::{AtomicU64, AtomicUsize, Ordering::*, fence};
use counts::{Counts, Shard};
use gpumem_models::{Arc, thread};

type Small = Counts<3, 2>;

fn counts() -> Arc<Small> {
    Arc::new(Counts {
        shards: std::array::from_fn(|_| Shard { begun: AtomicU64::new(0), done: AtomicU64::new(0) }),
        used: AtomicUsize::new(0),
    })
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    gpumem_models::model(3, run);
}

/// Runs a thread with open work while another one asks. Any work that the asking thread can see is in the count.
fn open_is_never_quiet(threads: [usize; 2]) {
    model(move || {
        let (counts, open) = (counts(), Arc::new(AtomicUsize::new(0)));
        let workers = threads.map(|number| {
            let (counts, open) = (counts.clone(), open.clone());
            thread::spawn(move || {
                let _open = counts.open(number);
                open.fetch_add(1, Relaxed);
            })
        });
        let before = open.load(Relaxed) as u64;
        // Like a reader that has looked at something else of the program.
        fence(SeqCst);
        if let Some(total) = counts.if_none_open() {
            assert!(total >= before, "{total} where {before} were seen to have begun");
        }
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!((counts.if_none_open(), counts.if_none_open_but_of(0)), (Some(2), Some(2)));
    });
}

#[test]
fn threads_with_lines_of_their_own() {
    open_is_never_quiet([0, 1]);
}

#[test]
fn threads_that_share_a_line() {
    open_is_never_quiet([2, 3]);
}

/// The reader finds that all is quiet, and publishes it. Work that begins without seeing this must be in the reader's
/// count: one of the two sees the other.
#[test]
fn one_sees_the_other() {
    model(|| {
        let (counts, said) = (counts(), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (counts, said) = (counts.clone(), said.clone());
            thread::spawn(move || {
                let _open = counts.open(0);
                said.load(Relaxed)
            })
        };
        said.store(1, Relaxed);
        // The reader's own fence comes between this and its look at what has begun.
        let quiet = counts.if_none_open();
        let seen = worker.join().unwrap();
        assert!(seen == 1 || quiet != Some(0), "submitted unseen, and did not see");
    });
}

/// Work submitted before something that the reader has seen is in its count.
#[test]
fn what_came_before_is_counted() {
    model(|| {
        let (counts, flag) = (counts(), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (counts, flag) = (counts.clone(), flag.clone());
            thread::spawn(move || {
                drop(counts.open(0));
                flag.store(1, Release);
                drop(counts.open(0));
            })
        };
        if flag.load(Acquire) == 1 {
            // Without a fence of the reader.
            assert!(counts.begun() >= 1);
            assert_ne!(counts.if_none_open(), Some(0));
        }
        worker.join().unwrap();
        assert_eq!(counts.if_none_open(), Some(2));
    });
}
