//! Device memory that is taken for a moment and that the program never knows of. Every word that refers to this memory
//! was written by the driver. So it shows how the driver's words look.
//!
//! The program must not notice. If one of its requests runs out, this memory goes back first
//! ([`crate::pool::private`]). A thread that ends the context waits only until the thread that reads the blocks has
//! seen it waiting ([`Private::is_wanted`]).

use crate::pool::Pool;
use crate::pool::context_pool::{ContextPool, PoolHold};
use crate::pool::private::Taken;
use crate::progress::activity;
use crate::progress::queries::capturing;
use gpumem_abi::types::SUCCESS;
use std::ops::Range;
use std::time::Duration;

/// No memory is taken if less than this is free, because the program may need it.
const LEAST_FREE: u64 = 256 << 20;
/// Longest wait for an idle context, if memory goes back by a call that waits for the context's work.
const IDLE_WITHIN: Duration = Duration::from_millis(200);

/// Blocks that only the driver and the holder of this value know of.
pub(super) struct Private<'a> {
    context_pool: &'static ContextPool,
    hold: &'a PoolHold<'a>,
    /// The range of each block that currently exists.
    blocks: Vec<Range<u64>>,
    /// Until they have gone back.
    taken: Taken,
}

impl Private<'_> {
    /// Returns true if a thread needs the memory, or wants to end the context.
    pub(super) fn is_wanted(&self) -> bool {
        self.taken.is_wanted() || self.hold.is_wanted()
    }

    pub(super) fn blocks(&self) -> &[Range<u64>] {
        &self.blocks
    }

    fn take(&mut self, sizes: &[u64]) -> Result<(), &'static str> {
        for &bytes in sizes {
            if self.is_wanted() {
                return Err("its memory is needed");
            }
            let block = self.context_pool.within(|| self.context_pool.calls.device(bytes as usize));
            let addr = block.map_err(|_| "the driver gives no memory")?;
            self.blocks.push(addr..addr + bytes);
        }
        Ok(())
    }

    /// Gives back these blocks.
    fn free(&self, go: Vec<Range<u64>>) {
        let context_pool = self.context_pool;
        // If the context ended although it was held, its blocks ended with it.
        if go.is_empty() || context_pool.is_gone() {
            return;
        }
        context_pool.within(|| {
            let stream = context_pool.release_stream();
            for block in go {
                let freed = match stream {
                    Some(stream) => context_pool.calls.free_on(block.start, stream),
                    None => context_pool.calls.free(block.start),
                };
                // A block whose free failed stays with the driver until the context ends.
                if freed != SUCCESS {
                    activity::saw(freed);
                }
            }
            if let Some(stream) = stream {
                activity::saw(context_pool.calls.pass(stream));
            }
        });
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.blocks);
        self.free(all);
    }
}

/// Runs `f` while there are blocks of these sizes in a context. Every other block is at an address that was freed just
/// before, because the driver's words for new memory and for reused memory may look different.
///
/// # Errors
/// The reason why there are no blocks.
pub(super) fn with_private_blocks<R>(
    pool: &Pool,
    context_pool: &'static ContextPool,
    sizes: &[u64],
    f: impl FnOnce(&Private<'_>) -> R,
) -> Result<R, &'static str> {
    if activity::broken() {
        return Err(activity::WHY_BROKEN);
    }
    if capturing() {
        return Err("a stream is being captured");
    }
    let hold = context_pool.hold().filter(|_| !pool.releaser.switch().is_ending()).ok_or("its context is ending")?;
    if !context_pool.gives_back_at_once() && !context_pool.idle_within(IDLE_WITHIN) {
        return Err("its context is at work");
    }
    if context_pool.within(|| context_pool.calls.free_bytes()).is_none_or(|free| free < LEAST_FREE) {
        return Err("the device has little memory left");
    }
    let (blocks, taken) = (Vec::with_capacity(sizes.len()), Taken::of(context_pool.device));
    let mut private = Private { context_pool, hold: &hold, blocks, taken };
    private.take(sizes)?;
    let again: Vec<u64> = sizes.iter().copied().skip(1).step_by(2).collect();
    let mut number = 0;
    let every_second = private.blocks.extract_if(.., |_| {
        number += 1;
        number % 2 == 0
    });
    let go = every_second.collect();
    private.free(go);
    private.take(&again)?;
    Ok(f(&private))
}
