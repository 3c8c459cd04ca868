//! Keeps a thread that the program cancels from ending inside a hook.

use std::ffi::c_int;
use std::time::{Duration, Instant};

// The libc crate does not declare it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's and musl's pthread.h.
const DISABLE: c_int = 1;

/// Defers a cancellation of this thread while it lives. Otherwise the thread could end in a system call of ours, and
/// its unwinding would end the process on reaching Rust frames.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the call changes the calling thread's state alone and writes the state before,
        // for which `before` has room.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self(before)
    }
}

/// Sleeps within a hook, deferring cancellation.
pub(crate) fn sleep(time: Duration) {
    let _uncancelled = Uncancelled::new();
    std::thread::sleep(time);
}

/// Asks `is_over` again and again, with pauses, for `longest` at most. Returns the last answer.
pub(crate) fn poll(longest: Duration, pause: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        let over = is_over();
        if over || start.elapsed() >= longest {
            return over;
        }
        sleep(pause);
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: `self.0` is a state that this call gave `new`, and `ours` has room for the one
        // that ends. The guard is dropped on the thread that made it, which no type holds it to:
        // all guards are locals.
        unsafe { pthread_setcancelstate(self.0, &mut ours) };
    }
}
