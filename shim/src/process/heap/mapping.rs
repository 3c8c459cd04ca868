//! Makes, advises and frees mappings of the allocator.

use super::super::errno::KeepErrno;
use super::super::{own, page};
use std::ptr::null_mut;

/// Returns a zeroed mapping; null if the kernel refuses.
pub(super) fn map(bytes: usize) -> *mut u8 {
    let _errno = KeepErrno::new();
    let Some(at) = page::map(bytes, 0) else { return null_mut() };
    // SAFETY: this is the mapping that was just made.
    unsafe { use_small_pages(at, bytes) };
    own::add(at.cast(), bytes);
    at.cast()
}

/// Asks the kernel for small pages in a mapping that may stay mostly untouched. With huge pages, touching one word
/// would take 2 MiB.
///
/// # Safety
/// The range is a mapping that belongs to the caller.
pub(crate) unsafe fn use_small_pages(at: *mut libc::c_void, bytes: usize) {
    let _errno = KeepErrno::new();
    // SAFETY: our caller vouches for the range, whose contents the advice does not change. Kernels without huge pages
    // refuse.
    unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
}

/// Unmaps a mapping. If the kernel refuses that, too, the memory is lost.
///
/// # Safety
/// The range is a mapping of `map`, or the end of one, and nothing refers to it.
pub(super) unsafe fn unmap(at: *mut u8, bytes: usize) {
    let _errno = KeepErrno::new();
    own::remove(at, bytes);
    // SAFETY: our caller vouches that this is a mapping of `map`, or the end of one, to which no
    // one refers.
    unsafe { libc::munmap(at.cast(), bytes) };
}
