//! The caller's side: one request to the driver of a process.

use super::{MESSAGE, Request, send, split, with_socket};
use crate::error::{Error, Result};
use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;

/// Asks the driver of a process, and waits for its answer.
///
/// # Errors
/// The code that it answers; 801 if there are no checkpoints; that of [`no_driver`] if the process has none, or ends
/// meanwhile.
pub fn ask(pid: i32, request: Request) -> Result<i32> {
    let connected = with_socket(pid, |path| {
        loop {
            match UnixStream::connect(&path) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    });
    let mut stream = connected.ok_or(Error::NOT_SUPPORTED)?.map_err(|_| no_driver(pid))?;
    let mut answer = [0; MESSAGE];
    send(&stream, request.pack()).and_then(|()| stream.read_exact(&mut answer)).map_err(|_| no_driver(pid))?;
    match split(answer) {
        (0, value) => Ok(value as i32),
        (code, _) => Err(Error(code)),
    }
}

/// The error for a process without a driver, and for a number that no process has (both on an H200, driver 580).
fn no_driver(pid: i32) -> Error {
    // SAFETY: kill takes two numbers, and signal 0 is none.
    let is_there = unsafe { libc::kill(pid, 0) } == 0;
    if is_there { Error::NOT_INITIALIZED } else { Error::OPERATING_SYSTEM }
}
