//! Makes the directory of ledgers, or checks that the existing one is safe to use.

use std::ffi::CString;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Access for the owner alone.
const MODE: u32 = 0o700;

/// Makes the directory, or checks that the existing one is safe to use. `named`: the user named it.
pub(crate) fn make(dir: &Path, uid: u32, named: bool) -> Result<(), String> {
    let cannot = |error: io::Error| format!("{}: cannot make the directory: {error}", dir.display());
    let made = if named { make_with_parents(dir) } else { make_one(dir) };
    match made {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    let what = std::fs::symlink_metadata(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    // If the user named the directory, it may be a link or shared with a group on purpose.
    if named {
        return Ok(());
    }
    if !what.is_dir() || what.uid() != uid || what.mode() & 0o022 != 0 {
        return Err(format!(
            "{}: not a directory of user {uid} alone: remove it, or name another in GPUMEM_DIR",
            dir.display()
        ));
    }
    // A umask may have left it closed even to its owner.
    if what.mode() & MODE != MODE {
        set_mode(dir).map_err(cannot)?;
    }
    Ok(())
}

/// Makes a directory that its owner can use, whatever the umask.
fn make_one(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(dir)?;
    set_mode(dir)
}

fn make_with_parents(dir: &Path) -> io::Result<()> {
    match make_one(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    match dir.parent().map(make_with_parents) {
        Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    make_one(dir)
}

/// Sets the mode of a directory, which may be unreadable. It changes this directory, not the target of a link.
fn set_mode(dir: &Path) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let held = OpenOptions::new().read(true).custom_flags(flags).open(dir)?;
    let name = CString::new(format!("/proc/self/fd/{}", held.as_raw_fd()))?;
    // SAFETY: `name` is a CString: it ends in NUL and lives until chmod returns. `held` keeps what
    // it leads to open.
    match unsafe { libc::chmod(name.as_ptr(), MODE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
