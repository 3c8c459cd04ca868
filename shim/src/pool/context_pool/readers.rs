//! Readers of a context: they fill and read memory within a time limit.
//!
//! While the context is idle a kernel may do the work. Otherwise copies do it, because a kernel of the program may
//! occupy all processors of the device and wait for the program. So the shim never waits for the program's work.

use super::ContextPool;
use super::stuck::Stuck;
use crate::backend::reader::{PINNED, Reader};
use crate::backend::scan;
use crate::gate;
use crate::pool::claims::Claim;
use crate::process::cancel;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::progress::activity;
use crate::records::driver_memory;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

/// The byte that freed and watched memory is filled with, so that its use is recognised.
pub(crate) const POISON: u8 = 0xa5;
/// How often the thread polls for the end before it sleeps between polls, and how long it sleeps.
const LOOKS: u32 = 64;
pub(super) const NAP: Duration = Duration::from_micros(20);
/// The most readers of one context that may wait for the device. Beyond that, nothing is read in that context any more.
const MOST_STUCK: usize = 4;

/// A reader that did not complete in time, with the blocks that it may still read.
struct LateReader {
    reader: Reader,
    _claim: Claim,
}

/// A kernel. `None`: no thread has tried to load it. `Some(None)`: it cannot be loaded, or is being loaded.
pub(super) type Loaded<K> = Mutex<Option<Option<K>>>;

/// The readers of one context.
#[derive(Default)]
pub(crate) struct Readers {
    spare: Mutex<Vec<Reader>>,
    stuck: Stuck<LateReader>,
    /// Number of readers at work for a thread that waits for them.
    at_work: AtomicU32,
    kernel: Loaded<usize>,
    /// The kernel that finds addresses.
    pub(super) scan: Loaded<scan::Kernel>,
    /// Device memory that readers and kernels take, measured by free memory, and the pinned host memory that they take.
    device_bytes: AtomicU64,
    pinned_bytes: AtomicU64,
    /// A bit set of its lists that may be read.
    pub(super) lists: AtomicUsize,
    /// Bytes that it last read in a millisecond. 0: unknown.
    pub(super) scanned_a_ms: AtomicU64,
}

impl Readers {
    /// Drops all readers, since the context is gone.
    pub(crate) fn clear(&self) {
        // Readers that complete just now are put back among the spare ones, or not at all.
        self.stuck.clear();
        lock(&self.spare).clear();
        *lock(&self.kernel) = None;
        *lock(&self.scan) = None;
        self.lists.store(0, Relaxed);
        self.scanned_a_ms.store(0, Relaxed);
        let (device, pinned) = (self.device_bytes.swap(0, Relaxed), self.pinned_bytes.swap(0, Relaxed));
        gate::record_if_started(|shim| {
            shim.count(counters::OWN_DEVICE_REMOVED, device);
            shim.count(counters::OWN_PINNED_REMOVED, pinned);
        });
    }

    /// Makes an object of the shim in the current context, and counts its memory: the device bytes by which free memory
    /// fell, and at least `least`.
    pub(super) fn made<T>(
        &self,
        least: u64,
        pinned: u64,
        make: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let before = gate::record_if_started(|shim| driver_memory::look(shim, Vendor::Cuda)).flatten();
        let made = make()?;
        gate::record_if_started(|shim| {
            let device = before.map_or(0, |before| driver_memory::own_since(shim, &before)).max(least);
            shim.count(counters::OWN_DEVICE_ADDED, device);
            shim.count(counters::OWN_PINNED_ADDED, pinned);
            self.device_bytes.fetch_add(device, Relaxed);
            self.pinned_bytes.fetch_add(pinned, Relaxed);
        });
        Ok(made)
    }

    /// Keeps a reader that has nothing left to do.
    fn spare(&self, mut reader: Reader) {
        if let Some(list) = reader.list.take() {
            self.lists.fetch_and(!(1 << list), Release);
        }
        lock(&self.spare).push(reader);
    }
}

/// The reason why the result is unknown.
pub(crate) enum NotKnown {
    /// The work did not complete in time.
    Stuck,
    Refused(Status),
}

impl ContextPool {
    /// Takes back the readers that have completed their work, which ends their claims. Returns true if none is left.
    pub(crate) fn settle_readers(&self) -> bool {
        // A reader for which the driver returns an error never reads anything.
        let is_done = |late: &LateReader| late.reader.is_done().unwrap_or(true);
        let ask = |stuck: Vec<LateReader>| self.within(|| stuck.into_iter().partition(is_done));
        self.readers.stuck.settle(ask, |late| self.readers.spare(late.reader))
    }

    /// Takes back all readers. Waits at most `longest` for late ones.
    pub(crate) fn settle_readers_within(&self, longest: Duration) {
        cancel::poll(longest, NAP, || self.settle_readers() || activity::broken());
    }

    /// Returns true if neither the program's work nor a reader's is pending, without asking the driver.
    pub(in crate::pool) fn known_quiet(&self) -> bool {
        self.known_idle() && self.readers.at_work.load(SeqCst) == 0 && self.readers.stuck.len() == 0
    }

    /// Lets a reader do work in the context, in memory of the claimed blocks, and then takes the result. `idle`: no
    /// work of the program occupies the processors. `None`: the result is unknown, and some of the work may go on, for
    /// as long as the blocks stay claimed.
    pub(crate) fn with_reader<R, T>(
        &self,
        idle: bool,
        claim: &Claim,
        longest: Duration,
        does: impl FnOnce(&mut ReaderWork<'_>) -> Result<R, NotKnown>,
        take: impl FnOnce(&mut Reader, R) -> T,
    ) -> Option<T> {
        let generation = self.generation();
        let _at_work = Raised::new(&self.readers.at_work);
        let (reader, done) = self.within(|| {
            let mut reader = self.reader(idle)?;
            let end = Instant::now() + longest;
            let done = does(&mut ReaderWork { reader: &mut reader, idle, end });
            Some((reader, done))
        })?;
        self.finish(reader, generation, claim, done, |reader, done| Some(take(reader, done)))
    }

    /// Takes the result of a reader's work, if it is known, and puts the reader back.
    pub(super) fn finish<R, T>(
        &self,
        mut reader: Reader,
        generation: u32,
        claim: &Claim,
        done: Result<R, NotKnown>,
        take: impl FnOnce(&mut Reader, R) -> Option<T>,
    ) -> Option<T> {
        let late = done.is_err().then_some(claim);
        if let Err(NotKnown::Refused(status)) = done {
            activity::saw(status);
        }
        let taken = done.ok().and_then(|done| take(&mut reader, done));
        self.put_back(reader, generation, late);
        taken
    }

    /// Copies `bytes`, at most [`ROOM`](crate::backend::reader::ROOM), out of a claimed block beside any work, and
    /// passes them to `read`. `None`: not done, and some of the work may go on, for as long as the block stays claimed.
    pub(crate) fn copy_out(
        &self,
        (addr, bytes): (u64, usize),
        claim: &Claim,
        longest: Duration,
        read: impl FnOnce(&[u8]),
    ) -> Option<()> {
        let copy = |work: &mut ReaderWork<'_>| {
            work.reader.copy(addr, bytes).map_err(NotKnown::Refused)?;
            work.wait()
        };
        self.with_reader(false, claim, longest, copy, |reader, ()| read(reader.copied(bytes)))
    }

    /// Puts a reader back for the next use, or among the late ones if its work has not completed. `late`: the blocks
    /// that it may still read then.
    pub(super) fn put_back(&self, reader: Reader, generation: u32, late: Option<&Claim>) {
        // The pool may now be for another context, and the reader belongs to the earlier one.
        if self.generation() == generation {
            match late {
                Some(claim) => self.readers.stuck.add(LateReader { reader, _claim: claim.of_late_reader() }),
                None => self.readers.spare(reader),
            }
        }
    }

    /// Returns an unused reader in the current context. `idle`: the kernel may be loaded, which waits for work.
    pub(super) fn reader(&self, idle: bool) -> Option<Reader> {
        self.settle_readers();
        if self.readers.stuck.len() >= MOST_STUCK || activity::broken() {
            return None;
        }
        let spare = lock(&self.readers.spare).pop();
        let new = || self.readers.made(0, PINNED as u64, || Reader::new(POISON)).ok();
        let mut reader = spare.or_else(new)?;
        if idle
            && !reader.has_kernel()
            && let Some(kernel) = loaded(&self.readers.kernel, || self.readers.made(0, 0, Reader::load))
        {
            reader.has(kernel);
        }
        Some(reader)
    }
}

/// Returns a kernel in the current context. Loads it if no thread has tried yet. Loading waits for work.
pub(super) fn loaded<K: Copy>(place: &Loaded<K>, load: impl FnOnce() -> Result<K, Status>) -> Option<K> {
    let mut known = lock(place);
    if let Some(kernel) = *known {
        return kernel;
    }
    *known = Some(None);
    drop(known);
    let kernel = load().ok();
    *lock(place) = Some(kernel);
    kernel
}

/// The work of a reader.
pub(crate) struct ReaderWork<'a> {
    pub reader: &'a mut Reader,
    /// No work of the program occupies the processors.
    pub idle: bool,
    end: Instant,
}

impl ReaderWork<'_> {
    /// Waits for all work that was begun.
    pub(crate) fn wait(&self) -> Result<(), NotKnown> {
        let mut looks = 0;
        while !self.reader.is_done().map_err(NotKnown::Refused)? {
            looks += 1;
            if looks > LOOKS {
                cancel::sleep(NAP);
            }
            if looks % 16 == 0 && Instant::now() > self.end {
                return Err(NotKnown::Stuck);
            }
        }
        Ok(())
    }
}
