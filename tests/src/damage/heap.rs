//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// As a program's allocator it counts the most bytes that were live at once.
pub struct Counting;

// SAFETY: both methods pass their arguments on to System, which keeps the contract. Counting does
// not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: our caller keeps GlobalAlloc's contract for `layout`, and System asks for the
        // same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: our caller gives a block that `alloc` gave for this layout. That block is
        // System's.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the bytes that are live, and starts a new maximum from there.
pub fn begin() -> usize {
    let now = NOW.load(Relaxed);
    MOST.store(now, Relaxed);
    now
}

/// The most bytes that were live at once since [`begin`], which said `before`.
pub fn most(before: usize) -> u64 {
    MOST.load(Relaxed).saturating_sub(before) as u64
}
