//! A count that is raised during an operation and lowered at its end, also when unwinding.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Raises a count by one while it lives.
pub(crate) struct Raised<'a>(&'a AtomicU32);

impl<'a> Raised<'a> {
    pub(crate) fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
