//! Unix sockets: waiting for one, writing to one, and who is at the other end.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Returns the events of a descriptor, after `wait` at most.
pub(crate) fn events(fd: RawFd, wanted: libc::c_short, wait: Duration) -> libc::c_short {
    let mut poll = libc::pollfd { fd, events: wanted, revents: 0 };
    // Rounded up, and at most a second.
    let wait = wait.as_millis().min(1000) as i32 + i32::from(!wait.is_zero());
    // SAFETY: `poll` is a local, the one pollfd that the call is told of.
    if unsafe { libc::poll(&mut poll, 1, wait) } > 0 { poll.revents } else { 0 }
}

/// Sends without raising SIGPIPE if there is no reader. Bytes that do not fit at once have to wait for the reader.
pub(crate) fn send(peer: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: `bytes` is readable for its length, and `peer` keeps the descriptor open.
    let sent = unsafe { libc::send(peer.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// True if the other end runs as this process's user, or as root.
pub(crate) fn is_same_user(peer: &UnixStream) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED writes one ucred. `who` is one, `len` says its size, and `peer` keeps
    // the descriptor open. geteuid takes no arguments.
    unsafe {
        let fd = peer.as_raw_fd();
        let known = libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len) == 0;
        known && (who.uid == 0 || who.uid == libc::geteuid())
    }
}
