//! A value that is replaced as a whole while others read it. What is replaced is freed once no other thread reads.

use super::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::ptr::null_mut;

/// Replaced values that may wait for readers. If there are more, they are never freed.
pub(super) const RETIRED: usize = 32;

/// The present value, and replaced ones that some thread may still read.
pub(super) struct Published<T, const WAITING: usize = RETIRED> {
    pub(super) current: AtomicPtr<T>,
    pub(super) retired: [AtomicPtr<T>; WAITING],
}

/// Counts the calling thread as a reader until [`leave`].
pub(super) fn enter(readers: &AtomicU32) {
    readers.fetch_add(1, SeqCst);
}

/// Ends a read.
pub(super) fn leave(readers: &AtomicU32) {
    // A signal handler may have forked in the middle of a read. The child's number began at 0 then.
    let _ = readers.fetch_update(SeqCst, SeqCst, |readers| readers.checked_sub(1));
}

impl<T, const WAITING: usize> Published<T, WAITING> {
    /// Returns the present value, which stays for as long as the caller is counted as a reader. Null: there is none.
    pub(super) fn get(&self) -> *mut T {
        self.current.load(SeqCst)
    }

    /// Replaces `old` by `new`. Returns false if another thread has replaced it. The caller is counted as a reader.
    pub(super) fn replace(&self, old: *mut T, new: *mut T) -> bool {
        self.current.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }

    /// Frees replaced values, unless another thread may be reading one. The caller is counted as a reader, and does not
    /// look at them any more.
    pub(super) fn retire(&self, old: *mut T, readers: Option<&AtomicU32>, free: impl Fn(*mut T)) {
        let taken = self.retired.each_ref().map(|slot| slot.swap(null_mut(), SeqCst));
        // A reader counted from here on finds only the new value.
        let alone = readers.is_some_and(|readers| readers.load(SeqCst) == 1);
        for value in taken.into_iter().chain([old]).filter(|value| !value.is_null()) {
            if alone {
                free(value);
                continue;
            }
            // The next one tries again. If there is no room, the value stays for good.
            let keep = |slot: &AtomicPtr<T>| slot.compare_exchange(null_mut(), value, SeqCst, SeqCst).is_ok();
            let _ = self.retired.iter().any(keep);
        }
    }
}
