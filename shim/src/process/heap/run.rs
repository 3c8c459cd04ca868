//! Memory that was never handed out, given out from its beginning. Memory behind that point is not touched.

use super::atomic::{AtomicU64, Ordering::*};
use super::list::ADDRESS_BITS;

/// Consecutive pieces of one length: the address of the first, and above it their number.
///
/// Memory that leaves a run never returns to one, so a run never has the same value twice.
pub(super) struct Run(pub(super) AtomicU64);

const COUNT: u32 = ADDRESS_BITS;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// A run's value at one look.
#[derive(Clone, Copy)]
pub(super) struct Seen(u64);

impl Run {
    /// Takes `pieces` consecutive pieces of `bytes` each.
    ///
    /// # Errors
    /// There are fewer.
    pub(super) fn take(&self, bytes: usize, pieces: usize) -> Result<*mut u8, Seen> {
        let mut seen = self.0.load(Acquire);
        loop {
            let Some(left) = (seen >> COUNT).checked_sub(pieces as u64) else { return Err(Seen(seen)) };
            let start = seen & ADDRESS;
            let rest = (start + (pieces * bytes) as u64) | left << COUNT;
            match self.0.compare_exchange_weak(seen, rest, AcqRel, Acquire) {
                Ok(_) => return Ok(start as *mut u8),
                Err(now) => seen = now,
            }
        }
    }

    /// Replaces a run that has too few pieces; returns `false` if another thread has changed the run since.
    pub(super) fn refill(&self, seen: Seen, start: *mut u8, pieces: usize) -> bool {
        let new = start as u64 | (pieces as u64) << COUNT;
        self.0.compare_exchange(seen.0, new, AcqRel, Relaxed).is_ok()
    }
}
