//! Files of `/proc/self` that the control thread reads once a second: the number of threads and the resident memory.
//!
//! The files stay open. A process may have no descriptor left when it ends, and opening one at each read would briefly
//! take the number that the program's next file should get.

use crate::process::descriptor::Descriptor;
use crate::process::own;
use gpumem_wire::place;
use std::fs::File;
use std::io::{Error, Result};

/// A file of `/proc/self` that is read again and again.
struct KeptFile {
    path: &'static str,
    file: Descriptor,
}

impl KeptFile {
    fn open(path: &'static str) -> Result<Self> {
        File::open(path).map(|file| Self { path, file: file.into() })
    }

    /// Reads the file from its beginning; opens it again if the program closed our descriptor.
    fn read<'a>(&mut self, into: &'a mut [u8]) -> Result<&'a [u8]> {
        let fd = match self.file.get() {
            Some(fd) => fd,
            None => {
                *self = Self::open(self.path)?;
                self.file.get().ok_or_else(Error::last_os_error)?
            }
        };
        // SAFETY: `into` has room for the `into.len()` bytes that are asked for. `get` has checked that the descriptor
        // still is ours.
        let read = unsafe { libc::pread(fd, into.as_mut_ptr().cast(), into.len(), 0) };
        usize::try_from(read).ok().and_then(|read| into.get(..read)).ok_or_else(Error::last_os_error)
    }
}

/// The files that the control thread reads once a second.
pub(super) struct ProcFiles {
    stat: KeptFile,
    /// `None` if it could not be opened: then the resident memory is unknown.
    statm: Option<KeptFile>,
}

impl ProcFiles {
    /// # Errors
    /// The system's: `/proc/self/stat` cannot be opened.
    pub(super) fn open() -> Result<Self> {
        Ok(Self { stat: KeptFile::open("/proc/self/stat")?, statm: KeptFile::open("/proc/self/statm").ok() })
    }

    /// Checks for other threads. Returns true if all have ended but `ours` of our own: main is then a zombie that the
    /// kernel keeps. A driver's threads count as others.
    ///
    /// # Errors
    /// The system's: the program closed our descriptor, and the file cannot be opened again, or read.
    pub(super) fn look_for_others(&mut self, ours: u32) -> Result<bool> {
        let mut stat = [0_u8; 1024];
        let stat = self.stat.read(&mut stat)?;
        // The state comes first, and 17 fields later the number of threads (proc(5)).
        let mut fields = place::stat_fields(stat);
        Ok(fields.next() == Some("Z") && fields.nth(16) == Some((1 + ours).to_string().as_str()))
    }

    /// Returns the process's resident bytes, by [`own::resident_by`]; 0 if they cannot be read.
    pub(super) fn resident(&mut self) -> (u64, u64) {
        let mut statm = [0_u8; 256];
        let read = self.statm.as_mut().and_then(|file| file.read(&mut statm).ok());
        read.map_or((0, 0), own::resident_by)
    }
}
