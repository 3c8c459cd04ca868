//! `/proc/PID/status`: the kernel's report on a process or a thread, one field a line.

use super::world::World;

pub(super) struct Status(String);

impl Status {
    /// `None` if there is no such process, or its status may not be read.
    pub(super) fn of(world: &World, pid: u32) -> Option<Self> {
        let status = std::fs::read(world.proc.join(pid.to_string()).join("status")).ok()?;
        Some(Self(String::from_utf8_lossy(&status).into_owned()))
    }

    /// Returns the value of a field; the field's name ends with a colon.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
    }
}
