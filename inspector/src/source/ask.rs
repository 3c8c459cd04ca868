//! Asking a running process: one line over the control socket that lies beside its ledger.
//!
//! The socket may be anybody's: connecting, writing and reading together take no longer than [`PATIENCE`], and who
//! serves it has to be the process itself.

use super::folder::Folder;
use super::liveness::{Life, Status};
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

/// How long to wait: the control thread answers between two samples, at once. A process that does not answer is
/// stopped.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time until the next try, where so many clients wait already that no more can.
const NEXT_TRY: Duration = Duration::from_millis(20);

/// One part of so many of a patience is for the answer: the process may begin late, and its answer takes its time.
const FOR_THE_ANSWER: u32 = 5;

/// For how many milliseconds a process may work on a request whose answer is waited for so long.
pub(crate) fn longest_work_ms(patience: Duration) -> u64 {
    u64::try_from((patience - patience / FOR_THE_ANSWER).as_millis()).unwrap_or(u64::MAX)
}

/// What kept a request from its answer.
#[derive(Debug)]
enum Trouble {
    /// It was not sent.
    Unsent(io::Error),
    /// The socket is served by somebody else.
    Stranger { pid: u32, uid: u32 },
    /// It was sent, and maybe begun.
    Unanswered(io::Error),
}

/// Who is asked.
pub(crate) struct Whom<'a> {
    pub pid: u32,
    pub name: String,
    pub process: Option<&'a Process>,
    pub status: &'a Status,
    /// Its ledger: the socket lies beside it.
    pub ledger: &'a Path,
}

/// Sends a request to the process of a ledger; the text of its answer.
///
/// # Errors
/// When it is gone, has no control thread, does not answer, or refuses.
pub(crate) fn ask(whom: &Whom, request: &Request) -> Result<String> {
    ask_patiently(whom, request, PATIENCE)
}

/// The same, for an answer that may take so long.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_patiently(whom: &Whom, request: &Request, patience: Duration) -> Result<String> {
    let answer = asked(whom, request, patience, Length::Line)?;
    Ok(answer.split_once(' ').map_or(String::new(), |(_, text)| text.to_owned()))
}

/// The same, for an answer that takes longer and has many lines: all of it, its first word included. What is longer than
/// `most` bytes is cut.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_within(whom: &Whom, request: &Request, patience: Duration, most: usize) -> Result<String> {
    asked(whom, request, patience, Length::Lines(most))
}

/// What an answer has.
#[derive(Clone, Copy)]
enum Length {
    Line,
    /// So many bytes at most, up to the end.
    Lines(usize),
}

fn asked(whom: &Whom, request: &Request, patience: Duration, length: Length) -> Result<String> {
    let who = format!("pid {} ({})", whom.pid, whom.name);
    let Some(process) = whom.process.filter(|_| whom.status.life == Life::Running) else {
        return Err(Failure::nothing(format!("{who} is not running: {}", whom.status.text()))
            .fix("only running processes take commands"));
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
            Failure::error(format!("{silent}: nothing was sent, so nothing will happen")).fix(stopped)
        }
        Trouble::Unsent(error) if error.kind() == ErrorKind::ConnectionRefused => no_socket(),
        Trouble::Unsent(error) => Failure::io(format!("cannot ask {who}"), &error),
        // A command that has not begun when its sender is gone is not carried out.
        Trouble::Unanswered(error) if late(&error) => Failure::error(format!(
            "{silent}: if it has begun the command, it may still finish it; else nothing will happen"
        ))
        .fix(stopped),
        Trouble::Unanswered(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Failure::error(format!("{who} was asked and gave no answer"))
                .fix("it may have ended meanwhile; what it left can still be read")
        }
        Trouble::Unanswered(error) => Failure::io(format!("{who} was asked and gave no answer"), &error),
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
        ("error", why) => Err(Failure::error(format!("it refused: {why}"))),
        _ => Err(Failure::error("the answer did not come from a libgpumem.so")),
    })
}

/// Whether the other side hung up before it read the request: it waits for a line for a fraction of a second, and a machine
/// with much to do may not have let this process send one by then. Nothing was begun, so the request may be sent again.
fn is_unread(error: &io::Error) -> bool {
    // A socket that is closed with bytes unread resets the connection.
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

/// Connects to the socket that was looked at, whatever has its name now, and however long its path is.
fn connect(socket: &Seen, until: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket.by_descriptor())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // More clients wait than the socket takes. A blocking connect would wait too, without an end.
            Err(rustix::io::Errno::AGAIN) if Instant::now() < until => std::thread::sleep(NEXT_TRY),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The pid and user of whoever listens. 0 for a process of a namespace that cannot be seen from here.
fn peer(stream: &UnixStream) -> io::Result<(u32, u32)> {
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

/// What is left of the time; an error where nothing is.
fn left(until: Instant) -> io::Result<Duration> {
    Some(until.saturating_duration_since(Instant::now()))
        .filter(|left| !left.is_zero())
        .ok_or(ErrorKind::TimedOut.into())
}

/// Without the SIGPIPE that a write brings where the other side has hung up.
fn send(stream: &UnixStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
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

/// A line, without its end, or all lines; or what came before the other side hung up.
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
        // Many clients wait already, so a process listens.
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
