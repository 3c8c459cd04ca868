//! Memory that nobody has had yet, handed out from its beginning. What lies behind is not touched before.

use super::atomic::{AtomicU64, Ordering::*};
use super::list::ADDRESS_BITS;

/// Pieces of one length in a row: the address of the first, and how many there are above it.
///
/// Memory that was in a run never comes back into one, so no value of a run comes back.
pub(super) struct Run(pub(super) AtomicU64);

const COUNT: u32 = ADDRESS_BITS;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// What a run was when it was looked at.
#[derive(Clone, Copy)]
pub(super) struct Seen(u64);

impl Run {
    /// So many pieces of this length in a row.
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

    /// Puts pieces in place of too few; `false` if another thread has changed the run since.
    pub(super) fn refill(&self, seen: Seen, start: *mut u8, pieces: usize) -> bool {
        let new = start as u64 | (pieces as u64) << COUNT;
        self.0.compare_exchange(seen.0, new, AcqRel, Relaxed).is_ok()
    }
}
