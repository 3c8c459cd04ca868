//! Shows on a terminal how far a park is: the copy lands in the process's own memory, so that grows.

use crate::source::process::Process;
use crate::source::world::World;
use gpumem_wire::units;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two lines.
const EVERY: Duration = Duration::from_millis(500);

/// A line on stderr that is written anew while this lives.
pub(crate) struct Progress {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins, if stderr is a terminal. `bytes`: what is moved in all.
    pub(crate) fn begin(world: &World, processes: Vec<Process>, bytes: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { end: None, thread: None };
        }
        let (world, (end, ended)) = (world.clone(), mpsc::channel());
        let resident = move || -> u64 {
            let each = processes.iter().filter_map(|process| Some(process.resident(&world)?.anonymous));
            each.sum()
        };
        let thread = std::thread::spawn(move || {
            let (begun, before) = (Instant::now(), resident());
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let moved = resident().saturating_sub(before).min(bytes);
                let text =
                    format!("{} of {}, {} s", units::bytes(moved), units::bytes(bytes), begun.elapsed().as_secs());
                let _ = write!(std::io::stderr(), "\rparking: {text}\x1b[K");
            }
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        });
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end = None;
        self.thread.take().map(JoinHandle::join);
    }
}
