//! Readers whose work did not complete in time, and a flag for them.
//!
//! A thread that is told that there are none gives memory back. So a reader counts from when it was found stuck until
//! it was put back, also while a thread asks the device about it.

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering::*, lock};

pub(super) struct Stuck<T> {
    all: Mutex<All<T>>,
    /// True if there are any. Changed only under the lock.
    any: AtomicBool,
}

struct All<T> {
    here: Vec<T>,
    /// Number of readers that a thread is asking about now.
    asked: usize,
    /// Number of contexts that have ended with their readers.
    ended: u64,
}

impl<T> Default for Stuck<T> {
    fn default() -> Self {
        let all = All { here: Vec::new(), asked: 0, ended: 0 };
        Self { all: Mutex::new(all), any: AtomicBool::new(false) }
    }
}

impl<T> Stuck<T> {
    pub(super) fn len(&self) -> usize {
        let all = lock(&self.all);
        all.here.len() + all.asked
    }

    pub(super) fn add(&self, reader: T) {
        let mut all = lock(&self.all);
        all.here.push(reader);
        self.tell(&all);
    }

    /// Drops all readers, since the context is gone.
    pub(super) fn clear(&self) {
        let mut all = lock(&self.all);
        let gone = std::mem::take(&mut all.here);
        (all.asked, all.ended) = (0, all.ended + 1);
        self.tell(&all);
        drop(all);
        drop(gone);
    }

    /// Finds the readers that have completed their work, and puts them back. Returns true if none is left.
    ///
    /// `ask` separates completed readers from the others, while no lock is held. `put_back` must not take a lock that
    /// is held around this call.
    pub(super) fn settle(&self, ask: impl FnOnce(Vec<T>) -> (Vec<T>, Vec<T>), put_back: impl FnMut(T)) -> bool {
        // Acquire: a caller that learns that all are done comes after their work.
        if !self.any.load(Acquire) {
            return true;
        }
        let (asked, ended) = {
            let mut all = lock(&self.all);
            let asked = std::mem::take(&mut all.here);
            all.asked += asked.len();
            (asked, all.ended)
        };
        let count = asked.len();
        let (done, stuck) = ask(asked);
        let mut all = lock(&self.all);
        // If their context has ended meanwhile, they ended with it.
        if all.ended == ended {
            all.asked -= count;
            all.here.extend(stuck);
            done.into_iter().for_each(put_back);
        }
        self.tell(&all)
    }

    /// Updates the flag. Returns true if there are none.
    fn tell(&self, all: &MutexGuard<'_, All<T>>) -> bool {
        let any = all.asked > 0 || !all.here.is_empty();
        self.any.store(any, Release);
        !any
    }
}
