//! The allocation trace (`GPUMEM_ALLOC_TRACE`): every allocation and free of the process, in order, in a file that
//! [`gpumem_wire::trace`] describes.
//!
//! Records are appended without a lock: a number is taken, then its place is written. The file is mapped one piece at a
//! time. It grows by a whole piece before any byte of the piece is touched: see [`crate::ledger::storage`]. When no
//! more storage is available, the trace stops and reports it in its header, in the ledger and on stderr.
//!
//! If the trace is off, an allocation costs one more load.

use crate::ledger::file::this_process;
use crate::ledger::storage::{self, lengthen};
use crate::process::clock;
use crate::process::descriptor::Descriptor;
use crate::process::page::page_bytes;
use crate::process::wiped::{self, Flag, Place, Word};
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::trace::{Action, HEADER_BYTES, Header, MAGIC, RECORD_BYTES, Record, VERSION};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use zerocopy::IntoBytes;

/// Records per piece: 768 KiB of file.
const PER_PIECE: u64 = 16384;
const PIECE: u64 = PER_PIECE * RECORD_BYTES;
/// Maximum number of pieces: 12 GiB.
const PIECES: usize = 16384;
/// Number of file names that are tried.
const NAMES: u32 = 64;

// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const TRACE: Place<Trace> = unsafe { Place::new(Word::Trace) };

/// True if a trace may be in progress: this process, or the one that it was forked from, writes one.
#[inline(always)]
pub(crate) fn on() -> bool {
    wiped::flag(Flag::Trace).load(Relaxed)
}

/// Appends a record if a trace is in progress. Callers ask [`on`] first, because the arguments may be costly. Returns a
/// line for the user, once, if the trace ends with this.
///
/// A free is noted before the real free, so that no allocation of the same address comes before it in the trace.
#[inline]
pub(crate) fn note(
    action: Action,
    kind: AllocKind,
    addr: u64,
    bytes: u64,
    stream: u64,
    tid: u32,
    stack: u32,
) -> Option<String> {
    let time_ns = clock::precise_ns();
    TRACE.get()?.append(Record { time_ns, addr, bytes, stream, tid, stack, action, kind })
}

/// A trace being written. Never freed.
pub(crate) struct Trace {
    file: Descriptor,
    path: PathBuf,
    next: AtomicU64,
    pieces: Box<[Piece]>,
    /// Bytes of a page. A mapping begins at a multiple of them in the file; a piece need not.
    page: u64,
    /// The length of the file. Locked only while a piece is taken.
    end: Mutex<u64>,
    stopped: AtomicBool,
}

/// A mapped part of the file.
#[derive(Default)]
struct Piece {
    at: AtomicPtr<AtomicU64>,
    /// Number of written records. A full piece is unmapped.
    written: AtomicU32,
}

/// Begins this process's trace.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn start(path: &OsStr) -> Result<&'static Trace, String> {
    let trace = Box::leak(Box::new(Trace::create(Path::new(path), page_bytes())?));
    TRACE.set(trace);
    wiped::flag(Flag::Trace).store(true, Relaxed);
    Ok(trace)
}

impl Trace {
    /// Makes the file. An existing file is left alone: another process of this program wrote it, or an earlier run.
    /// Then the pid becomes part of the name.
    fn create(wanted: &Path, page: u64) -> Result<Self, String> {
        let fail = |path: &Path, error: &dyn std::fmt::Display| {
            format!("{}: cannot write an allocation trace there: {error}", path.display())
        };
        let id = this_process().map_err(|why| fail(wanted, &why))?;
        let named = |suffix: String| {
            let mut name = OsString::from(wanted);
            name.push(suffix);
            PathBuf::from(name)
        };
        let others = (1..NAMES).map(|n| match n {
            1 => named(format!(".{}", id.pid)),
            n => named(format!(".{}.{n}", id.pid)),
        });
        let (path, file) = std::iter::once(wanted.to_owned())
            .chain(others)
            .find_map(|path| match storage::make(&path, true) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                other => Some((path, other)),
            })
            .ok_or_else(|| fail(wanted, &"this name and all that begin with it are taken"))?;
        let file = file.map_err(|error| fail(&path, &error))?;
        // SAFETY: geteuid takes no arguments and cannot fail.
        let uid = unsafe { libc::geteuid() };
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            record_bytes: RECORD_BYTES as u32,
            pid: id.pid,
            uid,
            start_ticks: id.start_ticks,
            created_ns: clock::precise_ns(),
            created_real_ns: clock::real_ns(),
            stopped: 0,
        };
        let made = lengthen(file.as_raw_fd(), 0, HEADER_BYTES).and_then(|()| file.write_all_at(header.as_bytes(), 0));
        made.map_err(|error| {
            let _ = std::fs::remove_file(&path);
            fail(&path, &error)
        })?;
        let pieces = (0..PIECES).map(|_| Piece::default()).collect();
        Ok(Self {
            file: file.into(),
            path,
            next: AtomicU64::new(0),
            pieces,
            page,
            end: Mutex::new(HEADER_BYTES),
            stopped: AtomicBool::new(false),
        })
    }

    /// Returns the file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    fn append(&self, record: Record) -> Option<String> {
        if self.stopped.load(Relaxed) {
            return None;
        }
        let index = self.next.fetch_add(1, Relaxed);
        let Some(piece) = self.pieces.get((index / PER_PIECE) as usize) else { return self.stop(libc::EFBIG) };
        let mut at = piece.at.load(Acquire);
        if at.is_null() {
            at = match self.map(index / PER_PIECE, piece) {
                Ok(at) => at,
                Err(error) => return self.stop(error.raw_os_error().unwrap_or(libc::EIO)),
            };
        }
        let words = record.words();
        // SAFETY: a piece stays mapped and backed until all of its records are written. This record
        // is one of them and not written yet. Records are whole, aligned u64s.
        let place =
            unsafe { std::slice::from_raw_parts(at.add((index % PER_PIECE) as usize * words.len()), words.len()) };
        let (last, others) = words.split_last().unwrap_or((&0, &[]));
        place.iter().zip(others).for_each(|(place, &word)| place.store(word, Relaxed));
        place[others.len()].store(*last, Release);
        if piece.written.fetch_add(1, AcqRel) + 1 == PER_PIECE as u32 {
            let before = self.before(index / PER_PIECE);
            // SAFETY: the count says that every record of this piece is written, and no number
            // leads to it again. So no one uses the mapping any more, which `map_shared` made as long as this.
            unsafe { libc::munmap(at.byte_sub(before).cast(), before + PIECE as usize) };
        }
        None
    }

    /// Returns how many bytes of a piece's mapping lie before the piece, since the mapping begins with a page.
    fn before(&self, piece: u64) -> usize {
        ((HEADER_BYTES + piece * PIECE) % self.page) as usize
    }

    /// Takes storage for a piece and maps it.
    #[cold]
    fn map(&self, index: u64, piece: &Piece) -> io::Result<*mut AtomicU64> {
        let mut end = self.end.lock().map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        let at = piece.at.load(Acquire);
        if !at.is_null() {
            return Ok(at);
        }
        let fd = self.file.get().ok_or(io::Error::from_raw_os_error(libc::EBADF))?;
        let offset = HEADER_BYTES + index * PIECE;
        // Numbers are taken in order, but a thread with a number of a later piece may come here first.
        let wanted = offset + PIECE;
        if wanted > *end {
            lengthen(fd, *end, wanted - *end)?;
            *end = wanted;
        }
        let at = map_shared(fd, offset, self.before(index))?;
        piece.at.store(at, Release);
        Ok(at)
    }

    /// Ends the trace because there is no room. Returns a line for the user, unless the trace had ended before.
    #[cold]
    fn stop(&self, errno: i32) -> Option<String> {
        if self.stopped.swap(true, AcqRel) {
            return None;
        }
        if let Some(fd) = self.file.get() {
            let at = std::mem::offset_of!(Header, stopped) as i64;
            let said = u64::from(errno as u32);
            let _uncancelled = crate::process::cancel::Uncancelled::new();
            // SAFETY: pwrite reads one u64, which `said` is. `get` has checked that the descriptor
            // still is ours.
            unsafe { libc::pwrite(fd, (&raw const said).cast(), size_of::<u64>(), at) };
        }
        let error = io::Error::from_raw_os_error(errno);
        Some(format!("{}: the allocation trace ends here: {error}; the program runs on", self.path.display()))
    }
}

/// Maps the piece at `offset`, and `before` bytes before it.
fn map_shared(fd: RawFd, offset: u64, before: usize) -> io::Result<*mut AtomicU64> {
    let (bytes, offset) = (before + PIECE as usize, offset - before as u64);
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free. The caller has an open
    // descriptor, with storage for the whole piece.
    let at = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, fd, offset as i64)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // A child must not write into its parent's trace.
    // SAFETY: mmap has just given this range of `bytes` bytes to this thread alone.
    unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
    // SAFETY: `before` is less than the bytes of the mapping.
    Ok(unsafe { at.byte_add(before) }.cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_wire::trace::read;
    use std::fs::File;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("gpumem-{name}-{}", std::process::id()))
    }

    fn record(n: u64) -> Record {
        let (time_ns, action, kind) = (n, Action::Alloc, AllocKind::Device);
        Record { time_ns, addr: n << 9, bytes: n, stream: 0, tid: 1, stack: 0, action, kind }
    }

    #[test]
    fn threads_append_and_nothing_is_lost() {
        [page_bytes(), 16 << 10, 64 << 10].into_iter().for_each(threads_append_with_pages_of);
    }

    fn threads_append_with_pages_of(page: u64) {
        let path = scratch("threads");
        let trace = Trace::create(&path, page).unwrap();
        let starts = (0..3).map(|piece| HEADER_BYTES + piece * PIECE - trace.before(piece) as u64);
        assert!(
            starts.into_iter().all(|start| start.is_multiple_of(page)),
            "mappings begin with a page of {page} bytes"
        );
        const EACH: u64 = 20_000;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let trace = &trace;
                scope.spawn(move || (0..EACH).for_each(|n| assert!(trace.append(record(thread * EACH + n)).is_none())));
            }
        });
        let read = read(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.torn, 0);
        for thread in 0..4 {
            let of_thread = read.records.iter().filter(|record| record.bytes / EACH == thread);
            assert!(of_thread.map(|record| record.bytes).eq(thread * EACH..(thread + 1) * EACH), "each in its order");
        }
        let unmapped = trace.pieces.iter().filter(|piece| piece.written.load(Relaxed) == PER_PIECE as u32).count();
        assert_eq!(unmapped as u64, 4 * EACH / PER_PIECE);
    }

    #[test]
    fn a_name_that_is_taken_stays_as_it_is() {
        let path = scratch("taken");
        std::fs::write(&path, "mine").unwrap();
        let first = Trace::create(&path, page_bytes()).unwrap();
        let second = Trace::create(&path, page_bytes()).unwrap();
        let name = |n: &str| PathBuf::from(format!("{}.{}{n}", path.display(), std::process::id()));
        assert_eq!((first.path(), second.path()), (name("").as_path(), name(".2").as_path()));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        [first.path(), second.path(), &path].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    #[test]
    fn a_trace_that_cannot_grow_stops_and_says_so() {
        let path = scratch("stops");
        let trace = Trace::create(&path, page_bytes()).unwrap();
        assert_eq!(trace.append(record(1)), None);
        trace.next.store(PIECES as u64 * PER_PIECE, Relaxed);
        assert!(trace.append(record(2)).is_some_and(|line| line.contains("the allocation trace ends here")));
        assert_eq!(trace.append(record(3)), None, "it is said once");
        let read = read(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((read.records.len(), read.header.stopped), (1, libc::EFBIG as u64));
    }
}
