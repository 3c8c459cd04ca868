//! Files of ours that are mapped and written in place, so that touching them cannot end the program.
//!
//! Touching a mapped page for which the file system has no room raises SIGBUS. So:
//! * Storage is taken at the file's end before anything there is touched. The file never has a hole within its length:
//!   the kernel may take pages together, and a touch beside a hole then needs room for the hole.
//! * If a file system writes changed data to a new place, the file is exempted from that, or it is not used.
//! * A file is new and ours: an existing file of its name is never opened.

use crate::process::cancel::Uncancelled;
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Mode of our files: access for the owner alone.
const MODE: libc::mode_t = 0o600;
/// Flags for opening: never wait for a FIFO's other end or for a device, never follow a link out of the directory.
pub(crate) const CAREFULLY: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
/// Zeroes to write at a time if there is no `fallocate`.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Makes a file that can be mapped and written in place. On an unsuitable file system no file is left. `named`: the
/// user named the place, and accepts a file system that is slow when it is full.
///
/// # Errors
/// Those of the file system; also that the name is taken.
pub(crate) fn make(path: &Path, named: bool) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).custom_flags(CAREFULLY).open(path)?;
    let fd = file.as_raw_fd();
    // Sets the mode, whatever the umask.
    // SAFETY: fchmod takes numbers, and `file` keeps the descriptor open.
    let made = match unsafe { libc::fchmod(fd, MODE) } {
        0 => in_place(fd, named),
        _ => Err(io::Error::last_os_error()),
    };
    made.inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(file)
}

/// Opens a file for reading if it is a regular file of this user. Anything else under a name of ours is left alone.
pub(crate) fn open_own(path: &Path) -> Option<File> {
    // SAFETY: geteuid takes no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    let own = |what: std::fs::Metadata| what.is_file() && what.uid() == uid;
    // Checked before opening, since opening some devices has an effect.
    std::fs::symlink_metadata(path).ok().filter(|what| own(what.clone()))?;
    let file = OpenOptions::new().read(true).custom_flags(CAREFULLY).open(path).ok()?;
    file.metadata().is_ok_and(own).then_some(file)
}

/// `statfs` types of the file systems that look for new room at each change.
const BTRFS: u64 = 0x9123_683e;
const ZFS: u64 = 0x2fc1_2fc1;
const BCACHEFS: u64 = 0xca45_1a4e;
const NILFS: u64 = 0x3434;
const OVERLAY: u64 = 0x794c_7630;

/// Ensures that later changes of the file, which is still empty, are written in place.
fn in_place(fd: RawFd, named: bool) -> io::Result<()> {
    /// `FS_NOCOW_FL` of linux/fs.h: changes are not copied to a new place.
    const NOCOW: libc::c_int = 0x0080_0000;
    let mut flags: [libc::c_int; 2] = [0; 2];
    // SAFETY: the ioctls read or write one int, for which `flags` and `wanted` have room (a long
    // would fit as well). File systems that do not know them give an error. Zeroes are a valid
    // statfs, and fstatfs fills it.
    let what = unsafe {
        if libc::ioctl(fd, libc::FS_IOC_GETFLAGS as _, flags.as_mut_ptr()) == 0 && flags[0] & NOCOW == 0 {
            let wanted = [flags[0] | NOCOW, 0];
            if libc::ioctl(fd, libc::FS_IOC_SETFLAGS as _, wanted.as_ptr()) != 0
                || libc::ioctl(fd, libc::FS_IOC_GETFLAGS as _, flags.as_mut_ptr()) != 0
            {
                flags[0] = 0;
            }
        }
        let mut what: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(fd, &mut what) != 0 {
            return Err(io::Error::last_os_error());
        }
        what
    };
    let (on, kind) = match what.f_type as u64 & 0xffff_ffff {
        OVERLAY => ("an overlay on ", below_overlay(&what)),
        kind => ("", kind),
    };
    stays_in_place(kind, flags[0] & NOCOW != 0, kernel(), named).map_err(|why| {
        io::Error::other(format!(
            "this file system ({on}{why}) looks for new room at each change, and a full disk would hold up or end the program: name a directory in memory in GPUMEM_DIR"
        ))
    })
}

/// Returns the file system that an overlay writes to, judged by the numbers that the overlay passes on under its own
/// name. The path of the overlay's upper directory leads nowhere inside a container.
fn below_overlay(what: &libc::statfs) -> u64 {
    /// Longest block of any other file system.
    const LONG: u64 = 64 << 10;
    match () {
        // This file system does not count files.
        () if what.f_files == 0 && what.f_blocks != 0 => BTRFS,
        // This file system counts a record as a block.
        () if what.f_bsize as u64 > LONG => ZFS,
        () => OVERLAY,
    }
}

/// Checks that a mapped file on a file system of this kind is changed in place.
fn stays_in_place(kind: u64, nocow: bool, kernel: (u32, u32), named: bool) -> Result<(), String> {
    // Before this version, a page of a NOCOW file also needed new room for a moment.
    const BTRFS_KEEPS_ITS_WORD: (u32, u32) = (6, 17);
    let why = match (kind, nocow) {
        (BTRFS, false) => "btrfs, where the file cannot be made NOCOW".to_owned(),
        (BTRFS, true) if kernel < BTRFS_KEEPS_ITS_WORD => {
            format!("btrfs under Linux {}.{}, older than 6.17", kernel.0, kernel.1)
        }
        // Once this file system is full, a page that was written back waits for seconds before it can be written again.
        (BTRFS, true) if !named => "btrfs".to_owned(),
        (ZFS, _) => "ZFS".to_owned(),
        (BCACHEFS, false) => "bcachefs".to_owned(),
        (NILFS, _) => "NILFS".to_owned(),
        _ => return Ok(()),
    };
    Err(why)
}

/// Returns the running kernel's version; the oldest if it is unknown.
fn kernel() -> (u32, u32) {
    // SAFETY: zeroes are a valid utsname, and uname fills it with texts that end in NUL.
    let release = unsafe {
        let mut name: libc::utsname = std::mem::zeroed();
        match libc::uname(&mut name) {
            0 => CStr::from_ptr(name.release.as_ptr()).to_string_lossy().into_owned(),
            _ => String::new(),
        }
    };
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Lengthens a file from its end `from` by storage for `bytes`. On failure the file stays as it was.
///
/// # Errors
/// No more room on the disk, in a quota, or within the limits of the process.
pub(crate) fn lengthen(fd: RawFd, from: u64, bytes: u64) -> io::Result<()> {
    let _uncancelled = Uncancelled::new();
    let end = from + bytes;
    // Beyond the limit a file operation raises SIGXFSZ instead of an error.
    if file_size_limit().is_some_and(|limit| limit < end) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    loop {
        // SAFETY: fallocate takes numbers, and our caller keeps the descriptor open.
        if unsafe { libc::fallocate(fd, 0, from as i64, bytes as i64) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        let done = match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => write_zeroes(fd, from, bytes),
            _ => Err(error),
        };
        if done.is_err() {
            // The program gets the disk space back.
            // SAFETY: ftruncate takes numbers, and our caller keeps the descriptor open.
            unsafe { libc::ftruncate(fd, from as i64) };
        }
        return done;
    }
}

/// Writes zeroes to a range if there is no `fallocate`.
fn write_zeroes(fd: RawFd, from: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: our caller owns the descriptor and keeps it open. ManuallyDrop keeps this File from closing it.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..piece as usize], from + done)?;
        done += piece;
    }
    Ok(())
}

/// Returns the longest file that this process may write, if there is a limit.
pub(crate) fn file_size_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local with room for the one rlimit that getrlimit writes.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Returns the file system's free bytes; `None` if it has no bound.
pub(crate) fn free_bytes(fd: RawFd) -> Option<u64> {
    // SAFETY: zeroes are a valid statvfs, and fstatvfs fills it. A descriptor that is not open
    // gives an error.
    unsafe {
        let mut what: libc::statvfs = std::mem::zeroed();
        let bounded = libc::fstatvfs(fd, &mut what) == 0 && what.f_blocks != 0;
        bounded.then(|| what.f_bavail.saturating_mul(what.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("gpumem-storage-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_copies_on_write_is_refused() {
        let new = (6, 17);
        for (kind, nocow, kernel, named, fits) in [
            (0x0102_1994, false, (4, 18), false, true),
            (0xef53, false, (4, 18), false, true),
            (0x9123_683e, true, new, true, true),
            (0x9123_683e, true, new, false, false),
            (0x9123_683e, true, (6, 12), true, false),
            (0x9123_683e, false, new, true, false),
            (0x2fc1_2fc1, false, new, true, false),
        ] {
            assert_eq!(stays_in_place(kind, nocow, kernel, named).is_ok(), fits, "{kind:#x} {nocow} {kernel:?}");
        }
        assert!(kernel() > (2, 6));
    }

    #[test]
    fn what_an_overlay_writes_to_is_told_by_its_numbers() {
        for (files, block, kind) in
            [(0, 4096, BTRFS), (1000, 128 << 10, ZFS), (1000, 4096, OVERLAY), (1000, 64 << 10, OVERLAY)]
        {
            // SAFETY: zeroes are a valid statfs.
            let mut what: libc::statfs = unsafe { std::mem::zeroed() };
            (what.f_files, what.f_bsize, what.f_blocks) = (files, block, 1000);
            assert_eq!(below_overlay(&what), kind, "{files} files, blocks of {block}");
        }
    }

    #[test]
    fn a_file_grows_at_its_end_without_holes() {
        let path = scratch("grows");
        let file = make(&path, true).unwrap();
        lengthen(file.as_raw_fd(), 0, 4096).unwrap();
        lengthen(file.as_raw_fd(), 4096, 200_000).unwrap();
        let what = file.metadata().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((what.len(), what.mode() & 0o777), (204_096, 0o600));
        assert!(what.blocks() * 512 >= 204_096, "{} blocks", what.blocks());
        // The same without fallocate.
        write_zeroes(file.as_raw_fd(), 204_096, 100_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 304_096);
    }

    #[test]
    fn only_regular_files_of_ours_are_opened() {
        let path = scratch("fifo");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: `name` is a CString: it ends in NUL and lives until mkfifo returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let (opened, made) = (open_own(&path).is_some(), make(&path, true).is_ok());
        std::fs::remove_file(&path).unwrap();
        assert_eq!((opened, made), (false, false));
        assert!(open_own(Path::new("/dev/null")).is_none() && open_own(Path::new("/")).is_none());
        drop(make(&path, true).unwrap());
        assert!(open_own(&path).is_some());
        std::fs::remove_file(&path).unwrap();
    }
}
