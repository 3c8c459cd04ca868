//! `errno` of the calling thread, which is the program's. A wait for a lock sets it (EAGAIN, EINTR), and `std` leaves it so.

/// Puts errno back when it is dropped.
pub struct KeepErrno(i32);

impl KeepErrno {
    #[allow(clippy::new_without_default)]
    pub fn new() -> KeepErrno {
        // SAFETY: the C library gives the address of this thread's errno, which is valid while the thread lives.
        KeepErrno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the C library gives the address of this thread's errno, which is valid while the thread lives.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
