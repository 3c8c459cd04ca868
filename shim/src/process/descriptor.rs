//! File descriptors of ours in the program's process.
//!
//! They are kept away from the program's numbers, and a descriptor of the program is never taken for ours. Programs
//! close descriptors that they did not open (daemons, `closefrom`), and the number may come back as a file or socket of
//! the program.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Lowest number for our descriptors, if the process's limit allows it.
const FIRST: RawFd = 512;

/// A descriptor and the identity of its file when it was opened.
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    identity: Option<(u64, u64)>,
}

impl Descriptor {
    /// Moves a descriptor to a high number, out of the program's way.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let fd = duplicate(fd.as_fd()).unwrap_or(fd);
        Self { identity: identity(fd.as_raw_fd()), fd: ManuallyDrop::new(fd) }
    }

    /// Returns the descriptor if it still refers to the same file.
    pub(crate) fn get(&self) -> Option<RawFd> {
        let fd = self.fd.as_raw_fd();
        (self.identity.is_some() && identity(fd) == self.identity).then_some(fd)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: the descriptor still is ours, and `self.fd` is not used again: it is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl From<File> for Descriptor {
    fn from(file: File) -> Self {
        Self::new(file.into())
    }
}

/// Makes room for high numbers in the kernel's table, which never shrinks.
pub(super) fn make_room(fd: BorrowedFd) {
    drop(duplicate(fd));
}

/// Returns a descriptor of the same file with a high number; `None` if the process may have none.
fn duplicate(fd: BorrowedFd) -> Option<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes numbers, and `fd` is open because it is borrowed.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) };
    // SAFETY: fcntl has just made `high` and no one else has its number, so the OwnedFd is its only owner.
    (high >= 0).then(|| unsafe { OwnedFd::from_raw_fd(high) })
}

/// Returns device and inode of a descriptor.
pub(crate) fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: zeroes are a valid stat, and fstat fills it. A descriptor that is not open gives an
    // error.
    unsafe {
        let mut what: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut what) == 0).then_some((what.st_dev, what.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_became_another_file_is_not_ours() {
        let ours = Descriptor::from(File::open("/dev/null").unwrap());
        let fd = ours.get().expect("it is open");
        assert!(fd >= FIRST);
        let other = File::open("/proc/self/stat").unwrap();
        // SAFETY: dup2 takes two numbers. The test closes and opens under our number on purpose, as
        // a program may that knows nothing of us.
        unsafe { libc::dup2(other.as_raw_fd(), fd) };
        assert_eq!(ours.get(), None);
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_not_closed() {
        let ours = Descriptor::from(File::open("/dev/null").unwrap());
        let fd = ours.get().expect("it is open");
        let other = File::open("/proc/self/stat").unwrap();
        // SAFETY: dup2 takes two numbers. The test closes and opens under our number on purpose, as
        // a program may that knows nothing of us.
        unsafe { libc::dup2(other.as_raw_fd(), fd) };
        drop(ours);
        assert_eq!(identity(fd), identity(other.as_raw_fd()), "it is the program's, and stays open");
        // SAFETY: dup2 has made this descriptor for the test, and no one else closes it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}
