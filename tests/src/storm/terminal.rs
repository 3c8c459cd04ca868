//! A terminal: it sends commands to a process until it is told to stop.

use super::plan::line;
use crate::differ::random::Random;
use gpumem_wire::place::SOCKET_SUFFIX;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Result of a terminal's commands.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub answered: u64,
    /// A command that had no answer in time, while the process ran.
    pub unanswered: Option<String>,
}

pub(super) struct Terminal<'a> {
    pub folder: &'a Path,
    pub seed: u64,
    pub gap: Duration,
    pub commands: &'a [&'a str],
    /// How long an answer may take.
    pub patience: Duration,
    pub stop: &'a AtomicBool,
}

impl Terminal<'_> {
    pub fn run(&self) -> Sent {
        let (mut random, mut sent) = (Random::new(self.seed), Sent::default());
        while !self.stop.load(Relaxed) && sent.unanswered.is_none() {
            let Some(socket) = self.socket() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            let line = line(&mut random, self.commands);
            match self.ask(&socket, &line) {
                Some(true) => sent.answered += 1,
                // The process has ended, or is about to.
                None => std::thread::sleep(Duration::from_millis(2)),
                Some(false) => sent.unanswered = Some(line.trim().to_owned()),
            }
            self.pause(self.gap * random.below(1000) as u32 / 1000);
        }
        sent
    }

    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.stop.load(Relaxed) {
            let left = end.saturating_duration_since(Instant::now()).min(LOOK);
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left);
        }
    }

    fn socket(&self) -> Option<PathBuf> {
        let mut all = std::fs::read_dir(self.folder).ok()?.flatten().map(|entry| entry.path());
        all.find(|path| path.to_string_lossy().ends_with(SOCKET_SUFFIX))
    }

    /// Sends a line and reads the answer to its end. `None`: nobody listens. False: no answer came in time.
    fn ask(&self, socket: &Path, line: &str) -> Option<bool> {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(LOOK)).ok()?;
        stream.write_all(line.as_bytes()).ok()?;
        let (begin, mut some, mut bytes) = (Instant::now(), [0; 4096], 0);
        loop {
            match stream.read(&mut some) {
                Ok(0) => return if bytes == 0 { None } else { Some(true) },
                Ok(read) => bytes += read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return None,
            }
            if self.stop.load(Relaxed) {
                return None;
            }
            if begin.elapsed() > self.patience {
                return Some(false);
            }
        }
    }
}
