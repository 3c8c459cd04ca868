//! The socket of a service: one connection a request.

use crate::failure::{Failure, Result};
use crate::parking::files;
use crate::source::ask::peer;
use crate::source::world::World;
use gpumem_wire::command::MAX_LINE;
use gpumem_wire::share::{self, Answer, Ask};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Time for a member to send its line.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time that the service waits for a member to read an answer. A member that does not read it misses it.
const TAKE: Duration = Duration::from_millis(100);
/// Most connections that have not sent their line yet.
const MOST: usize = 256;

/// A request that came in.
pub(super) struct Asked {
    /// The process that asks, as the kernel names it.
    pub pid: u32,
    pub ask: Ask,
    pub client: Client,
}

/// The connection of a request.
pub(super) struct Client(UnixStream);

impl Client {
    /// Sends a line. A member that is gone misses it.
    pub(super) fn say(&mut self, answer: &Answer) {
        let _ = self.0.write_all(answer.line().as_bytes());
    }

    /// True if the member has gone away.
    pub(super) fn is_gone(&self) -> bool {
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut asked = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut asked, Some(&Timespec::default()));
        polled.is_ok() && asked[0].revents().intersects(ended)
    }
}

/// The name of a service, held as long as this lives.
pub(super) struct Seat {
    path: std::path::PathBuf,
    listener: Option<UnixListener>,
    _lock: File,
}

impl Seat {
    /// Takes the seat of this name and begins to listen.
    ///
    /// # Errors
    /// Another service has the name, or the socket cannot be made.
    pub(super) fn of(world: &World, name: &str) -> Result<Self> {
        let path = share::socket(&world.own_dir, name);
        let lock = world.own_dir.join(format!("{name}.lock"));
        let lock = files::lock(world, &lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error
            .kind()
        {
            ErrorKind::WouldBlock => Failure::error(format!("another service shares as {name} already"))
                .fix("it serves all members of that name; choose another name, or end it first"),
            _ => Failure::io(lock.display(), &error),
        })?;
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| Failure::io(path.display(), &error))?;
        Ok(Self { path, listener: Some(listener), _lock: lock })
    }

    /// Passes each request on, from threads of their own.
    pub(super) fn listen(&mut self, to: Sender<Asked>) {
        let Some(listener) = self.listener.take() else { return };
        let open = Arc::new(AtomicUsize::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if open.fetch_add(1, Relaxed) >= MOST {
                    open.fetch_sub(1, Relaxed);
                    continue;
                }
                let (to, open) = (to.clone(), open.clone());
                std::thread::spawn(move || {
                    if let Some(asked) = read(stream) {
                        let _ = to.send(asked);
                    }
                    open.fetch_sub(1, Relaxed);
                });
            }
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads the line of a connection. `None` if it is none of a process of this user or root.
fn read(stream: UnixStream) -> Option<Asked> {
    let (pid, uid) = peer(&stream).ok()?;
    if uid != 0 && uid != rustix::process::geteuid().as_raw() && !rustix::process::geteuid().is_root() {
        return None;
    }
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(TAKE))).ok()?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_LINE as u64)).read_line(&mut line).ok()?;
    let mut client = Client(stream);
    let refused = match Ask::parse(line.trim_end_matches('\n')) {
        Ok(ask) if pid > 0 => return Some(Asked { pid, ask, client }),
        Ok(_) => {
            "the service cannot see this process, which is in another container: start gpumem share on the host".into()
        }
        Err(why) => why,
    };
    client.say(&Answer::No(refused));
    None
}
