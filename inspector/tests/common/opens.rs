//! Which files of a directory are opened, by whom ever: inotify. A look (O_PATH) is no opening.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub struct Opens(OwnedFd);

impl Opens {
    /// Watches the files of a directory that are there.
    pub fn of(dir: &Path) -> Self {
        // SAFETY: inotify_init1 takes a number and makes a descriptor.
        let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
        // SAFETY: `fd` was made just above, and `path` is a CString that lives until the call returns.
        let added = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) };
        assert!(added >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: inotify_init1 made `fd` above and nothing else has its number, so it is its only owner.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The names of those that were opened since the last time.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut buffer = [0_u8; 64 << 10];
        loop {
            // SAFETY: the call writes no more than the buffer's length into it.
            let got = unsafe { libc::read(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            if got <= 0 {
                return names;
            }
            let mut at = 0;
            while at < got as usize {
                // An inotify_event: four words, and a name of as many bytes as the last of them says.
                let len = u32::from_ne_bytes(buffer[at + 12..at + 16].try_into().unwrap()) as usize;
                let name = &buffer[at + 16..at + 16 + len];
                let end = name.iter().position(|&byte| byte == 0).unwrap_or(len);
                names.insert(String::from_utf8_lossy(&name[..end]).into_owned());
                at += 16 + len;
            }
        }
    }
}
