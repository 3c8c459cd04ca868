//! The calling thread's `errno`, which belongs to the program: hooks leave it unchanged.

/// Restores errno on drop. Code that makes system calls outside of bookkeeping holds one. Bookkeeping restores errno
/// itself.
pub(crate) struct KeepErrno(i32);

impl KeepErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the C library gives the address of this thread's errno, which is valid while the
        // thread lives.
        KeepErrno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the C library gives the address of this thread's errno, which is valid while the
        // thread lives.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
