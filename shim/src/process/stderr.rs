//! Lines for people on the program's stderr.

use super::cancel::Uncancelled;

/// One line on stderr, in one write. If nobody reads there, nothing happens: a SIGPIPE would be ours
/// and kill a program that never writes to stderr itself.
pub(crate) fn say(line: &dyn std::fmt::Display) {
    let line = format!("gpumem: {line}\n");
    let _uncancelled = Uncancelled::new();
    // SAFETY: all pointers are to locals. The mask is this thread's and is put back. A SIGPIPE is
    // taken only if none was pending before, so it is the one that this write raised.
    unsafe {
        // Nor is a full pipe waited for, or a line put into a file that has stderr's number by now.
        let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        if !super::load::stderr_is_the_same() || libc::poll(&mut poll, 1, 0) != 1 {
            return;
        }
        let (mut pipe, mut before, mut pending) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let masked = libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) == 0;
        let wrote = libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        if wrote < 0 && libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}
