//! The file behind a ledger: its path, the check that it is ours, and storage for its tables, taken in advance.
//!
//! Each table has address space for its largest size; the file holds only what is used. A table grows by a piece at the
//! file's end, which is mapped behind the table's present slots.

use super::storage::{self, file_size_limit, free_bytes, lengthen};
use crate::process::clock;
use crate::process::descriptor::Descriptor;
use crate::process::heap;
use crate::process::page::page_bytes;
use gpumem_wire::layout::*;
use gpumem_wire::place::{self, ProcessId};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Smallest piece of storage. A piece has this many bytes at first, later half of the present bytes, up to
/// [`LARGEST_PIECE`] or this share of the table. Most processes need little, and each page taken is a page of memory.
const PIECE: u64 = 16 << 10;
const LARGEST_PIECE: u64 = 1 << 20;
const LARGEST_SHARE: u64 = 64;
/// Bytes of the header and the list of pieces.
const HEAD_BYTES: u64 = (HEADER_BYTES + MAX_PIECES * size_of::<PieceDesc>()) as u64;
/// Maximum share of the free space that a ledger takes in a directory that the user did not name for ledgers, since the
/// program may need that space itself.
const SHARE_OF_FREE: u64 = 4;
/// The least share with which such a directory is used: a ledger soon needs more than at the start.
const LEAST_SHARE: u64 = 1 << 20;

/// Time after a refusal in which no storage is requested: some file systems search for room for milliseconds each time.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A mapped file with its table directory.
pub(crate) struct Backing {
    base: *mut u8,
    /// Maximum bytes of memory for all tables together.
    bytes: u64,
    /// Bytes behind the tables, for the links of free slots ([`Backing::links`]).
    links_bytes: u64,
    file: Descriptor,
    directory: Vec<TableDesc>,
    /// Backed slots of each table. The header has this number for readers, but it may have been damaged by another
    /// process.
    used: [AtomicU64; MAX_TABLES],
    /// True if the user named the directory.
    named: bool,
    /// Held only while storage is taken.
    growing: Mutex<Growing>,
    /// Time until which no storage is requested, after a refusal.
    refused_until_ns: AtomicU64,
}

/// State that changes as the file grows.
struct Growing {
    /// Bytes of the file.
    end: u64,
    /// Mapped bytes of each table.
    mapped: [u64; MAX_TABLES],
    /// Number of pieces.
    pieces: usize,
    /// True if a piece could not be mapped at its place; the contents there are unknown now.
    failed: bool,
}

// SAFETY: the fields other than the mapping may be sent. The mapping is shared memory that belongs
// to no thread.
unsafe impl Send for Backing {}
// SAFETY: words of the mapping change through atomics, by the owner of a slot, or under the lock of
// `growing`.
unsafe impl Sync for Backing {}

/// No more room: the table's maximum, the disk, or a limit of the process.
#[derive(Debug)]
pub(crate) struct Full;

/// The process that a ledger belongs to, and the layout of its tables.
pub(crate) struct Plan<'a> {
    pub id: ProcessId,
    pub uid: u32,
    pub stack_depth: u32,
    /// Each kind of table with its maximum number of slots.
    pub sizes: &'a [(TableKind, u64)],
}

impl Backing {
    /// Makes the ledger's file in an existing directory. `named`: the user named the directory.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn create(plan: &Plan<'_>, dir: &Path, named: bool) -> Result<(Self, PathBuf), String> {
        let path = dir.join(plan.id.ledger_name());
        let fail = |what: &str, error: io::Error| format!("{}: {what}: {error}", path.display());

        let (mut header, directory, bytes) = header(plan);
        check_file_size_limit(bytes).map_err(|why| format!("{}: {why}", path.display()))?;
        // The name is free unless this process replaced itself by exec. Then the old ledger is removed.
        if header_of(&path).is_some_and(|old| old.pid_ns != header.pid_ns && old.boot_id == header.boot_id) {
            return Err(format!(
                "{}: a process of another container has this name: give each container its own GPUMEM_DIR",
                path.display()
            ));
        }
        let _ = std::fs::remove_file(&path);
        let file = storage::make(&path, named).map_err(|error| fail("cannot create the ledger", error))?;
        let undo = |message: String| {
            let _ = std::fs::remove_file(&path);
            message
        };
        if !named && free_bytes(file.as_raw_fd()).is_some_and(|free| free < LEAST_SHARE * SHARE_OF_FREE) {
            return Err(undo(format!("{}: no space for the ledger's tables", path.display())));
        }
        let head = HEAD_BYTES.next_multiple_of(page_bytes());
        lengthen(file.as_raw_fd(), 0, head).map_err(|error| undo(fail("no space for the ledger", error)))?;
        let links_bytes = links_before(&directory).next_multiple_of(page_bytes());
        let no_memory = || undo(fail("no memory for the ledger", io::Error::last_os_error()));
        let base = reserve(bytes, links_bytes).ok_or_else(no_memory)?;
        if let Err(error) = map_at(base, file.as_raw_fd(), 0, head) {
            // SAFETY: `reserve` gave this range of this length, and no one else has its address
            // yet.
            unsafe { libc::munmap(base.cast(), (bytes + links_bytes) as usize) };
            return Err(undo(fail("cannot map the ledger", error)));
        }
        // The magic is written last: a reader sees a whole header or none.
        let magic = std::mem::take(&mut header.magic);
        // SAFETY: `map_at` has put storage behind the first page, which is as long as a header. The
        // mapping is page-aligned, and no one else has its address yet.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_bytes().as_ptr(), base, HEADER_BYTES);
            (*base.cast::<AtomicU64>()).store(u64::from_ne_bytes(magic), Release);
        }
        let growing = Mutex::new(Growing { end: head, mapped: [0; MAX_TABLES], pieces: 0, failed: false });
        let refused_until_ns = AtomicU64::new(0);
        let used = [const { AtomicU64::new(0) }; MAX_TABLES];
        Ok((
            Self { base, bytes, links_bytes, file: file.into(), directory, used, named, growing, refused_until_ns },
            path,
        ))
    }

    /// Frees the file, its storage, its memory and its descriptor: nothing will be recorded.
    ///
    /// # Safety
    /// It was leaked out of a box, and nothing refers to it any more: its tables are gone.
    pub(crate) unsafe fn discard(this: *const Self, path: &Path) {
        let _ = std::fs::remove_file(path);
        // SAFETY: our caller vouches that the pointer came from a box, and that no one refers to it
        // any more.
        let backing = unsafe { Box::from_raw(this.cast_mut()) };
        // SAFETY: `create` reserved this range with this length, and with the tables the last
        // reference into it is gone.
        unsafe { libc::munmap(backing.base.cast(), (backing.bytes + backing.links_bytes) as usize) };
        if let Some(fd) = backing.file.get() {
            // SAFETY: ftruncate takes numbers. `get` has checked that the descriptor still is ours.
            unsafe { libc::ftruncate(fd, 0) };
        }
    }

    /// Returns the start of the mapping.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the start of a table's slots, their maximum number, and the table's entry in the directory.
    pub(crate) fn table(&'static self, kind: TableKind) -> (*mut u8, u64, Used) {
        let index = self.directory.iter().position(|desc| desc.kind == kind as u32).unwrap_or_default();
        let desc = &self.directory[index];
        // SAFETY: the directory is our own copy, and `create` reserved enough for every table in
        // it. So the offset lies inside the range.
        let at = unsafe { self.base.add(desc.offset as usize) };
        (at, desc.capacity, Used { backing: self, index })
    }

    /// Returns a word for each slot of a table, in memory of our own.
    pub(crate) fn links(&'static self, kind: TableKind) -> *mut AtomicU32 {
        let before = self.directory.iter().position(|desc| desc.kind == kind as u32).unwrap_or_default();
        // SAFETY: `create` reserved room for the links of every table behind `bytes` bytes for the tables.
        unsafe { self.base.add((self.bytes + links_before(&self.directory[..before])) as usize).cast() }
    }

    /// Takes storage for a table, behind its present slots, and maps it there.
    fn add_piece(&self, growing: &mut Growing, table: usize, bytes: u64) -> Result<(), Full> {
        let pieces = growing.pieces;
        if growing.failed || pieces >= MAX_PIECES {
            return Err(Full);
        }
        let fd = self.file.get().ok_or(Full)?;
        let taken = growing.end + bytes;
        if !self.named && free_bytes(fd).is_some_and(|free| taken > (growing.end + free) / SHARE_OF_FREE) {
            return self.refused();
        }
        if lengthen(fd, growing.end, bytes).is_err() {
            return self.refused();
        }
        // SAFETY: a table's place has room for its capacity. `grow` asks for no more than that, so
        // the end of what is mapped lies inside the range.
        let at = unsafe { self.base.add((self.directory[table].offset + growing.mapped[table]) as usize) };
        if map_at(at, fd, growing.end, bytes).is_err() {
            growing.failed = true;
            return Err(Full);
        }
        let piece = PieceDesc { offset: growing.end, bytes: bytes as u32, table: table as u32 };
        // SAFETY: the first mapping holds the list of MAX_PIECES pieces whole, and `pieces` is
        // below that. The caller holds the lock of `growing`, so no one else writes there.
        unsafe {
            let list = self.base.add(HEADER_BYTES).cast::<PieceDesc>();
            list.add(pieces).write(piece);
        }
        growing.pieces += 1;
        self.pieces_len().store(growing.pieces as u32, Release);
        growing.end = taken;
        growing.mapped[table] += bytes;
        Ok(())
    }

    #[cold]
    fn refused(&self) -> Result<(), Full> {
        self.refused_until_ns.store(clock::now_ns() + PATIENCE_NS, Relaxed);
        Err(Full)
    }

    fn pieces_len(&self) -> &AtomicU32 {
        // SAFETY: the header page is mapped and aligned, and the field is a u32 that is changed
        // through atomics only.
        unsafe { &*self.base.add(std::mem::offset_of!(Header, pieces_len)).cast() }
    }
}

/// The number of backed slots of a table, in the directory of the mapped header.
pub(crate) struct Used {
    backing: &'static Backing,
    index: usize,
}

impl Used {
    fn field(&self, offset: usize) -> &AtomicU64 {
        let at = std::mem::offset_of!(Header, tables) + self.index * size_of::<TableDesc>() + offset;
        // SAFETY: the header page is mapped and aligned. `offset` is that of a u64 of a TableDesc,
        // and `index` that of a table of the directory. The field is changed through atomics only.
        unsafe { &*self.backing.base.add(at).cast() }
    }

    /// Returns the number of backed slots.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.backing.used[self.index].load(Acquire)
    }

    /// Returns, for rings, the number of entries ever written.
    pub(crate) fn written(&self) -> &AtomicU64 {
        self.field(std::mem::offset_of!(TableDesc, written))
    }

    /// Takes storage so that at least `slots` slots are backed.
    #[cold]
    pub(crate) fn grow(&self, slots: u64) -> Result<(), Full> {
        let desc = &self.backing.directory[self.index];
        if slots > desc.capacity || clock::now_ns() < self.backing.refused_until_ns.load(Relaxed) {
            return Err(Full);
        }
        let mut growing = self.backing.growing.lock().map_err(|_| Full)?;
        let used = self.used();
        if used >= slots {
            return Ok(());
        }
        let slot = u64::from(desc.slot_bytes);
        let largest = (desc.capacity * slot).next_multiple_of(page_bytes());
        let from = growing.mapped[self.index];
        let most = LARGEST_PIECE.max(largest / LARGEST_SHARE);
        let piece = (from / 2).clamp(PIECE, most).min(largest / 16).next_multiple_of(page_bytes());
        let to = (slots * slot).next_multiple_of(page_bytes()).max(from + piece).min(largest);
        if to > from {
            self.backing.add_piece(&mut growing, self.index, to - from)?;
        }
        let backed = (to / slot).min(desc.capacity);
        self.field(std::mem::offset_of!(TableDesc, used)).store(backed, Release);
        self.backing.used[self.index].store(backed, Release);
        Ok(())
    }
}

/// Returns the bytes of the links of these tables. Words have none.
fn links_before(tables: &[TableDesc]) -> u64 {
    let slots = tables.iter().filter(|desc| desc.slot_bytes > 8).map(|desc| desc.capacity);
    slots.sum::<u64>() * size_of::<AtomicU32>() as u64
}

/// Reserves addresses for the whole ledger, without storage, and behind them memory for `links` bytes.
fn reserve(tables: u64, links: u64) -> Option<*mut u8> {
    let (bytes, at_links) = ((tables + links) as usize, tables as usize);
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free. The other calls concern that range only: no
    // child needs it. Its end becomes memory, of which no page is taken before it is touched.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(base, bytes, libc::MADV_DONTFORK);
        let at = base.byte_add(at_links);
        if links != 0 && libc::mprotect(at, links as usize, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::munmap(base, bytes);
            return None;
        }
        heap::use_small_pages(at, links as usize);
        Some(base.cast())
    }
}

/// Maps a piece of the file at its place in the reserved range.
fn map_at(at: *mut u8, fd: RawFd, offset: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: callers name a place inside the range that `reserve` gave, which has nothing behind
    // it yet. So MAP_FIXED replaces no mapping that is in use.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        if libc::mmap(at.cast(), bytes as usize, access, flags, fd, offset as i64) == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child must not write into its parent's ledger, and has no use for it.
        libc::madvise(at.cast(), bytes as usize, libc::MADV_DONTFORK);
    }
    Ok(())
}

/// Returns the header as it is written, the tables with their places in memory, and the maximum bytes of it all.
fn header(plan: &Plan<'_>) -> (Header, Vec<TableDesc>, u64) {
    let mut header = Header::new_zeroed();
    header.magic = MAGIC;
    header.version = VERSION;
    header.byte_order = 0x0102_0304;
    header.pid = plan.id.pid;
    header.uid = plan.uid;
    header.start_ticks = plan.id.start_ticks;
    header.boot_id = boot_id();
    header.pid_ns = pid_namespace();
    header.stack_depth = plan.stack_depth;
    header.created_ns = clock::precise_ns();
    header.created_real_ns = clock::real_ns();
    header.state = gpumem_wire::kinds::State::Recording as u32;
    header.interception = gpumem_wire::kinds::Interception::None as u32;
    let mut offset = HEAD_BYTES.next_multiple_of(page_bytes());
    let mut directory = Vec::with_capacity(plan.sizes.len());
    for (desc, &(kind, slots)) in header.tables.iter_mut().zip(plan.sizes) {
        let slot = TableKind::from_u32(kind as u32).map_or(1, |(_, bytes)| bytes);
        *desc = TableDesc { kind: kind as u32, slot_bytes: slot as u32, capacity: slots, ..Default::default() };
        directory.push(TableDesc { offset, ..*desc });
        // Each table starts on its own page, because pieces are mapped by the page.
        offset += (slots * slot as u64).next_multiple_of(page_bytes());
        header.tables_len += 1;
    }
    (header, directory, offset)
}

/// Returns this boot's id; zeroes if it is unknown.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.ok().and_then(|text| place::boot_id(&text)).unwrap_or_default()
}

/// Returns the pid namespace of this process; 0 if it is unknown.
pub(crate) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns the header if the file is a ledger of our version.
pub(crate) fn header_of(path: &Path) -> Option<Header> {
    let mut page = [0; HEADER_BYTES];
    storage::open_own(path)?.read_exact_at(&mut page, 0).ok()?;
    let header = Header::read_from_bytes(&page).ok()?;
    (header.magic == MAGIC && header.version == VERSION).then_some(header)
}

/// Returns this process's pid and start time.
pub(crate) fn this_process() -> Result<ProcessId, String> {
    const WHOLE: &str = "/proc/self/stat";
    let pid = std::process::id();
    // The first thread began with the process. qemu's user mode answers only for the whole process, and is a tick off.
    // In a /proc of another namespace the thread has another number.
    let stat = std::fs::read(format!("/proc/self/task/{pid}/stat")).or_else(|_| std::fs::read(WHOLE));
    let stat = stat.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "/proc is not mounted here, by which a process is known".to_owned(),
        _ => format!("{WHOLE}: {error}"),
    })?;
    let start_ticks = place::start_ticks(&stat).ok_or_else(|| format!("{WHOLE}: no start time in it"))?;
    Ok(ProcessId { pid, start_ticks })
}

/// Refuses a ledger that will not be able to grow.
fn check_file_size_limit(bytes: u64) -> Result<(), String> {
    match file_size_limit() {
        Some(limit) if limit < bytes => Err(format!(
            "the process may write files of {limit} bytes at most (ulimit -f), the ledger may grow to {bytes}: lower GPUMEM_LEDGER_MAX"
        )),
        _ => Ok(()),
    }
}
