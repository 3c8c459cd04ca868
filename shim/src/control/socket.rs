//! The control socket: checks who speaks, reads one whole line from each client, and replies.
//!
//! The listening thread has other work. It checks the client's user before it reads anything. A client has [`PATIENCE`]
//! for its line and as much to take the reply.

use crate::process::descriptor::Descriptor;
use crate::process::socket::{events, is_same_user, send};
use crate::shim::Shim;
use gpumem_wire::command::MAX_LINE;
use std::io::{self, ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Maximum time that a client may take for its whole line.
const PATIENCE: Duration = Duration::from_millis(200);

/// Answers a client. If that is not possible, returns the client and the reason.
type Later = dyn FnOnce(UnixStream) -> Result<(), (UnixStream, String)>;

/// Answer to a client.
pub(super) enum Reply {
    Line(String),
    /// Another thread answers the client when it has the answer.
    Later(Box<Later>),
}

/// The listening socket.
pub(super) struct Socket(Descriptor);

impl Socket {
    pub(super) fn new(shim: &Shim) -> io::Result<Self> {
        let path = shim.socket_path();
        let listener = match UnixListener::bind(&path) {
            // A socket of a dead process with this number.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            made => made?,
        };
        // The directory keeps other users out. If the user named a directory that does not, the file's mode does.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self(Descriptor::new(listener.into())))
    }

    /// Waits at most `wait` for a client, and runs its command by `carry_out`.
    pub(super) fn serve(&self, wait: Duration, carry_out: impl FnOnce(&str) -> Reply) {
        let Some(fd) = self.0.get() else {
            // The program closed our descriptor. Only samples are left to do.
            return std::thread::sleep(wait);
        };
        if events(fd, libc::POLLIN, wait) == 0 || self.0.get().is_none() {
            return;
        }
        // SAFETY: `self.0` owns the descriptor and has checked that it still is ours. ManuallyDrop keeps this listener
        // from closing it.
        let listener = ManuallyDrop::new(unsafe { UnixListener::from_raw_fd(fd) });
        match listener.accept() {
            Ok((client, _)) => drop(answer(client, carry_out)),
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn answer(mut client: UnixStream, carry_out: impl FnOnce(&str) -> Reply) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    // The user is checked before anything is read: input of another user is not examined.
    let reply = match is_same_user(&client) {
        false => "error this process belongs to another user".to_owned(),
        true => match line(&mut client)? {
            // The client was told that its command failed, so the command is not carried out now.
            Ok(_) if has_hung_up(&client) => return Ok(()),
            Ok(line) => match carry_out(&line) {
                Reply::Line(reply) => reply,
                Reply::Later(begin) => {
                    client.set_read_timeout(None)?;
                    match begin(client) {
                        Ok(()) => return Ok(()),
                        Err((asker, why)) => {
                            client = asker;
                            format!("error {why}")
                        }
                    }
                }
            },
            Err(why) => format!("error {why}: nothing was done"),
        },
    };
    send(&client, format!("{reply}\n").as_bytes())
}

/// Reads a whole line, without its end; otherwise returns why there is none.
fn line(client: &mut UnixStream) -> io::Result<Result<String, String>> {
    let deadline = Instant::now() + PATIENCE;
    // There is room for the end of the line, too.
    let mut line = [0; MAX_LINE];
    let mut len = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(format!("no whole line came in {} ms", PATIENCE.as_millis())));
        }
        client.set_read_timeout(Some(left))?;
        len += match client.read(&mut line[len..]) {
            Ok(0) => return Ok(Err("the line has no end".into())),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        if let Some(end) = line[..len].iter().position(|&byte| byte == b'\n') {
            return Ok(Ok(String::from_utf8_lossy(&line[..end]).into_owned()));
        }
        if len == line.len() {
            return Ok(Err(format!("the line is longer than {MAX_LINE} bytes")));
        }
    }
}

/// True if the client is gone, so that an answer would not be read.
fn has_hung_up(client: &UnixStream) -> bool {
    events(client.as_raw_fd(), 0, Duration::ZERO) & (libc::POLLHUP | libc::POLLERR) != 0
}

#[cfg(test)]
#[path = "../../../tests/src/skipped.rs"]
#[allow(dead_code, unreachable_pub)] // Other tests use the rest.
mod skipped;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;

    fn asked(said: &[u8], leaves: impl FnOnce(&UnixStream)) -> (Option<String>, String) {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        client.write_all(said).expect("it fits");
        leaves(&client);
        let mut carried_out = None;
        let answered = answer(server, |line| {
            carried_out = Some(line.to_owned());
            Reply::Line("ok".into())
        });
        let mut reply = String::new();
        if answered.is_ok() {
            let _ = client.read_to_string(&mut reply);
        }
        (carried_out, reply)
    }

    #[test]
    fn a_whole_line_is_carried_out_and_answered() {
        let all = (Some("mark here".to_owned()), "ok\n".to_owned());
        assert_eq!(asked(b"mark here\n", |_| ()), all);
        assert_eq!(asked(b"mark here\nmark there\n", |_| ()), all, "one line of each client");
        assert_eq!(asked(b"mark here\n", |client| client.shutdown(Shutdown::Write).expect("open")), all);
    }

    #[test]
    fn an_answer_may_come_from_another_thread() {
        for (works, said) in [(true, "later\n"), (false, "error not now\n")] {
            let (mut client, server) = UnixStream::pair().expect("a pair");
            client.write_all(b"references 1\n").expect("it fits");
            let begin = move |mut asker: UnixStream| match works {
                true => {
                    std::thread::spawn(move || asker.write_all(b"later\n").expect("it is read"));
                    Ok(())
                }
                false => Err((asker, "not now".to_owned())),
            };
            answer(server, |_| Reply::Later(Box::new(begin))).expect("an answer");
            let mut reply = String::new();
            client.read_to_string(&mut reply).expect("an answer");
            assert_eq!(reply, said);
        }
    }

    #[test]
    fn what_is_no_whole_line_is_refused() {
        let refused = |said: &[u8], why: &str| {
            let (carried_out, reply) = asked(said, |client| drop(client.shutdown(Shutdown::Write)));
            assert_eq!(carried_out, None);
            assert!(reply.starts_with("error ") && reply.contains(why), "{reply}");
        };
        refused(b"set POOL_MAX 1", "no end");
        refused(&[b'x'; MAX_LINE + 100], "longer than 1024 bytes");
        let (carried_out, reply) = asked(b"set POOL_MAX 1", |_| ());
        assert_eq!(carried_out, None);
        assert!(reply.contains("no whole line"), "{reply}");
    }

    #[test]
    fn who_hung_up_is_not_obeyed() {
        let (client, server) = UnixStream::pair().expect("a pair");
        (&client).write_all(b"trim\n").expect("it fits");
        drop(client);
        answer(server, |_| panic!("its sender is gone")).expect("nothing to do");
    }

    /// The kernel tells each end of a socket which user made the other. A thread of root can have another user
    /// meanwhile.
    #[test]
    fn a_stranger_is_refused_before_anything_is_read() {
        // SAFETY: geteuid takes no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return skipped::skipped("only root can make a socket as somebody else", skipped::ROOT);
        }
        let pair = std::thread::spawn(|| {
            // SAFETY: the system call changes the user of this thread alone, which ends with the closure.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            assert_eq!(changed, 0, "{}", io::Error::last_os_error());
            UnixStream::pair().expect("a pair")
        });
        let (mut client, server) = pair.join().expect("a pair of somebody else's");
        let mut same = server.try_clone().expect("a descriptor");
        client.write_all(b"trim\n").expect("it fits");
        answer(server, |_| panic!("a stranger was obeyed")).expect("an answer");
        let (mut reply, mut unread) = ([0; 100], [0; 100]);
        let len = client.read(&mut reply).expect("an answer");
        assert_eq!(&reply[..len], b"error this process belongs to another user\n");
        let len = same.read(&mut unread).expect("what was sent");
        assert_eq!(&unread[..len], b"trim\n", "it was read");
    }
}
