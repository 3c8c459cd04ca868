//! A conversation with the service: a request, and the lines that answer it.

use crate::process::descriptor::Descriptor;
use crate::process::socket::{events, is_same_user, send};
use gpumem_wire::command::MAX_LINE;
use gpumem_wire::share::{Answer, Ask};
use std::io::{self, ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks if the conversation is to end.
const SLICE: Duration = Duration::from_millis(50);
/// Time for a service that ended during a conversation to start again.
const RESTARTS: Duration = Duration::from_secs(10);

/// Sends a request, and waits for the line that ends the conversation. `longest`: time without a line. `None` once
/// `ends` returns true. If the service ends meanwhile, the next one is asked.
///
/// # Errors
/// There is no service, or it says nothing.
pub(super) fn ask(socket: &Path, ask: Ask, longest: Duration, ends: &dyn Fn() -> bool) -> io::Result<Option<Answer>> {
    let mut gone: Option<Instant> = None;
    loop {
        let error = match talk(socket, ask, longest, ends) {
            Err(error) if !ends() => error,
            end => return end,
        };
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                gone.get_or_insert_with(Instant::now);
            }
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {}
            _ => return Err(error),
        }
        if gone.is_none_or(|gone| gone.elapsed() >= RESTARTS.min(longest)) {
            return Err(error);
        }
        std::thread::sleep(SLICE);
    }
}

fn talk(socket: &Path, ask: Ask, longest: Duration, ends: &dyn Fn() -> bool) -> io::Result<Option<Answer>> {
    let mut start = Instant::now();
    let descriptor = loop {
        match connect(socket) {
            // Too many members ask at once.
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < longest && !ends() => {
                std::thread::sleep(SLICE);
            }
            made => break Descriptor::new(made?),
        }
    };
    // SAFETY: `descriptor` owns the socket. ManuallyDrop keeps this stream from closing it.
    let mut stream = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(descriptor.get().ok_or_else(gone)?) });
    if !is_same_user(&stream) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    send(&stream, ask.line().as_bytes())?;
    let mut text = Vec::new();
    while !ends() {
        if start.elapsed() > longest {
            return Err(ErrorKind::TimedOut.into());
        }
        let fd = descriptor.get().ok_or_else(gone)?;
        if events(fd, libc::POLLIN, SLICE) == 0 {
            continue;
        }
        let mut piece = [0; 256];
        match stream.read(&mut piece) {
            Ok(0) => return Err(gone()),
            Ok(read) => text.extend_from_slice(&piece[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            match Answer::parse(&String::from_utf8_lossy(&line[..end])) {
                Some(Answer::Wait(_)) => start = Instant::now(),
                Some(answer) => return Ok(Some(answer)),
                None => return Err(io::Error::new(ErrorKind::InvalidData, "its answer is unknown")),
            }
        }
        if text.len() >= MAX_LINE {
            return Err(io::Error::new(ErrorKind::InvalidData, "its answer is too long"));
        }
    }
    Ok(None)
}

fn gone() -> io::Error {
    ErrorKind::UnexpectedEof.into()
}

/// Connects without waiting, unlike the standard library: a service that hangs accepts nothing.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    let path = path.as_os_str().as_bytes();
    // SAFETY: zeroes are a valid sockaddr_un. The socket is new, and nothing else owns its number. connect reads
    // `address`, a local that is as long as it is told.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(ErrorKind::InvalidFilename.into());
        }
        for (to, byte) in address.sun_path.iter_mut().zip(path) {
            *to = *byte as libc::c_char;
        }
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let bytes = size_of_val(&address) as libc::socklen_t;
        match libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
