//! Handles that we give out: addresses in a reserved range, so that two comparisons tell a handle from any other
//! number.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes between two handles.
pub(crate) const STRIDE: usize = 64;
/// Maximum number of handles of a kind in a process at a time.
pub(crate) const HANDLES: usize = 1 << 20;

/// Returns the index of a handle if it lies in the range that begins at `start`.
#[inline(always)]
pub(crate) fn index_in(start: &AtomicUsize, handle: usize) -> Option<u32> {
    let start = start.load(Relaxed);
    let offset = handle.wrapping_sub(start);
    (offset < HANDLES * STRIDE && start != 0).then_some((offset / STRIDE) as u32)
}
