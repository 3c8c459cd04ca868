//! Threads that the program cancels.

use std::ffi::c_int;
use std::time::Duration;

// The libc crate has no declaration of it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's and musl's pthread.h.
const DISABLE: c_int = 1;

/// While it lives, a cancellation of this thread waits: a system call of ours would else be where it ends, and its
/// unwinding ends the process where it meets Rust's.
pub struct Uncancelled(c_int);

impl Uncancelled {
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: changes this thread's state and writes the one before.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self(before)
    }
}

/// Sleeps within a hook: there, too, a cancelled thread may not end.
pub fn sleep(time: Duration) {
    let _uncancelled = Uncancelled::new();
    std::thread::sleep(time);
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: puts back what was found.
        unsafe { pthread_setcancelstate(self.0, &mut ours) };
    }
}
