//! Device memory that the program never knows of, for a moment: what is found to refer to it is the driver's own.
//!
//! The program is to notice nothing. A request of its own that runs out has the memory back first ([`give_back`]), and who
//! ends the context does not wait for longer than whoever looks at the blocks takes to see that ([`Private::is_wanted`]).

use super::Pool;
use super::context_pool::{ContextPool, PoolHold};
use crate::process::cancel;
use crate::progress::activity;
use crate::progress::queries::capturing;
use gpumem_abi::types::{Device, SUCCESS};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

/// Nothing is taken where less than this is free: the program may need it.
const LEAST_FREE: u64 = 256 << 20;
/// Where memory goes back by a call that waits for the work of its context, that has to rest. So long it is waited for.
const RESTS_WITHIN: Duration = Duration::from_millis(200);
/// How long a request waits for the blocks, and between two looks: they are back after a piece of memory was looked through.
const LONGEST: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(1);

/// The device that blocks are taken from, by its number + 1.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Somebody needs that memory.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Has private blocks of a device go back now; whether there were any.
pub(crate) fn give_back(device: Device) -> bool {
    let is_taken = || TAKEN.load(SeqCst) == device as u64 + 1;
    if !is_taken() {
        return false;
    }
    WANTED.store(true, SeqCst);
    for _ in 0..LONGEST.as_millis() / NAP.as_millis() {
        if !is_taken() {
            break;
        }
        cancel::sleep(NAP);
    }
    true
}

/// Blocks that nobody but the driver and whoever has this knows of.
pub(crate) struct Private<'a> {
    owner: &'static ContextPool,
    hold: &'a PoolHold<'a>,
    /// Where each lies that is there now.
    blocks: Vec<Range<u64>>,
}

impl Private<'_> {
    /// Somebody needs the memory, or the context.
    pub(crate) fn is_wanted(&self) -> bool {
        WANTED.load(SeqCst) || self.hold.is_wanted()
    }

    pub(crate) fn blocks(&self) -> &[Range<u64>] {
        &self.blocks
    }

    fn take(&mut self, sizes: &[u64]) -> Result<(), &'static str> {
        for &bytes in sizes {
            if self.is_wanted() {
                return Err("its memory is needed");
            }
            let block = self.owner.within(|| self.owner.calls.device(bytes as usize));
            let addr = block.map_err(|_| "the driver gives no memory")?;
            self.blocks.push(addr..addr + bytes);
        }
        Ok(())
    }

    /// Gives back those of the blocks that are not to be kept.
    fn keep(&mut self, mut is_kept: impl FnMut(usize) -> bool) {
        let owner = self.owner;
        let mut index = 0;
        let (kept, go) = std::mem::take(&mut self.blocks).into_iter().partition(|_| {
            index += 1;
            is_kept(index - 1)
        });
        self.blocks = kept;
        let go: Vec<Range<u64>> = go;
        // A context that ended against all patience has taken its blocks along.
        if go.is_empty() || owner.gone.load(SeqCst) {
            return;
        }
        owner.within(|| {
            let stream = owner.release_stream();
            for block in go {
                let freed = match stream {
                    Some(stream) => owner.calls.free_on(block.start, stream),
                    None => owner.calls.free(block.start),
                };
                // What does not go back is the driver's, and goes with the context.
                if freed != SUCCESS {
                    activity::saw(freed);
                }
            }
            if let Some(stream) = stream {
                activity::saw(owner.calls.pass(stream));
            }
        });
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        self.keep(|_| false);
        TAKEN.store(0, SeqCst);
    }
}

impl Pool {
    /// Runs `f` while there are blocks of these sizes in a context. Every other one is another's address that was freed just
    /// before: what the driver makes new and what it has used before may look different.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn with_private_blocks<R>(
        &self,
        owner: &'static ContextPool,
        sizes: &[u64],
        f: impl FnOnce(&Private<'_>) -> R,
    ) -> Result<R, &'static str> {
        if activity::broken() {
            return Err(activity::WHY_BROKEN);
        }
        if capturing() {
            return Err("a stream is being captured");
        }
        let hold = owner.hold().filter(|_| !self.is_ending()).ok_or("its context is ending")?;
        if !owner.gives_back_at_once() && !owner.rests_within(RESTS_WITHIN) {
            return Err("its context is at work");
        }
        if owner.within(|| owner.calls.free_bytes()).is_none_or(|free| free < LEAST_FREE) {
            return Err("the device has little memory left");
        }
        WANTED.store(false, SeqCst);
        TAKEN.store(owner.device as u64 + 1, SeqCst);
        let mut private = Private { owner, hold: &hold, blocks: Vec::with_capacity(sizes.len()) };
        private.take(sizes)?;
        let again: Vec<u64> = sizes.iter().copied().skip(1).step_by(2).collect();
        private.keep(|index| index % 2 == 0);
        private.take(&again)?;
        Ok(f(&private))
    }
}
