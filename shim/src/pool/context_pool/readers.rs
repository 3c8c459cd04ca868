//! Filling and reading what the guard watches, by the readers of a context, within a time.
//!
//! While the context rests the device's processors do it. Else copies do: a kernel of the program's may have all
//! processors, and wait for the program. So nothing of ours waits for the program's work.

use super::ContextPool;
use crate::process::cancel;
use crate::process::lock::lock;
use crate::progress::activity;
use crate::vendor::reader::{ANSWERS, Mismatch, ROOM, Reader};
use crate::vendor::scan::{self, Wanted};
use gpumem_abi::types::Status;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// What memory that the guard watches is filled with.
const VALUE: u8 = 0xa5;
/// Bytes that a block of threads reads at least, and the most blocks that one range is given.
const CHUNK: u64 = 64 << 10;
const CHUNKS: u64 = 1024;
/// Looks for the end before the thread sleeps in between, and how long it sleeps.
const LOOKS: u32 = 64;
const NAP: Duration = Duration::from_micros(20);
/// In place of a kernel: nobody has tried to load it.
const UNKNOWN: usize = 0;
/// It cannot be loaded, or is just being loaded.
const NONE: usize = 1;
/// Readers of one context that wait for the device: with more, nothing is read there any more.
const MOST_STUCK: usize = 4;

/// One thing that is to be done with memory.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    /// Fills so many bytes from an address with [`VALUE`].
    Fill(u64, u64),
    /// Looks which of them are others.
    Read(u64, u64),
}

/// The readers of one context.
#[derive(Default)]
pub(crate) struct Readers {
    spare: Mutex<Vec<Reader>>,
    /// Those whose work was not over in time.
    stuck: Mutex<Vec<Reader>>,
    any_stuck: AtomicBool,
    kernel: AtomicUsize,
    /// The one that finds addresses, likewise.
    scan: AtomicUsize,
}

impl Readers {
    /// The context is gone, and all of its readers with it.
    pub(crate) fn clear(&self) {
        lock(&self.spare).clear();
        lock(&self.stuck).clear();
        self.any_stuck.store(false, Relaxed);
        self.kernel.store(UNKNOWN, Relaxed);
        self.scan.store(UNKNOWN, Relaxed);
    }
}

/// How memory is to be looked through for addresses.
pub(crate) struct Scan<'a> {
    pub wanted: &'a Wanted,
    pub longest: Duration,
    /// Whether it is to end early.
    pub is_over: &'a dyn Fn() -> bool,
}

/// Why nothing is known.
enum Why {
    /// It was not over in time.
    Stuck,
    Refused(Status),
}

impl ContextPool {
    /// Whether readers have nothing left to do: memory that they were given may go without a wait.
    pub(crate) fn readers_rest(&self) -> bool {
        if !self.readers.any_stuck.load(Acquire) {
            return true;
        }
        let stuck = std::mem::take(&mut *lock(&self.readers.stuck));
        // One that the driver answers an error about will never read anything.
        let is_done = |reader: &Reader| reader.is_done().unwrap_or(true);
        let (done, stuck): (Vec<_>, Vec<_>) = self.within(|| stuck.into_iter().partition(is_done));
        lock(&self.readers.spare).extend(done);
        let mut all = lock(&self.readers.stuck);
        all.extend(stuck);
        self.readers.any_stuck.store(!all.is_empty(), Release);
        all.is_empty()
    }

    /// Does these jobs in their order; what was found, one for each that reads. `None`: that is not known, and some of
    /// it may still be done, while [`ContextPool::readers_rest`] says no.
    pub(crate) fn work_through(&self, jobs: &[Job], longest: Duration) -> Option<Vec<Mismatch>> {
        self.with_reader(self.is_idle(), longest, |work| work.all(jobs), |_, found| found)
    }

    /// Has a reader do something in the current context, and then takes what it did. `rests`: nothing else has the
    /// processors.
    fn with_reader<R, T>(
        &self,
        rests: bool,
        longest: Duration,
        does: impl FnOnce(&mut Work<'_>) -> Result<R, Why>,
        take: impl FnOnce(&mut Reader, R) -> T,
    ) -> Option<T> {
        let generation = self.generation();
        let (mut reader, done) = self.within(|| {
            let mut reader = self.reader(rests)?;
            let done = does(&mut Work { reader: &mut reader, rests, end: Instant::now() + longest });
            Some((reader, done))
        })?;
        let is_stuck = done.is_err();
        let taken = match done {
            Ok(done) => Some(take(&mut reader, done)),
            Err(Why::Refused(status)) => {
                activity::saw(status);
                None
            }
            Err(Why::Stuck) => None,
        };
        self.put_back(reader, generation, is_stuck);
        taken
    }

    /// Has so many bytes, [`ROOM`] at most, copied out of device memory beside any work, and looked at. `None`: that was
    /// not done, and some of it may still be under way, while [`ContextPool::readers_rest`] says no.
    pub(crate) fn copy_out(&self, addr: u64, bytes: usize, longest: Duration, read: impl FnOnce(&[u8])) -> Option<()> {
        let copy = |work: &mut Work<'_>| {
            work.reader.copy(addr, bytes).map_err(Why::Refused)?;
            work.wait()
        };
        self.with_reader(false, longest, copy, |reader, ()| read(reader.copied(bytes)))
    }

    /// Has words of device memory looked at by a kernel, while the context rests, and is given those that may be addresses.
    /// `None`: not all that were there are known; the memory may be copied instead. Some of it may still be under way,
    /// while [`ContextPool::readers_rest`] says no.
    pub(crate) fn scan(&self, addr: u64, words: u64, how: &Scan<'_>, read: impl FnOnce(&[u64])) -> Option<()> {
        // Where a kernel of the program's has all processors ours would wait for its end.
        if !self.is_idle() {
            return None;
        }
        // While the context rests, since to load it waits for work.
        let kernel = self.within(|| loaded(&self.readers.scan, scan::load))?;
        let look = |work: &mut Work<'_>| {
            scan::scan(work.reader, kernel, addr, words, how.wanted).map_err(Why::Refused)?;
            work.wait_unless(how.is_over)
        };
        self.with_reader(false, how.longest, look, |reader, ()| scan::passed(reader).map(read)).flatten()
    }

    /// A reader is not used any more, unless what it was to do is still under way.
    fn put_back(&self, reader: Reader, generation: u32, is_stuck: bool) {
        // The context may be another by now, whose readers these are not.
        if self.generation() == generation {
            let list = if is_stuck { &self.readers.stuck } else { &self.readers.spare };
            lock(list).push(reader);
            if is_stuck {
                self.readers.any_stuck.store(true, Release);
            }
        }
    }

    /// A reader that nobody uses, in the current context. `rests`: the kernel may be loaded, which waits for work.
    fn reader(&self, rests: bool) -> Option<Reader> {
        self.readers_rest();
        if lock(&self.readers.stuck).len() >= MOST_STUCK || activity::broken() {
            return None;
        }
        let spare = lock(&self.readers.spare).pop();
        let mut reader = spare.or_else(|| Reader::new(VALUE).ok())?;
        if rests
            && !reader.has_kernel()
            && let Some(kernel) = loaded(&self.readers.kernel, Reader::load)
        {
            reader.has(kernel);
        }
        Some(reader)
    }
}

/// A kernel in the current context. Where nobody has tried yet it is loaded, which waits for work.
fn loaded(kernel: &AtomicUsize, load: fn() -> Result<usize, Status>) -> Option<usize> {
    if kernel.compare_exchange(UNKNOWN, NONE, Relaxed, Relaxed).is_ok()
        && let Ok(loaded) = load()
    {
        kernel.store(loaded, Relaxed);
    }
    Some(kernel.load(Relaxed)).filter(|&kernel| kernel != UNKNOWN && kernel != NONE)
}

struct Work<'a> {
    reader: &'a mut Reader,
    /// Nothing else has the processors.
    rests: bool,
    end: Instant,
}

impl Work<'_> {
    fn all(&mut self, jobs: &[Job]) -> Result<Vec<Mismatch>, Why> {
        let mut found = Vec::with_capacity(jobs.len());
        // Chunks of ranges whose answers are still to come.
        let mut open: Vec<usize> = Vec::new();
        let mut used = 0;
        for &job in jobs {
            match job {
                Job::Fill(addr, bytes) if self.rests => {
                    self.reader.fill(addr, bytes, VALUE).map_err(Why::Refused)?;
                }
                Job::Fill(addr, bytes) => self.reader.fill_by_copies(addr, bytes).map_err(Why::Refused)?,
                Job::Read(addr, bytes) if self.rests && self.reader.has_kernel() => {
                    let chunk = (bytes / CHUNKS).next_multiple_of(16).max(CHUNK);
                    let chunks = bytes.div_ceil(chunk) as usize;
                    if used + chunks > ANSWERS {
                        self.answered(&mut open, &mut used, &mut found)?;
                    }
                    self.reader.read(addr, bytes, chunk, VALUE, used).map_err(Why::Refused)?;
                    open.push(chunks);
                    used += chunks;
                }
                Job::Read(addr, bytes) => {
                    self.answered(&mut open, &mut used, &mut found)?;
                    found.push(self.read_by_copies(addr, bytes)?);
                }
            }
        }
        self.answered(&mut open, &mut used, &mut found)?;
        Ok(found)
    }

    /// Waits for all that was begun, and takes the answers.
    fn answered(&mut self, open: &mut Vec<usize>, used: &mut usize, found: &mut Vec<Mismatch>) -> Result<(), Why> {
        self.wait()?;
        let mut at = 0;
        for chunks in open.drain(..) {
            found.push(self.reader.answers(at, chunks));
            at += chunks;
        }
        *used = 0;
        Ok(())
    }

    fn read_by_copies(&mut self, addr: u64, bytes: u64) -> Result<Mismatch, Why> {
        let mut found = Mismatch::NOTHING;
        for at in (0..bytes).step_by(ROOM) {
            let piece = (bytes - at).min(ROOM as u64) as usize;
            self.reader.copy(addr + at, piece).map_err(Why::Refused)?;
            self.wait()?;
            found = found.and(Mismatch::of(self.reader.copied(piece), at, VALUE));
        }
        Ok(found)
    }

    fn wait(&self) -> Result<(), Why> {
        self.wait_unless(&|| false)
    }

    /// Waits; has a kernel that looks at its word end early where it is to.
    fn wait_unless(&self, is_over: &dyn Fn() -> bool) -> Result<(), Why> {
        let mut looks = 0;
        while !self.reader.is_done().map_err(Why::Refused)? {
            looks += 1;
            if looks % 16 == 0 && is_over() {
                self.reader.cancel();
            }
            if looks > LOOKS {
                cancel::sleep(NAP);
            }
            if looks % 16 == 0 && Instant::now() > self.end {
                self.reader.cancel();
                return Err(Why::Stuck);
            }
        }
        Ok(())
    }
}
