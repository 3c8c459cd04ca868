//! `/proc/PID/status`: the kernel's report on a process or a thread, one field a line.

use super::world::World;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(super) struct Status(String);

impl Status {
    /// `None` if there is no such process, or its status may not be read.
    pub(super) fn of(world: &World, pid: u32) -> Option<Self> {
        let status = read(&world.proc.join(pid.to_string()).join("status")).ok()?;
        Some(Self(String::from_utf8_lossy(&status).into_owned()))
    }

    /// Returns the value of a field; the field's name ends with a colon.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }
}

/// Bytes that most files of /proc about one process have at most.
const USUAL: usize = 4096;

/// Reads such a file. Unlike `std::fs::read` it does not ask for the length, which the kernel gives as 0.
///
/// # Errors
/// Those of the system.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
