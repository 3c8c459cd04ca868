//! The kernel's report on a process or a thread: `/proc/PID/stat`, one line, and `/proc/PID/status`, one field a line.

use super::world::World;
use gpumem_wire::place;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The line of `/proc/PID/stat`, cheaper than [`Status`].
pub(super) struct Stat {
    /// Name of the command.
    pub(super) name: String,
    /// True if it ended and waits for its parent. A process goes on without its first thread, if that alone ended.
    pub(super) is_zombie: bool,
    /// Stopped by a signal (SIGSTOP, Ctrl-Z) or by its tracer.
    pub(super) is_stopped: bool,
    pub(super) parent: u32,
    pub(super) mark: Mark,
}

/// Two equal marks of a pid say that it is the same process, and that it had no page fault between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) start_ticks: u64,
    /// Page faults so far: without and with a read from a disk.
    faults: [u64; 2],
    is_kernel: bool,
}

/// `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;

impl Stat {
    /// `None` if there is no such process.
    pub(super) fn of(world: &World, pid: u32) -> Option<Self> {
        let line = read(&world.proc.join(pid.to_string()).join("stat"), u64::MAX).ok()?;
        let start_ticks = place::start_ticks(&line)?;
        let line = String::from_utf8_lossy(&line);
        // The name in parentheses may hold any character.
        let (head, tail) = line.rsplit_once(')')?;
        let fields: Vec<&str> = tail.split_ascii_whitespace().take(18).collect();
        let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
        let is_kernel = number(6)? & KERNEL_THREAD != 0;
        let mark = Mark { start_ticks, faults: [number(7)?, number(9)?], is_kernel };
        let (name, threads) = (head.split_once('(')?.1.to_owned(), number(17)?);
        let is_zombie = fields[0].starts_with(['Z', 'X']) && threads <= 1;
        let is_stopped = fields[0].starts_with(['T', 't']);
        Some(Self { name, is_zombie, is_stopped, parent: fields[1].parse().ok()?, mark })
    }
}

impl Mark {
    /// True if the kernel counts the process's page faults: a program cannot start without one.
    pub(super) fn counts_faults(&self) -> bool {
        self.is_kernel || self.faults != [0; 2]
    }
}

pub(super) struct Status(String);

impl Status {
    /// `None` if there is no such process, or its status may not be read.
    pub(super) fn of(world: &World, pid: u32) -> Option<Self> {
        let status = read(&world.proc.join(pid.to_string()).join("status"), u64::MAX).ok()?;
        Some(Self(String::from_utf8_lossy(&status).into_owned()))
    }

    /// Returns the value of a field; the field's name ends with a colon.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }
}

/// Bytes that most files of /proc about one process have at most.
const USUAL: usize = 4096;

/// Reads at most `most` bytes of such a file. Unlike `std::fs::read` it does not ask for the length, which the kernel
/// gives as 0.
///
/// # Errors
/// Those of the system.
pub(super) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process whose first thread ended is a zombie by its state, and by its other threads it is none.
    #[test]
    fn a_process_without_its_first_thread_lives() {
        let dir = tempfile::tempdir().unwrap();
        let world = World { proc: dir.path().into(), ..World::here(None) };
        std::fs::create_dir(dir.path().join("7")).unwrap();
        let is_zombie = |state: char, threads: u32| {
            let line = format!("7 (a) b) {state} 1 7 7 0 -1 0 9 0 9 0 0 0 0 0 20 0 {threads} 0 50 8192 12");
            std::fs::write(dir.path().join("7/stat"), line).unwrap();
            Stat::of(&world, 7).unwrap().is_zombie
        };
        assert_eq!(
            [('Z', 1), ('Z', 3), ('S', 1), ('X', 1)].map(|(state, threads)| is_zombie(state, threads)),
            [true, false, false, true]
        );
    }
}
