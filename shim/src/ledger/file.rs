//! The file behind a ledger: where it lies, that it is ours, and storage for it taken in time.
//!
//! The file is as long as the tables may grow, but sparse. Storage is taken with `fallocate` before
//! a page is touched: on a full tmpfs a touch would be a SIGBUS in the user's program.

use crate::cancel::Uncancelled;
use crate::descriptor::Descriptor;
use gpumem_wire::layout::*;
use gpumem_wire::place::{self, ProcessId};
use gpumem_wire::settings::Settings;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Storage is taken in pieces: of this many bytes at first, of half of what there is later, up to
/// [`LARGEST_PIECE`]. Most processes need little, and each page taken is a page of a tmpfs.
const PIECE: u64 = 64 << 10;
const LARGEST_PIECE: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A mapped file with its table directory.
pub struct Backing {
    base: *mut u8,
    file: Descriptor,
    directory: Vec<TableDesc>,
    /// Held while storage is taken; never while anything else is done.
    growing: Mutex<()>,
}

// SAFETY: the mapping is shared memory that is only changed through atomics and by the owner of a
// slot.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

/// There is no more room: the table's bound, the disk, or a limit of the process.
#[derive(Debug)]
pub struct Full;

impl Backing {
    /// Makes the ledger's file with a table for each kind and its largest number of slots.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn create(settings: &Settings, sizes: &[(TableKind, u64)]) -> Result<(Self, PathBuf), String> {
        // SAFETY: geteuid has no failure.
        let uid = unsafe { libc::geteuid() };
        let runtime_dir = place::runtime_dir(uid);
        let dir = place::directory(settings.dir.as_deref(), runtime_dir.as_deref(), uid);
        make_directory(&dir, uid, settings.dir.is_some())?;
        super::sweep::sweep(&dir);
        let id = this_process()?;
        let path = dir.join(id.ledger_name());
        let fail = |what: &str, error: io::Error| format!("{}: {what}: {error}", path.display());

        let (mut header, bytes) = header(id, uid, settings.stacks, sizes);
        check_file_size_limit(bytes).map_err(|why| format!("{}: {why}", path.display()))?;
        // A name is free unless this process replaced itself by exec: then the old ledger goes.
        if header_of(&path).is_some_and(|old| old.pid_ns != header.pid_ns && old.boot_id == header.boot_id) {
            return Err(format!(
                "{}: a process of another container has this name: give each container its own GPUMEM_DIR",
                path.display()
            ));
        }
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| fail("cannot create the ledger", error))?;
        let undo = |message: String| {
            let _ = std::fs::remove_file(&path);
            message
        };
        file.set_len(bytes).map_err(|error| undo(fail("cannot size the ledger", error)))?;
        take(file.as_raw_fd(), 0, HEADER_BYTES as u64).map_err(|error| undo(fail("no space for the ledger", error)))?;
        // SAFETY: a new shared mapping of a file of this length.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(undo(fail("cannot map the ledger", io::Error::last_os_error())));
        }
        // A child must not write into its parent's ledger, and has no use for it.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(base, bytes as usize, libc::MADV_DONTFORK) };
        // The magic last: a reader sees a whole header or none.
        let magic = std::mem::take(&mut header.magic);
        // SAFETY: the first page is backed and as long as a header; the mapping is page-aligned.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), base.cast::<u8>(), HEADER_BYTES);
            (*base.cast::<AtomicU64>()).store(u64::from_ne_bytes(magic), Release);
        }
        let directory = header.tables[..header.tables_len as usize].to_vec();
        Ok((Self { base: base.cast(), file: file.into(), directory, growing: Mutex::new(()) }, path))
    }

    /// Gives the file's storage back: the ledger could not be completed, and nobody refers to it.
    pub fn discard(&self, path: &Path) {
        let _ = std::fs::remove_file(path);
        let bytes = self.directory.last().map_or(0, |last| last.offset + last.capacity * u64::from(last.slot_bytes));
        // SAFETY: the mapping of `create`; unfinished tables that knew it are gone.
        unsafe { libc::munmap(self.base.cast(), bytes.div_ceil(PAGE) as usize * PAGE as usize) };
        if let Some(fd) = self.file.get() {
            // SAFETY: ours, and used no more.
            unsafe { libc::ftruncate(fd, 0) };
        }
    }

    /// Start of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where a table's slots begin, how many it may have, and its entry in the directory.
    pub fn table(&'static self, kind: TableKind) -> (*mut u8, u64, Used) {
        let index = self.directory.iter().position(|desc| desc.kind == kind as u32).unwrap_or_default();
        let desc = &self.directory[index];
        // SAFETY: offsets of the directory lie inside the mapping.
        let at = unsafe { self.base.add(desc.offset as usize) };
        (at, desc.capacity, Used { backing: self, index })
    }
}

/// How much of a table is backed, in the directory of the mapped header.
pub struct Used {
    backing: &'static Backing,
    index: usize,
}

impl Used {
    fn field(&self, offset: usize) -> &AtomicU64 {
        let at = std::mem::offset_of!(Header, tables) + self.index * size_of::<TableDesc>() + offset;
        // SAFETY: inside the header page, at the place of a u64 of a TableDesc.
        unsafe { &*self.backing.base.add(at).cast() }
    }

    /// Slots that are backed.
    #[inline]
    pub fn used(&self) -> u64 {
        self.field(std::mem::offset_of!(TableDesc, used)).load(Acquire)
    }

    /// Rings: entries ever written.
    pub fn written(&self) -> &AtomicU64 {
        self.field(std::mem::offset_of!(TableDesc, written))
    }

    /// Takes storage so that at least `slots` slots are backed.
    #[cold]
    pub fn grow(&self, slots: u64) -> Result<(), Full> {
        let desc = &self.backing.directory[self.index];
        if slots > desc.capacity {
            return Err(Full);
        }
        let _growing = self.backing.growing.lock().map_err(|_| Full)?;
        let used = self.used();
        if used >= slots {
            return Ok(());
        }
        let slot = u64::from(desc.slot_bytes);
        let from = used * slot;
        let piece = (from / 2).clamp(PIECE, LARGEST_PIECE).min(desc.capacity * slot / 16).max(PAGE);
        let wanted = (slots * slot).max(from + piece);
        let to = wanted.min(desc.capacity * slot);
        let start = (desc.offset + from) / PAGE * PAGE;
        let end = (desc.offset + to).div_ceil(PAGE) * PAGE;
        let fd = self.backing.file.get().ok_or(Full)?;
        take(fd, start, end - start).map_err(|_| Full)?;
        self.field(std::mem::offset_of!(TableDesc, used)).store(to / slot, Release);
        Ok(())
    }
}

/// Takes storage for a range of a file, by `fallocate` or, where the file system has none, by
/// writing back what each page holds.
pub fn take(fd: RawFd, offset: u64, bytes: u64) -> io::Result<()> {
    let _uncancelled = Uncancelled::new();
    let error = loop {
        // SAFETY: a plain system call on an open file.
        if unsafe { libc::fallocate(fd, 0, offset as i64, bytes as i64) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            break error;
        }
    };
    if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
        return Err(error);
    }
    // SAFETY: borrowed for this function; the caller keeps it open.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let mut page = [0; PAGE as usize];
    for at in (offset..offset + bytes).step_by(PAGE as usize) {
        file.read_exact_at(&mut page, at)?;
        file.write_all_at(&page, at)?;
    }
    Ok(())
}

/// Lays the tables out behind the header; the header and the length of the file.
fn header(id: ProcessId, uid: u32, depth: u32, sizes: &[(TableKind, u64)]) -> (Header, u64) {
    let mut header = Header::new_zeroed();
    header.magic = MAGIC;
    header.version = VERSION;
    header.byte_order = 0x0102_0304;
    header.pid = id.pid;
    header.uid = uid;
    header.start_ticks = id.start_ticks;
    header.boot_id = boot_id();
    header.pid_ns = pid_namespace();
    header.stack_depth = depth;
    header.created_ns = crate::clock::precise_ns();
    header.created_real_ns = crate::clock::real_ns();
    header.state = gpumem_wire::kinds::State::Recording as u32;
    header.interception = gpumem_wire::kinds::Interception::None as u32;
    let mut offset = HEADER_BYTES as u64;
    for (desc, &(kind, slots)) in header.tables.iter_mut().zip(sizes) {
        let slot = TableKind::from_u32(kind as u32).map_or(1, |(_, bytes)| bytes);
        // Tables on pages of their own: storage is taken by the page.
        *desc = TableDesc { kind: kind as u32, slot_bytes: slot as u32, offset, capacity: slots, used: 0, written: 0 };
        offset += (slots * slot as u64).div_ceil(PAGE) * PAGE;
        header.tables_len += 1;
    }
    (header, offset)
}

/// This boot of the machine; zeroes if it cannot be told.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.ok().and_then(|text| place::boot_id(&text)).unwrap_or_default()
}

/// The namespace that this process's pid is in; 0 if it cannot be told.
pub fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// The header of a ledger of our version, if the file is one.
pub fn header_of(path: &Path) -> Option<Header> {
    let mut page = [0; HEADER_BYTES];
    File::open(path).ok()?.read_exact_at(&mut page, 0).ok()?;
    let header = Header::read_from_bytes(&page).ok()?;
    (header.magic == MAGIC && header.version == VERSION).then_some(header)
}

/// This process by pid and start time.
pub fn this_process() -> Result<ProcessId, String> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    let start_ticks = place::start_ticks(&stat).ok_or("/proc/self/stat: no start time in it")?;
    Ok(ProcessId { pid: std::process::id(), start_ticks })
}

/// Beyond RLIMIT_FSIZE a file operation is a SIGXFSZ, not an error.
fn check_file_size_limit(bytes: u64) -> Result<(), String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain system call that fills the struct.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && limit.rlim_cur < bytes {
        return Err(format!(
            "the process may write files of {} bytes at most (ulimit -f), the ledger may grow to {bytes}: lower GPUMEM_LEDGER_MAX",
            limit.rlim_cur
        ));
    }
    Ok(())
}

/// Makes the directory, or checks that the one there is safe to use.
fn make_directory(dir: &Path, uid: u32, named_by_user: bool) -> Result<(), String> {
    match DirBuilder::new().recursive(named_by_user).mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("{}: cannot make the directory: {error}", dir.display())),
    }
    let what = std::fs::symlink_metadata(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    // A directory that the user named may be a link, or shared with a group, on purpose.
    if named_by_user {
        return Ok(());
    }
    if !what.is_dir() || what.uid() != uid || what.mode() & 0o022 != 0 {
        return Err(format!(
            "{}: not a directory of user {uid} alone: remove it, or name another in GPUMEM_DIR",
            dir.display()
        ));
    }
    Ok(())
}
