//! Writes to a descriptor that may be a pipe without a reader.

use std::mem::MaybeUninit;

/// Not a local: to fill one, a compiler may use instructions of later processors ([`super::processor`]).
static NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

/// Writes a whole line. Without a reader nothing happens: a SIGPIPE would be ours and kill a program that never writes
/// to stderr itself.
pub(super) fn to_stderr(line: &[u8]) {
    // SAFETY: all pointers are to locals, which the calls fill. The mask is this thread's and is put back. A SIGPIPE is
    // taken only if none was pending before, so it is the one that this write raised.
    unsafe {
        // A full pipe is not waited for either.
        let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        if libc::poll(&mut poll, 1, 0) != 1 {
            return;
        }
        let [mut pipe, mut before, mut pending] = [const { MaybeUninit::<libc::sigset_t>::uninit() }; 3];
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let masked = libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr()) == 0;
        let wrote = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if wrote < 0 && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 0 {
            libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &NOW);
        }
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
}
