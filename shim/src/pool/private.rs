//! Device memory that the program never knows of, for a moment: what is found to refer to it is the driver's own.

use super::context_pool::ContextPool;
use super::{Pool, of};
use crate::progress::activity;
use crate::shim::Shim;
use gpumem_abi::types::SUCCESS;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;
use std::time::Duration;

/// Nothing is taken where less than this is free: the program may need it.
const LEAST_FREE: u64 = 256 << 20;
/// A context has to rest, since memory is given back by a call that may wait for its work. So long it is waited for.
const RESTS_WITHIN: Duration = Duration::from_millis(200);

/// Runs `f` while there are blocks of these sizes, at the addresses that it is given, which only the driver and `f` know.
///
/// # Errors
/// Why there are none.
pub fn with_private_blocks<R>(
    shim: &'static Shim,
    sizes: &[u64],
    f: impl FnOnce(&[Range<u64>]) -> R,
) -> Result<R, &'static str> {
    let pool = of(Vendor::Cuda).ok_or("gpumem has no pool here")?;
    if activity::broken() {
        return Err("a context is broken: every call of it answers an error");
    }
    if shim.registry.streams.capturing() > 0 {
        return Err("a stream is being captured");
    }
    let owners = pool.owners();
    let owner = owners.first().ok_or("there is no context")?;
    let _hold = owner.hold().ok_or("its context is ending")?;
    if !owner.rests_within(RESTS_WITHIN) {
        return Err("its context is at work");
    }
    pool.with_blocks_of(owner, sizes, f)
}

impl Pool {
    fn with_blocks_of<R>(
        &self,
        owner: &'static ContextPool,
        sizes: &[u64],
        f: impl FnOnce(&[Range<u64>]) -> R,
    ) -> Result<R, &'static str> {
        if owner.within(|| owner.calls.free_bytes()).is_none_or(|free| free < LEAST_FREE) {
            return Err("the device has little memory left");
        }
        let mut blocks = Vec::with_capacity(sizes.len());
        owner.within(|| {
            for &bytes in sizes {
                blocks.extend(owner.calls.device(bytes as usize).ok().map(|addr| addr..addr + bytes));
            }
        });
        let result = (blocks.len() == sizes.len()).then(|| f(&blocks));
        owner.within(|| {
            let stream = owner.release_stream();
            for block in &blocks {
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
        result.ok_or("the driver gives no memory")
    }
}
