//! A count that is raised while something goes on, and lowered however that ends.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// While this lives, a count is one higher.
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
