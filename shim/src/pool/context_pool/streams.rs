//! The shim's own stream of a context, the release stream.
//!
//! Blocks go back on it without waiting for the context's work. They are filled on it, too, since a wait for it is
//! allowed during any capture. A wait for the context's work is not, and a capture may begin between the fill and the
//! wait. A fill completes before anything else is done with its block.

use super::ContextPool;
use crate::backend::memory::ReleaseStream;
use crate::pool::block::Block;
use crate::progress::activity;
use crate::progress::queries::unless_capturing;
use gpumem_abi::types::{SUCCESS, Status};
use std::sync::atomic::Ordering::*;

/// A value of [`ContextPool::release_stream`]: no thread has asked for one.
pub(in crate::pool) const UNKNOWN: usize = 0;
/// No release stream is possible here.
const NONE: usize = 1;

impl ContextPool {
    /// Returns the stream on which blocks go back without waiting, in the current context.
    pub(crate) fn release_stream(&self) -> Option<ReleaseStream> {
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
        let made = self.calls.release_stream(self.device).ok()?.unwrap_or(NONE);
        // Another thread may have been faster.
        let known = self.release_stream.compare_exchange(UNKNOWN, made, AcqRel, Acquire).err();
        known.filter(|_| made != NONE).into_iter().for_each(|_| self.calls.end_release_stream(made));
        Some(known.unwrap_or(made)).filter(|&stream| stream != NONE)
    }

    /// Returns true if blocks go back without waiting for work.
    pub(crate) fn gives_back_at_once(&self) -> bool {
        self.within(|| self.release_stream()).is_some()
    }

    /// Fills a block that no work uses, and waits for the fill. Returns false if the block is not known to be filled:
    /// the driver refused, or a capture is going on and there is no release stream.
    pub(in crate::pool) fn fill(&self, block: &Block, byte: u8) -> bool {
        let (base, bytes) = (block.base(), block.bytes() as usize);
        let status = self.within(|| match self.release_stream() {
            Some(stream) => Some(self.calls.fill_on(base, byte, bytes, stream)),
            None => unless_capturing(|| match self.calls.fill(base, byte, bytes) {
                SUCCESS => self.calls.synchronize(),
                refused => refused,
            }),
        });
        status.inspect(|&status: &Status| activity::saw(status)) == Some(SUCCESS)
    }
}
