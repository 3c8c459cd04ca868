//! A path to a snapshot: what is opened is a regular file, and nobody else's unless asked for by name.

use crate::failure::{Failure, Result};
use gpumem_wire::layout::{MAGIC, TableKind};
use gpumem_wire::read::{MAX_FILE_BYTES, Snapshot};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whose file it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The user named it: any file that can be read.
    Anyone,
    /// Found while looking around: this user's, or root's.
    Only(u32),
}

/// Opens a ledger or a dump for reading.
///
/// # Errors
/// What is not a regular file, belongs to someone else, or cannot be opened.
pub(crate) fn file(path: &Path, owner: Owner) -> Result<File> {
    file_at(rustix::fs::CWD, path, path, owner)
}

/// As [`file`], of a name in a directory that is open; messages call it `shown`.
///
/// # Errors
/// As [`file`].
pub(super) fn file_at(dir: BorrowedFd, name: &Path, shown: &Path, owner: Owner) -> Result<File> {
    let file = regular(dir, name, shown, owner)?;
    let len = file.metadata().map_or(0, |meta| meta.len());
    if len > MAX_FILE_BYTES {
        let shown = shown.display();
        return Err(Failure::error(format!("{shown} is larger than a ledger can be ({len} bytes)")));
    }
    Ok(file)
}

/// Opens a regular file of any length, and nothing else: a pipe is not waited for.
///
/// # Errors
/// What is not a regular file, or cannot be opened.
pub(crate) fn any(path: &Path) -> Result<File> {
    regular(rustix::fs::CWD, path, path, Owner::Anyone)
}

fn regular(dir: BorrowedFd, name: &Path, shown: &Path, owner: Owner) -> Result<File> {
    let shown = shown.display();
    // NONBLOCK: a pipe planted under a ledger's name must not hold us up.
    let follow = if owner == Owner::Anyone { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | follow;
    let opened = openat(dir, name, flags, Mode::empty()).map_err(io::Error::from);
    let file = opened.map(File::from).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => Failure::error(format!("{shown} is a symbolic link, which a ledger never is")),
        Some(libc::ENXIO) => Failure::error(format!("{shown} is not a regular file")),
        _ if error.kind() == io::ErrorKind::NotFound => Failure::nothing(format!("there is no file {shown}")),
        _ => Failure::io(format!("cannot open {shown}"), &error),
    })?;
    let meta = file.metadata().map_err(|error| Failure::io(format!("cannot look at {shown}"), &error))?;
    if !meta.is_file() {
        let failure = Failure::error(format!("{shown} is not a regular file"));
        return Err(if meta.is_dir() { failure.fix("--dir names a directory of ledgers") } else { failure });
    }
    if let Owner::Only(uid) = owner
        && meta.uid() != uid
        && meta.uid() != 0
    {
        return Err(Failure::error(format!("{shown} belongs to user {}, not to {uid}", meta.uid()))
            .fix("name the file itself if you trust it"));
    }
    Ok(file)
}

/// Reads the tables that are wanted.
///
/// # Errors
/// As [`file`], and what is not a ledger of this version.
pub(crate) fn snapshot(path: &Path, owner: Owner, wanted: impl Fn(TableKind) -> bool) -> Result<Snapshot> {
    read(&file(path, owner)?, path, wanted)
}

/// Reads the tables that are wanted of a file that is open; messages call it `shown`.
///
/// # Errors
/// What is not a ledger of this version.
pub(crate) fn read(file: &File, shown: &Path, wanted: impl Fn(TableKind) -> bool) -> Result<Snapshot> {
    let shown = shown.display();
    match Snapshot::read_tables(file, wanted) {
        Ok(Ok(snapshot)) => Ok(snapshot),
        Ok(Err(error)) => {
            let failure = Failure::error(format!("{shown} cannot be read: {error}"));
            let packed = magic::<2>(file) == Some([0x1f, 0x8b]);
            Err(if packed { failure.fix("gpumem report reads what gpumem record has written") } else { failure })
        }
        Err(error) => Err(Failure::io(format!("cannot read {shown}"), &error)),
    }
}

/// The layout version that a file says it has; `None` for what does not begin as a ledger does.
pub(crate) fn version(file: &File) -> Option<u32> {
    let version = magic::<12>(file)?.strip_prefix(&MAGIC)?.try_into().ok()?;
    Some(u32::from_le_bytes(version))
}

/// The bytes that a file begins with.
fn magic<const BYTES: usize>(file: &File) -> Option<[u8; BYTES]> {
    let mut begin = [0; BYTES];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut begin, 0).ok()?;
    Some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn why(path: &Path, owner: Owner) -> String {
        file(path, owner).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_of_ours_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("1-2.ledger");
        std::fs::write(&real, "x").unwrap();
        let uid = std::fs::metadata(&real).unwrap().uid();
        file(&real, Owner::Only(uid)).unwrap();

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(why(&link, Owner::Only(uid)).contains("symbolic link"));
        file(&link, Owner::Anyone).unwrap();

        let pipe = dir.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a CString: it ends in NUL and lives until mkfifo returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(why(&pipe, Owner::Anyone).contains("not a regular file"));
        assert!(why(dir.path(), Owner::Anyone).contains("not a regular file"));
        assert!(why(Path::new("/dev/zero"), Owner::Anyone).contains("not a regular file"));
        assert!(why(&dir.path().join("none"), Owner::Anyone).contains("there is no file"));
        if uid != 0 {
            assert!(why(&real, Owner::Only(uid + 1)).contains("belongs to user"));
        }
    }

    #[test]
    fn a_sparse_giant_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(why(&path, Owner::Anyone).contains("larger than a ledger can be"));
    }
}
