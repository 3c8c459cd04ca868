//! The size of the kernel's pages: 4 KiB on x86-64, 4, 16 or 64 KiB on aarch64.

/// Returns the bytes of a page. A mapping of a file begins at a multiple of them in the file.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: sysconf takes a number and follows no pointer.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096).max(4096)
}
