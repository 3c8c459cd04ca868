//! Whether the control thread is the only one left: main has ended, as a zombie that the kernel keeps, and so have
//! all others. Those that a driver keeps count.

use crate::process::descriptor::Descriptor;
use gpumem_wire::place;
use std::fs::File;
use std::io::{Error, Result};

/// What the kernel says of the process. It stays open: a process may have no descriptor left when it ends.
pub(super) struct Others(Descriptor);

impl Others {
    /// # Errors
    /// The system's.
    pub(super) fn new() -> Result<Self> {
        File::open("/proc/self/stat").map(|file| Self(file.into()))
    }

    /// Looks whether all of them have ended, but so many of ours.
    ///
    /// # Errors
    /// The system's: the program closed what is not its own, and it cannot be opened again, or read.
    pub(super) fn look(&mut self, ours: u32) -> Result<bool> {
        let fd = match self.0.get() {
            Some(fd) => fd,
            None => {
                *self = Self::new()?;
                self.0.get().ok_or_else(Error::last_os_error)?
            }
        };
        let mut stat = [0_u8; 1024];
        // SAFETY: `stat` is a local with room for the `stat.len()` bytes that are asked for. `get`
        // has checked that the descriptor still is ours.
        let read = unsafe { libc::pread(fd, stat.as_mut_ptr().cast(), stat.len(), 0) };
        let stat = usize::try_from(read).ok().and_then(|read| stat.get(..read)).ok_or_else(Error::last_os_error)?;
        // The state, and 17 fields on the number of threads (proc(5)).
        let mut fields = place::stat_fields(stat);
        Ok(fields.next() == Some("Z") && fields.nth(16) == Some((1 + ours).to_string().as_str()))
    }
}
