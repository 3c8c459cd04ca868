//! Threads of the driver's own.

use std::ffi::c_void;

/// Starts a detached thread that runs `run(argument)`; returns true if it was started. The standard library's threads
/// register a destructor of their storage, and the C library ends the process where it has no memory for that.
pub(crate) fn start(run: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> bool {
    const STACK: usize = 2 << 20;
    // SAFETY: all structs are locals, for which zeroes are valid, and the C library fills them in. `run` has the type that
    // is asked for, and knows what `argument` is. The mask is this thread's alone and is put back.
    unsafe {
        let (mut all, mut before, mut how) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        let mut thread = std::mem::zeroed();
        // Signals belong to the program's own threads.
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        libc::pthread_attr_init(&mut how);
        libc::pthread_attr_setstacksize(&mut how, STACK);
        libc::pthread_attr_setdetachstate(&mut how, libc::PTHREAD_CREATE_DETACHED);
        let started = libc::pthread_create(&mut thread, &how, run, argument) == 0;
        libc::pthread_attr_destroy(&mut how);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}
