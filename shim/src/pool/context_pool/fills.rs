//! Fills of blocks. A fill completes before anything else is done with its block.
//!
//! Fills have their own stream, since a wait for that stream is allowed during any capture. A wait for the context's
//! work is not, and a capture may begin between the fill and the wait.

use super::ContextPool;
use super::release_stream::UNKNOWN;
use crate::pool::block::Block;
use crate::progress::activity;
use crate::progress::queries::unless_capturing;
use gpumem_abi::types::{SUCCESS, Status, Stream};
use std::sync::atomic::Ordering::*;

impl ContextPool {
    /// Fills a block that no work uses, and waits for the fill. Returns false if the block is not known to be filled:
    /// the driver refused, or a capture is going on and there is no stream for fills.
    pub(in crate::pool) fn fill(&self, block: &Block, byte: u8) -> bool {
        let (base, bytes) = (block.base(), block.bytes() as usize);
        let status = self.within(|| match self.fill_stream() {
            Some(stream) => Some(self.calls.fill_on(base, byte, bytes, stream)),
            None => unless_capturing(|| match self.calls.fill(base, byte, bytes) {
                SUCCESS => self.calls.synchronize(),
                refused => refused,
            }),
        });
        status.inspect(|&status: &Status| activity::saw(status)) == Some(SUCCESS)
    }

    /// Returns the stream for fills, in the current context.
    fn fill_stream(&self) -> Option<Stream> {
        let known = self.fill_stream.load(Acquire);
        if known != UNKNOWN {
            return Some(known as Stream);
        }
        let made = self.calls.fill_stream().ok().flatten()?;
        Some(self.first_stream(&self.fill_stream, made as usize) as Stream)
    }
}
