//! The release stream: blocks of a context go back on it without waiting for the context's work.

use super::ContextPool;
use crate::backend::memory::ReleaseStream;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// A value of [`ContextPool::release_stream`] and of the stream for fills: no thread has asked for one.
pub(in crate::pool) const UNKNOWN: usize = 0;
/// No release stream is possible here.
const NONE: usize = 1;

impl ContextPool {
    /// Returns the stream on which blocks go back without waiting, in the current context.
    pub(in crate::pool) fn release_stream(&self) -> Option<ReleaseStream> {
        match self.release_stream.load(Acquire) {
            UNKNOWN => self.new_release_stream(),
            NONE => None,
            stream => Some(stream),
        }
    }

    /// Notes, before a block is to go back, that blocks of this context cannot go back without waiting for work.
    pub(in crate::pool) fn note_no_release_stream(&self) {
        let _ = self.release_stream.compare_exchange(UNKNOWN, NONE, AcqRel, Acquire);
    }

    /// Returns true if blocks are known to go back by frees that wait for work.
    #[inline]
    pub(crate) fn frees_wait(&self) -> bool {
        self.release_stream.load(Relaxed) == NONE
    }

    /// Makes the release stream while there is memory for one: a stream takes some.
    pub(in crate::pool) fn prepare(&self) {
        if self.release_stream.load(Relaxed) == UNKNOWN {
            self.within(|| self.new_release_stream());
        }
    }

    #[cold]
    fn new_release_stream(&self) -> Option<ReleaseStream> {
        // After an error there may be memory for a stream later.
        let made = self.calls.release_stream(self.device).ok()?;
        Some(self.first_stream(&self.release_stream, made.unwrap_or(NONE))).filter(|&stream| stream != NONE)
    }

    /// Stores a stream that was made, unless another thread was faster. Returns the stored one.
    pub(super) fn first_stream(&self, place: &AtomicUsize, made: usize) -> usize {
        let known = place.compare_exchange(UNKNOWN, made, AcqRel, Acquire).err();
        known.filter(|_| made != NONE).into_iter().for_each(|_| self.calls.end_release_stream(made));
        known.unwrap_or(made)
    }

    /// Returns true if blocks go back without waiting for work.
    pub(crate) fn gives_back_at_once(&self) -> bool {
        self.within(|| self.release_stream()).is_some()
    }
}
