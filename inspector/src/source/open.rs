//! Opens a path as a snapshot: only a regular file, and only of trusted users unless the user named it.

use super::process::Users;
use super::seen::{LastLink, Seen};
use crate::failure::{Failure, Result};
use gpumem_wire::layout::{MAGIC, TableKind};
use gpumem_wire::read::{MAX_FILE_BYTES, Snapshot};
use rustix::fd::BorrowedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Owners whose files are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Any owner: the user named the file.
    Anyone,
    /// One of these users or root: a survey found the file.
    Only(Users),
}

/// Opens a ledger or a dump for reading.
///
/// # Errors
/// The file is not regular, belongs to another user, or cannot be opened.
pub(crate) fn file(path: &Path, owner: Owner) -> Result<File> {
    file_of(Seen::named(path, last(owner)), path, owner)
}

/// As [`file`], for a path that was looked up.
///
/// # Errors
/// As [`file`].
pub(super) fn file_of(seen: io::Result<Seen>, path: &Path, owner: Owner) -> Result<File> {
    of_ledger(seen, CWD, path, path, owner)
}

/// As [`file`], for a name in an open directory; messages call it `shown`.
///
/// # Errors
/// As [`file`].
pub(super) fn file_at(dir: BorrowedFd, name: &Path, shown: &Path, owner: Owner) -> Result<File> {
    of_ledger(Seen::at(dir, name, last(owner)), dir, name, shown, owner)
}

fn of_ledger(seen: io::Result<Seen>, dir: BorrowedFd, name: &Path, shown: &Path, owner: Owner) -> Result<File> {
    let file = regular(seen, dir, name, shown, owner)?;
    let len = file.metadata().map_or(0, |meta| meta.len());
    if len > MAX_FILE_BYTES {
        let shown = shown.display();
        return Err(Failure::error(format!("{shown} is larger than a ledger can be ({len} bytes)")));
    }
    Ok(file)
}

/// Opens a regular file of any length. It does not wait for a pipe and does not open a device.
///
/// # Errors
/// The file is not regular, or cannot be opened.
pub(crate) fn any(path: &Path) -> Result<File> {
    regular(Seen::named(path, LastLink::Follow), CWD, path, path, Owner::Anyone)
}

fn last(owner: Owner) -> LastLink {
    if owner == Owner::Anyone { LastLink::Follow } else { LastLink::Keep }
}

fn regular(seen: io::Result<Seen>, dir: BorrowedFd, name: &Path, shown: &Path, owner: Owner) -> Result<File> {
    let shown = shown.display();
    let seen = seen.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::nothing(format!("there is no file {shown}")),
        _ => Failure::io(format!("cannot look at {shown}"), &error),
    })?;
    match seen.kind() {
        FileType::RegularFile => {}
        FileType::Symlink => {
            return Err(Failure::error(format!("{shown} is a symbolic link; a ledger has to be a regular file")));
        }
        kind => {
            return Err(match kind {
                FileType::Directory => Failure::error(format!("{shown} is a directory"))
                    .fix(format!("name one of its files, or ask for all its ledgers: --dir {shown}")),
                _ => Failure::error(format!("{shown} is not a regular file")),
            });
        }
    }
    if let Owner::Only(users) = owner
        && !users.believe(seen.owner())
    {
        return Err(Failure::error(format!("{shown} belongs to user {}, not to {users}", seen.owner()))
            .fix("if you trust it, give the path of the file"));
    }
    let opened = match seen.open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => without_proc(&seen, dir, name, owner),
        opened => opened,
    };
    opened.map_err(|error| Failure::io(format!("cannot open {shown}"), &error))
}

/// Opens a looked-up file by its name if there is no /proc to open it by: only this user's own files, or named ones.
fn without_proc(seen: &Seen, dir: BorrowedFd, name: &Path, owner: Owner) -> io::Result<File> {
    let is_own = owner == Owner::Anyone || seen.owner() == rustix::process::geteuid().as_raw();
    if !is_own || Path::new("/proc/self/fd").exists() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let links = if owner == Owner::Anyone { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | links;
    let file = File::from(openat(dir, name, flags, Mode::empty())?);
    let meta = file.metadata()?;
    match (meta.dev(), meta.ino()) == seen.identity() {
        true => Ok(file),
        false => Err(io::Error::other("it is another file than the one that was looked at")),
    }
}

/// Reads the wanted tables.
///
/// # Errors
/// As [`file`]; also if the file is not a ledger of this version.
pub(crate) fn snapshot(path: &Path, owner: Owner, wanted: impl Fn(TableKind) -> bool) -> Result<Snapshot> {
    read(&file(path, owner)?, path, wanted, u64::MAX)
}

/// Reads the wanted tables of an open file if they have at most `most` bytes; messages call it `shown`.
///
/// # Errors
/// The file is not a ledger of this version, or the tables are longer.
pub(crate) fn read(file: &File, shown: &Path, wanted: impl Fn(TableKind) -> bool, most: u64) -> Result<Snapshot> {
    let shown = shown.display();
    match Snapshot::read_tables(file, wanted, most) {
        Ok(Ok(snapshot)) => Ok(snapshot),
        Ok(Err(error)) => {
            let failure = Failure::error(format!("{shown} cannot be read: {error}"));
            let packed = magic::<2>(file) == Some([0x1f, 0x8b]);
            Err(if packed { failure.fix("gpumem report reads what gpumem record has written") } else { failure })
        }
        Err(error) => Err(Failure::io(format!("cannot read {shown}"), &error)),
    }
}

/// Returns the layout version in a file's header; `None` if the file does not begin as a ledger does.
pub(crate) fn version(file: &File) -> Option<u32> {
    let version = magic::<12>(file)?.strip_prefix(&MAGIC)?.try_into().ok()?;
    Some(u32::from_le_bytes(version))
}

/// Returns the first bytes of a file.
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
        file(&real, Owner::Only(Users::one(uid))).unwrap();

        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(why(&link, Owner::Only(Users::one(uid))).contains("symbolic link"));
        file(&link, Owner::Anyone).unwrap();

        let pipe = dir.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a CString: it ends in NUL and lives until mkfifo returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(why(&pipe, Owner::Anyone).contains("not a regular file"));
        assert!(why(dir.path(), Owner::Anyone).contains("is a directory"));
        assert!(why(Path::new("/dev/zero"), Owner::Anyone).contains("not a regular file"));
        assert!(why(&dir.path().join("none"), Owner::Anyone).contains("there is no file"));
        if uid != 0 {
            assert!(why(&real, Owner::Only(Users::one(uid + 1))).contains("belongs to user"));
        }
    }

    #[test]
    fn a_path_of_a_process_holds_in_its_file_system() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), "x").unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", dir.path().join("exe")).unwrap();
        let inside = |name: &str| format!("/proc/{}/root{}/{name}", std::process::id(), dir.path().display());
        file(Path::new(&inside("x")), Owner::Anyone).unwrap();
        assert!(
            why(Path::new(&inside("exe")), Owner::Anyone).contains("cannot look at"),
            "a link of /proc leads nowhere"
        );
        assert!(why(Path::new(&inside("exe")), Owner::Only(Users::one(0))).contains("symbolic link"));
    }

    #[test]
    fn a_sparse_giant_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(why(&path, Owner::Anyone).contains("larger than a ledger can be"));
    }
}
