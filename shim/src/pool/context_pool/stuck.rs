//! Readers whose work did not complete in time.
//!
//! A reader counts from when it was found stuck until it was put back, also while a thread asks the device about it. So
//! a thread that is told that there are none comes after the work of all.

use super::sync::{Mutex, lock};

pub(super) struct Stuck<T>(Mutex<All<T>>);

struct All<T> {
    here: Vec<T>,
    /// Number of readers that a thread is asking about now.
    asked: usize,
    /// Number of contexts that have ended with their readers.
    ended: u64,
}

impl<T> All<T> {
    fn len(&self) -> usize {
        self.here.len() + self.asked
    }
}

impl<T> Default for Stuck<T> {
    fn default() -> Self {
        Self(Mutex::new(All { here: Vec::new(), asked: 0, ended: 0 }))
    }
}

impl<T> Stuck<T> {
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    pub(super) fn add(&self, reader: T) {
        lock(&self.0).here.push(reader);
    }

    /// Drops all readers, since the context is gone.
    pub(super) fn clear(&self) {
        let gone = {
            let mut all = lock(&self.0);
            (all.asked, all.ended) = (0, all.ended + 1);
            std::mem::take(&mut all.here)
        };
        drop(gone);
    }

    /// Finds the readers that have completed their work, and puts them back. Returns true if none is left.
    ///
    /// `ask` separates completed readers from the others, while no lock is held. `put_back` must not take a lock that
    /// is held around this call.
    pub(super) fn settle(&self, ask: impl FnOnce(Vec<T>) -> (Vec<T>, Vec<T>), put_back: impl FnMut(T)) -> bool {
        let (asked, ended) = {
            let mut all = lock(&self.0);
            let asked = std::mem::take(&mut all.here);
            all.asked += asked.len();
            (asked, all.ended)
        };
        let count = asked.len();
        if count == 0 {
            return self.len() == 0;
        }
        let (done, stuck) = ask(asked);
        let mut all = lock(&self.0);
        // If their context has ended meanwhile, they ended with it.
        if all.ended == ended {
            all.asked -= count;
            all.here.extend(stuck);
            done.into_iter().for_each(put_back);
        }
        all.len() == 0
    }
}
