//! A member's place in its group's file: the slot that it has locked.
//!
//! The lock belongs to the file's open description (`F_OFD_SETLK`). The mapping keeps this description open after the
//! descriptor is closed. So no program can close it by accident, and the lock ends with the process, or with `exec`. A
//! child of `fork` does not get the mapping.

use super::words::{FileWords, SlotWords};
use crate::ledger::{directory, file, storage};
use gpumem_wire::group::{self, FILE_BYTES, Head, SLOTS, slot_at};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::*};
use zerocopy::IntoBytes;

/// Reason why there is no seat.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SeatError {
    /// All seats are taken.
    NoSeat,
    /// The file cannot be opened, or cannot be trusted.
    NoFile(String),
}

/// Path of the file, and the user.
pub(super) struct Address {
    pub path: PathBuf,
    /// True if the user named the directory.
    pub named: bool,
    /// True if the directory is ours, to be made.
    pub make_directory: bool,
    pub uid: u32,
}

/// A slot of the file, held while this lives.
pub(super) struct Seat {
    all: *const FileWords,
    index: usize,
    /// Device and inode of the file.
    file: (u64, u64),
    /// Number and start time of the process, as in the slot.
    member: (u64, u64),
}

// SAFETY: the mapping belongs to no thread: its words are atomics, and `take` maps it once for this value, whose drop
// alone unmaps it.
unsafe impl Send for Seat {}

impl Drop for Seat {
    fn drop(&mut self) {
        // SAFETY: `take` has mapped this many bytes there, and every reference to them borrows the seat.
        unsafe { libc::munmap(self.all.cast_mut().cast(), FILE_BYTES) };
    }
}

impl Seat {
    /// Takes a seat, and makes the file if there is none.
    ///
    /// # Errors
    /// Why there is no seat.
    pub(super) fn take(at: &Address) -> Result<Self, SeatError> {
        /// Maximum number of times that the file may vanish while it is opened.
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            let file = open(at).map_err(SeatError::NoFile)?;
            let _not_for_children = NotForChildren::new(&file);
            let index = (0..SLOTS).find(|index| lock(&file, *index));
            let Some(index) = index else {
                // If locks fail altogether, no seat is taken.
                return Err(no_lock(&file).map_or(SeatError::NoSeat, |error| SeatError::NoFile(describe(at, &error))));
            };
            let what = file.metadata().map_err(|error| SeatError::NoFile(describe(at, &error)))?;
            // A process that removes the file locks all of it first. With our lock held, the path either leads to this
            // file or it was removed before.
            if !is_at(&at.path, (what.dev(), what.ino())) {
                continue;
            }
            let all = map(&file).map_err(|error| SeatError::NoFile(describe(at, &error)))?;
            let id = file::this_process().map_or((0, 0), |id| (id.pid.into(), id.start_ticks));
            let seat = Self { all, index, file: (what.dev(), what.ino()), member: id };
            seat.own().clear();
            seat.own().pid.store(id.0, Relaxed);
            seat.own().start_ticks.store(id.1, Relaxed);
            return Ok(seat);
        }
        Err(SeatError::NoFile(format!("{}: the file is removed as often as it is made", at.path.display())))
    }

    pub(super) fn all(&self) -> &FileWords {
        // SAFETY: `map` maps the whole file, whose storage was taken before. FileWords has atomics alone, for which any
        // bytes are valid. The mapping lives as long as `self`.
        unsafe { &*self.all }
    }

    pub(super) fn own(&self) -> &SlotWords {
        &self.all().slots[self.index]
    }

    /// Returns the other slots, including free ones.
    pub(super) fn others(&self) -> impl Iterator<Item = &SlotWords> {
        let own = self.index;
        self.all().slots.iter().enumerate().filter(move |(index, _)| *index != own).map(|(_, slot)| slot)
    }

    /// True if this process still has this slot, and the file is still at its path. A process restored from a
    /// checkpoint on disk has the mapping but not the lock.
    pub(super) fn is_kept(&self, path: &Path) -> bool {
        is_at(path, self.file)
            && self.own().pid.load(Relaxed) == self.member.0
            && self.own().start_ticks.load(Relaxed) == self.member.1
            && open_for_update(path).is_ok_and(|file| !lock(&file, self.index))
    }

    /// True if the file was cut short. Touching a page beyond its end would end the program.
    pub(super) fn is_cut(&self, path: &Path) -> bool {
        let is_short =
            |what: std::fs::Metadata| (what.dev(), what.ino()) == self.file && what.len() < FILE_BYTES as u64;
        std::fs::symlink_metadata(path).is_ok_and(is_short)
    }

    /// Removes what ended members told; returns the number of such members.
    pub(super) fn reap(&self, at: &Address) -> usize {
        let used: Vec<usize> =
            (0..SLOTS).filter(|index| *index != self.index && self.all().slots[*index].tells()).collect();
        if used.is_empty() {
            return 0;
        }
        let Ok(file) = open_for_update(&at.path) else { return 0 };
        let _not_for_children = NotForChildren::new(&file);
        if file.metadata().map_or(true, |what| (what.dev(), what.ino()) != self.file) {
            return 0;
        }
        let dead = used.into_iter().filter(|index| {
            let free = lock(&file, *index);
            if free {
                // Checked again under the lock: a member that came and went meanwhile has left nothing, or something
                // that has to go, too.
                self.all().slots[*index].clear();
                unlock(&file, *index);
            }
            free
        });
        dead.count()
    }
}

/// The descriptor of a group's file while it is open, else -1. Locks are held through it.
static OPEN: AtomicI32 = AtomicI32::new(-1);
/// The mapping of that file, while children of `fork` would get it.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// While this lives, a child that another thread forks closes the descriptor and the mapping. Otherwise the child would
/// keep the seat of a member that ended before it. Only one exists at a time, because the group is locked.
struct NotForChildren;

impl NotForChildren {
    /// Creates the guard, which must be dropped before the file.
    fn new(file: &File) -> Self {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        if !REGISTERED.swap(true, Relaxed) {
            // SAFETY: `let_go` may be called in any child of a fork, and this library is never unloaded.
            unsafe { libc::pthread_atfork(None, None, Some(let_go)) };
        }
        OPEN.store(file.as_raw_fd(), Relaxed);
        Self
    }
}

impl Drop for NotForChildren {
    fn drop(&mut self) {
        OPEN.store(-1, Relaxed);
    }
}

/// # Safety
/// The C library calls it in a child of `fork`, whose only thread it is.
unsafe extern "C" fn let_go() {
    let (fd, mapped) = (OPEN.swap(-1, Relaxed), MAPPED.swap(0, Relaxed));
    // SAFETY: both calls may be made between fork and exec. The descriptor and the mapping are copies of those of the
    // thread that was taking a seat. That thread is not in the child, so no code there uses them.
    unsafe {
        if fd >= 0 {
            libc::close(fd);
        }
        if mapped != 0 {
            libc::munmap(mapped as *mut libc::c_void, FILE_BYTES);
        }
    }
}

fn describe(at: &Address, error: &io::Error) -> String {
    format!("{}: {error}", at.path.display())
}

/// True if a path leads to this file, by device and inode.
fn is_at(path: &Path, file: (u64, u64)) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|what| (what.dev(), what.ino()) == file)
}

fn lock_call(file: &File, index: usize, kind: libc::c_int) -> bool {
    // SAFETY: zeroes are a valid flock.
    let mut what: libc::flock = unsafe { std::mem::zeroed() };
    what.l_type = kind as _;
    what.l_whence = libc::SEEK_SET as _;
    what.l_start = slot_at(index) as _;
    what.l_len = 1;
    // SAFETY: `file` keeps the descriptor open, and `what` is a flock that lives until fcntl returns.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut what) == 0 }
}

/// Locks a slot if it is free.
fn lock(file: &File, index: usize) -> bool {
    lock_call(file, index, libc::F_WRLCK)
}

fn unlock(file: &File, index: usize) {
    lock_call(file, index, libc::F_UNLCK);
}

/// Returns the error of a file on which locks fail; `None` if other processes have the locks.
fn no_lock(file: &File) -> Option<io::Error> {
    let error = if lock(file, 0) { return None } else { io::Error::last_os_error() };
    (!matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))).then_some(error)
}

/// Returns the file once it has passed the checks of trust. Makes it if there is none.
fn open(at: &Address) -> Result<File, String> {
    let path = at.path.as_path();
    if at.make_directory
        && let Some(dir) = path.parent()
    {
        directory::make(dir, at.uid, at.named)?;
    }
    let file = match open_for_update(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(at).and_then(|()| open_for_update(path)).map_err(|error| describe(at, &error))?
        }
        opened => opened.map_err(|error| describe(at, &error))?,
    };
    let fault = distrust(&file, at.uid).map_err(|error| describe(at, &error))?;
    fault.map_or(Ok(file), |fault| Err(format!("{}: {fault}", path.display())))
}

fn open_for_update(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(storage::CAREFULLY).open(path)
}

/// Returns a reason to distrust a file.
fn distrust(file: &File, uid: u32) -> io::Result<Option<String>> {
    let what = file.metadata()?;
    if !what.is_file() {
        return Ok(Some("not a regular file".to_owned()));
    }
    if what.uid() != uid {
        return Ok(Some(format!("it belongs to user {}, and this process runs as user {uid}", what.uid())));
    }
    if what.mode() & 0o022 != 0 {
        return Ok(Some("others than its owner may write to it".to_owned()));
    }
    let mut head = [0; size_of::<Head>()];
    let got = file.read_at(&mut head, 0)?;
    let fault = group::fault(&head[..got], what.len());
    Ok(fault.map(|fault| format!("{fault}: remove it once no process of the group runs")))
}

/// Makes the file under another name, so that no process sees it half made. Then gives it its own name, unless another
/// process was faster.
fn make(at: &Address) -> io::Result<()> {
    let mut name = at.path.as_os_str().to_owned();
    // Two containers may each have a process of this number.
    name.push(format!(".new-{}-{}", file::pid_namespace(), std::process::id()));
    let new = PathBuf::from(name);
    let _ = std::fs::remove_file(&new);
    let file = storage::make(&new, at.named)?;
    let made = storage::lengthen(file.as_raw_fd(), 0, FILE_BYTES as u64)
        .and_then(|()| file.write_all_at(group::new_head().as_bytes(), 0))
        .and_then(|()| rename_if_free(&new, &at.path));
    if made.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn rename_if_free(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (old, new) = (name(from)?, name(to)?);
    // SAFETY: both names end in NUL and live until the call returns.
    let done =
        unsafe { libc::renameat2(libc::AT_FDCWD, old.as_ptr(), libc::AT_FDCWD, new.as_ptr(), libc::RENAME_NOREPLACE) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The file system does not know the flag.
        Some(libc::EINVAL | libc::ENOSYS) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        _ => Err(error),
    }
}

/// Maps the file for this process alone, not for children of `fork`.
fn map(file: &File) -> io::Result<*const FileWords> {
    // SAFETY: mmap and madvise take numbers. The descriptor is open, and the file has this many bytes with storage.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), FILE_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        MAPPED.store(at as usize, Relaxed);
        libc::madvise(at, FILE_BYTES, libc::MADV_DONTFORK);
        MAPPED.store(0, Relaxed);
        Ok(at.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests a mapping without the lock, as in a restored process, and a slot that another process has taken.
    #[test]
    fn a_seat_is_kept_by_its_lock_and_by_what_it_tells() {
        let path = std::env::temp_dir().join(format!("gpumem-seat-{}", std::process::id()));
        // SAFETY: geteuid takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let at = Address { path: path.clone(), named: true, make_directory: false, uid };
        let seat = Seat::take(&at).unwrap();
        assert!(seat.is_kept(&path) && !seat.is_cut(&path));
        let (index, file, member) = (seat.index, seat.file, seat.member);
        let without = Seat { all: map(&open_for_update(&path).unwrap()).unwrap(), index, file, member };
        // The lock of the first seat is still held.
        assert!(without.is_kept(&path));
        drop(seat);
        let (lost, next) = (!without.is_kept(&path), Seat::take(&at).unwrap());
        next.own().start_ticks.store(member.1 + 1, Relaxed);
        let anothers = !without.is_kept(&path);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let cut = next.is_cut(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!((lost, anothers, cut, next.is_cut(&path)), (true, true, true, false));
    }
}
