//! Checkpoints of processes (`cuCheckpointProcess…`), asked for by other processes.
//!
//! With `SIM_CHECKPOINT=DIR` each process with a driver has a thread of the driver's own that listens on the Unix socket
//! `DIR/PID` ([`service`]). The caller's driver sends it a request and waits for the answer ([`client`]). What the thread
//! does is in [`target`]: it stops the calls of its process ([`gate`]), and takes the device's memory away ([`parking`]).

pub mod client;
pub mod gate;
mod parking;
pub mod service;
pub(crate) mod target;

use crate::config::{Checkpoints, config};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

/// Request of one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// With a limit in milliseconds; 0 is for ever.
    Lock(u32),
    Checkpoint,
    Restore,
    Unlock,
    State,
    RestoreThread,
}

/// Bytes of a request, and of an answer.
const MESSAGE: usize = 8;

impl Request {
    fn pack(self) -> [u8; MESSAGE] {
        let (what, limit) = match self {
            Request::Lock(limit) => (0, limit),
            Request::Checkpoint => (1, 0),
            Request::Restore => (2, 0),
            Request::Unlock => (3, 0),
            Request::State => (4, 0),
            Request::RestoreThread => (5, 0),
        };
        pair(what, limit)
    }

    fn unpack(bytes: [u8; MESSAGE]) -> Option<Request> {
        let (what, limit) = split(bytes);
        Some(match what {
            0 => Request::Lock(limit),
            1 => Request::Checkpoint,
            2 => Request::Restore,
            3 => Request::Unlock,
            4 => Request::State,
            5 => Request::RestoreThread,
            _ => return None,
        })
    }
}

fn pair(first: u32, second: u32) -> [u8; MESSAGE] {
    (u64::from(first) | u64::from(second) << 32).to_le_bytes()
}

fn split(bytes: [u8; MESSAGE]) -> (u32, u32) {
    let both = u64::from_le_bytes(bytes);
    (both as u32, (both >> 32) as u32)
}

/// True if processes can be asked for checkpoints.
pub fn is_on() -> bool {
    matches!(config().checkpoints, Checkpoints::Between(_))
}

/// Calls `with` with the path of a process's socket. The path is a short one, since that of a socket has a bound.
fn with_socket<T>(pid: i32, with: impl FnOnce(PathBuf) -> std::io::Result<T>) -> Option<std::io::Result<T>> {
    let Checkpoints::Between(directory) = &config().checkpoints else { return None };
    let opened = std::fs::File::open(directory);
    Some(opened.and_then(|directory| with(PathBuf::from(format!("/proc/self/fd/{}/{pid}", directory.as_raw_fd())))))
}

/// Sends a whole message. A peer that is gone is an error and no signal.
fn send(to: &std::os::unix::net::UnixStream, message: [u8; MESSAGE]) -> std::io::Result<()> {
    // SAFETY: `message` is a local of so many bytes, and the descriptor is open.
    let sent = unsafe { libc::send(to.as_raw_fd(), message.as_ptr().cast(), MESSAGE, libc::MSG_NOSIGNAL) };
    if sent == MESSAGE as isize { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
