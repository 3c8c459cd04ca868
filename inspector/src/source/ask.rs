//! Requests to a running process: one line over the control socket beside its ledger.
//!
//! Any user may own the socket. So connecting, writing and reading together take at most [`PATIENCE`], and the process
//! itself must serve it.

use super::folder::Folder;
use super::liveness::Status;
use super::process::{Process, Users};
use super::seen::{LastLink, Seen};
use crate::failure::{Failure, Result};
use gpumem_wire::command::{MAX_LINE, Request};
use gpumem_wire::place::{LEDGER_SUFFIX, SOCKET_SUFFIX};
use rustix::fs::FileType;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for an answer. The control thread answers at once, between two samples; a process that does not answer
/// is stopped.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Time until the next try if the socket's queue of clients is full.
const NEXT_TRY: Duration = Duration::from_millis(20);

/// One part in this many of the patience is reserved for the answer: the process may begin late, and sending takes
/// time.
const FOR_THE_ANSWER: u32 = 5;

/// Milliseconds that a process may work on a request if its sender waits for `patience`.
pub(crate) fn longest_work_ms(patience: Duration) -> u64 {
    u64::try_from((patience - patience / FOR_THE_ANSWER).as_millis()).unwrap_or(u64::MAX)
}

/// Reason why a request got no answer.
#[derive(Debug)]
enum Trouble {
    /// The request was not sent.
    Unsent(io::Error),
    /// Another process serves the socket.
    Stranger { pid: u32, uid: u32 },
    /// The request was sent, and the process may have begun it.
    Unanswered(io::Error),
}

/// The process that is asked.
pub(crate) struct Whom<'a> {
    pub pid: u32,
    pub name: String,
    pub process: Option<&'a Process>,
    pub status: &'a Status,
    /// Its ledger. The socket lies beside it.
    pub ledger: &'a Path,
}

/// Sends a request to the process of a ledger and returns its answer.
///
/// # Errors
/// The process is gone, has no control thread, does not answer, or refuses.
pub(crate) fn ask(whom: &Whom, request: &Request) -> Result<String> {
    ask_patiently(whom, request, PATIENCE)
}

/// As [`ask`], with a longer patience.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_patiently(whom: &Whom, request: &Request, patience: Duration) -> Result<String> {
    let answer = asked(whom, request, patience, Length::Line)?;
    Ok(answer.split_once(' ').map_or(String::new(), |(_, text)| text.to_owned()))
}

/// As [`ask_patiently`], for an answer of many lines: returns all of it, the first word included. An answer longer than
/// `most` bytes is cut.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_within(whom: &Whom, request: &Request, patience: Duration, most: usize) -> Result<String> {
    asked(whom, request, patience, Length::Lines(most))
}

/// Extent of an answer.
#[derive(Clone, Copy)]
enum Length {
    Line,
    /// All lines up to the end, at most this many bytes.
    Lines(usize),
}

fn asked(whom: &Whom, request: &Request, patience: Duration, length: Length) -> Result<String> {
    let who = format!("pid {} ({})", whom.pid, whom.name);
    let Some(process) = whom.process.filter(|_| whom.status.is_here()) else {
        return Err(Failure::nothing(format!("{who} is not running: {}", whom.status.text()))
            .fix("this command needs a running process"));
    };
    let path = socket_path(whom.ledger);
    let no_socket = || {
        Failure::error(format!("{who} takes no commands: there is no control socket {}", path.display()))
            .fix("it was started with GPUMEM_CONTROL=0, or the socket could not be made: gpumem events says why")
    };
    let socket = Seen::named(&path, LastLink::Keep).map_err(|_| no_socket())?;
    if socket.kind() != FileType::Socket || !process.users.believe(socket.owner()) {
        return Err(Failure::error(format!("{} is not the socket of {who}", path.display())));
    }
    let line = request.line().map_err(Failure::error)?;
    let late = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    let silent = format!("{who} did not answer in {} s", (patience.as_secs_f64() * 10.0).round() / 10.0);
    let stopped = "it is stopped, frozen or starved of processor time";
    exchange(&socket, (process.pid, process.users), &line, patience, length).map_err(|trouble| match trouble {
        Trouble::Stranger { pid, uid } => Failure::error(format!(
            "{} is not the socket of {who}: it is served by pid {pid} of user {uid}",
            path.display()
        )),
        Trouble::Unsent(error) if late(&error) => {
            Failure::error(format!("{silent}: the request was not sent")).fix(stopped)
        }
        Trouble::Unsent(error) if error.kind() == ErrorKind::ConnectionRefused => no_socket(),
        Trouble::Unsent(error) => Failure::io(format!("cannot ask {who}"), &error),
        // The process does not begin a command whose sender is gone.
        Trouble::Unanswered(error) if late(&error) => Failure::error(format!(
            "{silent}: if it has begun the command, it may still finish it; else nothing will happen"
        ))
        .fix(stopped),
        Trouble::Unanswered(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Failure::error(format!("{who} did not answer the request"))
                .fix("it may have ended; its ledger can still be read")
        }
        Trouble::Unanswered(error) => Failure::io(format!("{who} did not answer the request"), &error),
    })?
}

fn exchange(
    socket: &Seen,
    server: (u32, Users),
    line: &str,
    patience: Duration,
    length: Length,
) -> std::result::Result<Result<String>, Trouble> {
    let until = Instant::now() + patience;
    let answer = loop {
        match once(socket, server, line, until, length) {
            Err(Trouble::Unsent(error) | Trouble::Unanswered(error)) if is_unread(&error) && Instant::now() < until => {
                std::thread::sleep(NEXT_TRY);
            }
            answer => break answer?,
        }
    };
    if answer.is_empty() {
        return Err(Trouble::Unanswered(ErrorKind::UnexpectedEof.into()));
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let first = answer.lines().next().unwrap_or_default();
    Ok(match first.split_once(' ').unwrap_or((first, "")) {
        ("ok", _) => Ok(answer),
        ("error", why) => Err(Failure::error(format!("the process refuses it: {why}"))),
        _ => Err(Failure::error("the answer did not come from a libgpumem.so")),
    })
}

/// True if the other side hung up before it read the request, so that the request may be sent again. The process waits
/// a fraction of a second for a line, and on a busy machine this process may send too late.
fn is_unread(error: &io::Error) -> bool {
    // Closing a socket with unread bytes resets the connection.
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

fn once(
    socket: &Seen,
    server: (u32, Users),
    line: &str,
    until: Instant,
    length: Length,
) -> std::result::Result<Vec<u8>, Trouble> {
    let mut stream = connect(socket, until).map_err(Trouble::Unsent)?;
    let (pid, uid) = peer(&stream).map_err(Trouble::Unsent)?;
    if pid != server.0 || !server.1.believe(uid) {
        return Err(Trouble::Stranger { pid, uid });
    }
    send(&stream, line.as_bytes(), until).map_err(Trouble::Unsent)?;
    receive(&mut stream, until, length).map_err(Trouble::Unanswered)
}

/// Connects to the socket that was looked up, even if its name now stands for another file, and however long its path
/// is.
fn connect(socket: &Seen, until: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket.by_descriptor())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // The socket's queue of clients is full. A blocking connect would wait without end.
            Err(rustix::io::Errno::AGAIN) if Instant::now() < until => std::thread::sleep(NEXT_TRY),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the pid and user of the process at the other end, as the kernel names them. The pid is 0 for a process in a
/// namespace that cannot be seen from here.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED writes one ucred. `peer` is one, `len` says its size, and `stream` keeps
    // the descriptor open.
    let answer = unsafe {
        let into = (&raw mut peer).cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut len)
    };
    if answer == 0 { Ok((peer.pid as u32, peer.uid)) } else { Err(io::Error::last_os_error()) }
}

/// Returns the time left; an error if there is none.
fn left(until: Instant) -> io::Result<Duration> {
    Some(until.saturating_duration_since(Instant::now()))
        .filter(|left| !left.is_zero())
        .ok_or(ErrorKind::TimedOut.into())
}

/// Sends without the SIGPIPE that a write causes after the other side has hung up.
pub(crate) fn send(stream: &UnixStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads a line without its end, or all lines. Returns what came so far if the other side hangs up.
fn receive(stream: &mut UnixStream, until: Instant, length: Length) -> io::Result<Vec<u8>> {
    let (most, mut piece) = match length {
        Length::Line => (MAX_LINE, vec![0; 1]),
        Length::Lines(most) => (most, vec![0; 64 << 10]),
    };
    let mut answer = Vec::new();
    while answer.len() < most {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(_) if matches!(length, Length::Line) && piece[0] == b'\n' => break,
            Ok(read) => answer.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// True if a process listens on a socket.
pub(crate) fn answers(folder: &Folder, name: &OsStr) -> bool {
    let Ok(socket) = Seen::at(folder.dir(), Path::new(name), LastLink::Keep) else { return false };
    if socket.kind() != FileType::Socket {
        return false;
    }
    match connect(&socket, Instant::now()) {
        Ok(_) => true,
        // The queue of clients is full, so a process listens.
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn socket_path(ledger: &Path) -> PathBuf {
    let path = ledger.as_os_str().as_bytes();
    let stem = path.strip_suffix(LEDGER_SUFFIX.as_bytes()).unwrap_or(path);
    OsString::from_vec([stem, OsStr::new(SOCKET_SUFFIX).as_bytes()].concat()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// Listens in this process: drops the first connections, then answers.
    fn served(drops: usize) -> std::result::Result<Result<String>, Trouble> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..drops {
                    drop(listener.accept().expect("a client"));
                }
                let (mut client, _) = listener.accept().expect("a client");
                let mut line = String::new();
                BufReader::new(&client).read_line(&mut line).expect("a line");
                client.write_all(b"ok done\n").expect("an answer");
            });
            let socket = Seen::named(&path, LastLink::Keep).expect("it is there");
            let server = (std::process::id(), Users::one(socket.owner()));
            exchange(&socket, server, "request\n", Duration::from_secs(60), Length::Line)
        })
    }

    #[test]
    fn a_request_that_nobody_read_is_sent_again() {
        for drops in [0, 1, 3] {
            let answer = served(drops).expect("it is answered").expect("it is carried out");
            assert_eq!(answer, "ok done");
        }
    }
}
