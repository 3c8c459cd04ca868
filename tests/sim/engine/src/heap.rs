//! The simulator's own memory. Rust aborts when there is none, and a test of what lies between the program and
//! the driver could not tell who died: the simulator ends the process by an exit status of its own instead.

use std::alloc::{GlobalAlloc, Layout, System};

/// How a process ends whose simulator finds no memory.
pub const EXHAUSTED: i32 = 97;

/// The allocator of a simulated library.
pub struct Heap;

// SAFETY: every method passes its arguments on to System, which keeps the contract. `some` ends the
// process instead of answering null, which is allowed as well.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: our caller keeps GlobalAlloc's contract for `layout`, and System asks for the
        // same.
        some(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: our caller keeps GlobalAlloc's contract for `layout`, and System asks for the
        // same.
        some(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: our caller keeps GlobalAlloc's contract. `ptr` is System's, because every block
        // of ours is.
        some(unsafe { System.realloc(ptr, layout, size) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: our caller keeps GlobalAlloc's contract. `ptr` is System's, because every block
        // of ours is.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn some(ptr: *mut u8) -> *mut u8 {
    if ptr.is_null() { exhausted() } else { ptr }
}

/// Ends the process, since the simulator cannot go on for want of memory or threads.
pub fn exhausted() -> ! {
    let said = b"sim: no host memory or thread\n";
    // SAFETY: `said` is a literal of `said.len()` bytes. _exit takes a number and never returns.
    unsafe {
        libc::write(2, said.as_ptr().cast(), said.len());
        libc::_exit(EXHAUSTED);
    }
}
