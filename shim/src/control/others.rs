//! Whether the control thread is the only one left. Main has then ended, as a zombie that the kernel keeps, and so have
//! all other threads. Threads that a driver keeps count as others.

use crate::process::descriptor::Descriptor;
use gpumem_wire::place;
use std::fs::File;
use std::io::{Error, Result};

/// What the kernel says about the process. The file stays open, because a process may have no descriptor left when it
/// ends.
pub(super) struct Others(Descriptor);

impl Others {
    /// # Errors
    /// The system's.
    pub(super) fn new() -> Result<Self> {
        File::open("/proc/self/stat").map(|file| Self(file.into()))
    }

    /// Looks whether all threads have ended but `ours` of our own.
    ///
    /// # Errors
    /// The system's: the program closed our descriptor, and the file cannot be opened again, or read.
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
        // First comes the state, and 17 fields later the number of threads (proc(5)).
        let mut fields = place::stat_fields(stat);
        Ok(fields.next() == Some("Z") && fields.nth(16) == Some((1 + ours).to_string().as_str()))
    }
}
