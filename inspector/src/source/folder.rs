//! A directory of ledgers, held open: reads and removals happen in this very directory, even if another one takes its
//! name meanwhile.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An open directory of ledgers.
#[derive(Debug)]
pub(crate) struct Folder {
    pub path: PathBuf,
    dir: OwnedFd,
    owner: u32,
}

/// Identity of the file that a name stood for when it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    pub owner: u32,
    kind: FileType,
    pub blocks: u64,
    /// Time of the last write.
    pub written: SystemTime,
}

impl FileIdentity {
    fn of(stat: &rustix::fs::Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            owner: stat.st_uid,
            kind: FileType::from_raw_mode(stat.st_mode),
            blocks: stat.st_blocks as u64,
            written: UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0)),
        }
    }

    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of(&fstat(file)?))
    }

    pub(crate) fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// Returns the device and inode.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// True if it is the same file, even if it was written since.
    fn is_still(&self, now: &Self) -> bool {
        (self.identity(), self.owner, self.kind) == (now.identity(), now.owner, now.kind)
    }
}

impl Folder {
    /// Opens a directory. A link is followed only if `follow` is set.
    ///
    /// # Errors
    /// Those of the system; also if it is no directory.
    pub(crate) fn open(path: &Path, follow: bool) -> io::Result<Self> {
        let links = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links;
        let dir = openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        let owner = fstat(&dir)?.st_uid;
        Ok(Self { path: path.to_owned(), dir, owner })
    }

    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the descriptor, for calls relative to the directory.
    pub(crate) fn dir(&self) -> rustix::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the names in it, one after another.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn names(&self) -> io::Result<impl Iterator<Item = OsString>> {
        let entries = Dir::read_from(&self.dir)?;
        Ok(entries.filter_map(|entry| Some(OsStr::from_bytes(entry.ok()?.file_name().to_bytes()).to_owned())))
    }

    /// Looks up the file that a name stands for now, without following a link.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn look(&self, name: &OsStr) -> io::Result<FileIdentity> {
        Ok(FileIdentity::of(&statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Removes a name if it still stands for the file that was seen.
    ///
    /// # Errors
    /// Those of the system; also if the name now stands for another file.
    pub(crate) fn remove(&self, name: &OsStr, seen: &FileIdentity) -> io::Result<()> {
        if !seen.is_still(&self.look(name)?) {
            return Err(io::Error::other("it is another file than the one that was looked at: it is left alone"));
        }
        Ok(unlinkat(&self.dir, name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_a_name_since_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, others) = (dir.path().join("mine"), dir.path().join("others"));
        for path in [&mine, &others] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("1-2.ledger"), "x").unwrap();
        }
        let name = OsStr::new("1-2.ledger");
        let folder = Folder::open(&mine, false).unwrap();
        let seen = folder.look(name).unwrap();
        // Swap the directory for a link to another one.
        std::fs::rename(&mine, dir.path().join("away")).unwrap();
        std::os::unix::fs::symlink(&others, &mine).unwrap();
        folder.remove(name, &seen).unwrap();
        assert!(others.join(name).exists() && !dir.path().join("away").join(name).exists());
        assert!(Folder::open(&mine, false).is_err(), "a link is not followed");
        // Swap the file for another one.
        let folder = Folder::open(&mine, true).unwrap();
        let seen = folder.look(name).unwrap();
        std::fs::rename(others.join(name), others.join("kept")).unwrap();
        std::fs::write(others.join(name), "another").unwrap();
        assert!(folder.remove(name, &seen).unwrap_err().to_string().contains("left alone"));
        assert!(others.join(name).exists());
    }
}
