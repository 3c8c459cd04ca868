//! Memory from the kernel, and the size of its pages: 4 KiB on x86-64, 4, 16 or 64 KiB on aarch64.

use std::ffi::{c_int, c_void};

/// Returns the bytes of a page. A mapping of a file begins at a multiple of them in the file.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: sysconf takes a number and follows no pointer.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096).max(4096)
}

/// Returns a zeroed mapping of this process alone, made with further flags of `mmap`; `None` if the kernel refuses.
pub(crate) fn map(bytes: usize, flags: c_int) -> Option<*mut c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free, so no other mapping is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}
