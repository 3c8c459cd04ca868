//! The pool of one context: its blocks and their bytes.
//!
//! * [`idle`]: idle blocks by size and age. [`quarantine`]: freed blocks that are kept from use. [`pending`]:
//!   freed blocks that wait for work to complete, each covered by an event.
//! * [`barrier`] waits for the context's work, or checks for pending work, by events.
//! * [`streams`]: blocks go back to the driver without a wait, and are filled, also during captures. [`hold`] keeps the
//!   context from ending while its pool is in use.
//! * [`readers`] fill and read memory; [`stuck`] holds those that did not complete in time. [`scanning`] searches
//!   memory for addresses.

mod barrier;
mod hold;
mod idle;
mod pending;
mod quarantine;
mod readers;
mod scanning;
mod streams;
mod stuck;

mod sync {
    pub(super) use crate::process::lock::lock;
    pub(super) use std::sync::Mutex;
}

pub(crate) use hold::PoolHold;
pub(super) use idle::Most;
pub(crate) use quarantine::Out;
pub(crate) use readers::{NotKnown, POISON, ReaderWork};
pub(crate) use scanning::{Scan, Scanning};

use super::block::Block;
use super::in_transit::InTransit;
use crate::backend::memory::{Event, MemoryCalls};
use crate::gate;
use crate::process::aside::Aside;
use crate::process::clock;
use crate::process::lock::lock;
use crate::progress::activity;
use crate::records::grouped;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use readers::Readers;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard};

/// Live memory may grow by one part in this many of its peak, and by at least [`GROWTH_BYTES`], before idle blocks make
/// way.
const GROWTH_SHARE: u64 = 6;
const GROWTH_BYTES: u64 = 32 << 20;
/// If a free waits for work, idle memory cannot go back while the device works. Then one part in this many of the free
/// memory may be kept.
const BESIDE_WORK: u64 = 16;
/// Free memory is measured again after this time, ns, or after more memory was taken from the driver.
const MEASURED_EVERY_NS: u64 = 100_000_000;
/// A submission count that means: the context was never known to be idle.
const NEVER: u64 = u64::MAX;

/// The pool of one context. It is never freed, so a reference to it needs no lock. After its context has ended, and
/// many other contexts since, it is reused for another context of its device ([`ContextPool::begin_again`]).
pub(crate) struct ContextPool {
    pub vendor: Vendor,
    context: AtomicU64,
    record: AtomicU16,
    /// Number of earlier contexts of this pool. Blocks and events of an earlier context do not enter it.
    generation: AtomicU32,
    pub device: Device,
    /// Idle bytes that it may keep if the user sets no bound.
    pub share: u64,
    pub calls: &'static dyn MemoryCalls,
    /// The context has ended, and all its blocks with it.
    gone: AtomicBool,
    /// The submission count ([`activity::submissions_if_none_open`]) up to which all work is known to have completed.
    idle_at: AtomicU64,
    without_events: AtomicBool,
    /// The vendor's pool has, or had, another context on this device.
    has_neighbours: AtomicBool,
    /// Bytes of driver allocations, live and idle.
    held: AtomicU64,
    /// Bytes of the idle blocks here, without those in threads' caches.
    idle: AtomicU64,
    idle_peak: AtomicU64,
    live_peak: AtomicU64,
    inner: Mutex<KeptBlocks>,
    /// The shim's spare events.
    events: Mutex<Vec<Event>>,
    /// Number of threads that give blocks back now, or wait to do so. The context does not end before it is 0.
    releasing: AtomicU32,
    /// The stream on which blocks are given back and filled, or [`streams::UNKNOWN`], or the value for none.
    release_stream: AtomicUsize,
    /// The most idle bytes if frees wait for work ([`ContextPool::frees_wait`]).
    beside_work: AtomicU64,
    /// The bytes held, and the time, ns, at the last measurement.
    measured: (AtomicU64, AtomicU64),
    /// Time of the last look at the ages of idle blocks, ns.
    aged_ns: AtomicU64,
    /// The shim's thread that makes real frees, which may wait for work.
    freeing: Aside,
    /// How many times in a row the context was at work when memory was to go back.
    found_busy: AtomicU64,
    /// Blocks of its device that are in transit.
    pub in_transit: &'static InTransit,
    /// Kernel, streams and memory with which memory is filled and read.
    readers: Readers,
}

#[derive(Default)]
struct KeptBlocks {
    /// By size and address: the lowest address of the smallest fitting size is taken, so that a program that repeats
    /// itself gets the same addresses.
    by_size: BTreeMap<(u64, u64), &'static Block>,
    by_age: BTreeMap<u64, &'static Block>,
    turn: u64,
    /// Freed blocks that no event covers yet.
    open: Vec<&'static Block>,
    next_batch: u64,
    batches: VecDeque<Batch>,
    /// Freed blocks that are kept from use, by the turn in which they were freed.
    quarantine: BTreeMap<u64, &'static Block>,
    /// Bytes of these blocks, and of those that a check is reading.
    quarantined: u64,
}

struct Batch {
    /// The number of the batch. Events are reused, numbers are not.
    number: u64,
    event: Event,
    /// Result of [`activity::submissions_if_none_open`] before the event was recorded.
    submissions: Option<u64>,
    blocks: Vec<&'static Block>,
}

#[cfg(test)]
impl ContextPool {
    /// Makes the pool of a context that no driver knows.
    pub(crate) fn for_test(context: u64, device: Device, share: u64) -> &'static Self {
        use crate::backend::memory;
        let (vendor, in_transit) = (Vendor::Cuda, Box::leak(Box::default()));
        Box::leak(Box::new(Self::new(vendor, context, 0, device, share, memory::calls(vendor), in_transit)))
    }
}

impl ContextPool {
    pub(crate) fn new(
        vendor: Vendor,
        context: u64,
        record: ContextRef,
        device: Device,
        share: u64,
        calls: &'static dyn MemoryCalls,
        in_transit: &'static InTransit,
    ) -> Self {
        Self {
            vendor,
            context: context.into(),
            record: record.into(),
            generation: AtomicU32::new(0),
            device,
            share,
            calls,
            gone: AtomicBool::new(false),
            idle_at: AtomicU64::new(NEVER),
            without_events: AtomicBool::new(false),
            has_neighbours: AtomicBool::new(false),
            held: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            idle_peak: AtomicU64::new(0),
            live_peak: AtomicU64::new(0),
            inner: Mutex::default(),
            events: Mutex::default(),
            releasing: AtomicU32::new(0),
            release_stream: AtomicUsize::new(streams::UNKNOWN),
            beside_work: AtomicU64::new(0),
            measured: Default::default(),
            aged_ns: AtomicU64::new(0),
            freeing: Aside::default(),
            found_busy: AtomicU64::new(0),
            in_transit,
            readers: Readers::default(),
        }
    }

    /// Makes an empty pool for the same context.
    pub(super) fn renewed(&self) -> Self {
        let Self { vendor, device, share, calls, in_transit, .. } = *self;
        let again = Self::new(vendor, self.context(), self.record(), device, share, calls, in_transit);
        again.release_stream.store(self.release_stream.load(Relaxed), Relaxed);
        again
    }

    /// Returns the pool that a block belongs to.
    #[inline(always)]
    pub(crate) fn of(block: &Block) -> Option<&'static Self> {
        // SAFETY: null, or the pointer that `claim` stored: a ContextPool from a leaked box. ContextPools are never
        // freed, not even after their contexts have ended.
        unsafe { block.context_pool.load(Relaxed).cast::<Self>().as_ref() }
    }

    /// Returns true if a block belongs to this pool.
    #[inline(always)]
    pub(crate) fn has(&self, block: &Block) -> bool {
        Self::of(block).is_some_and(|its| std::ptr::eq(its, self))
    }

    /// Assigns a block to this pool.
    pub(crate) fn claim(&'static self, block: &Block) {
        block.context_pool.store(std::ptr::from_ref(self).cast_mut().cast(), Relaxed);
    }

    #[inline]
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Relaxed)
    }

    #[inline]
    pub(crate) fn record(&self) -> ContextRef {
        self.record.load(Relaxed)
    }

    /// Returns the generation, which tells the present context from earlier ones.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Acquire)
    }

    /// Assigns this pool to another context. No thread has had a reason to use the pool since its last context ended.
    pub(super) fn begin_again(&self, context: u64, record: ContextRef) {
        self.generation.fetch_add(1, AcqRel);
        // A thread may have used the pool while its last context ended, and may have left events.
        self.events_now().clear();
        *lock(&self.inner) = KeptBlocks::default();
        let (held, then) = &self.measured;
        for count in [&self.held, &self.idle, &self.idle_peak, &self.live_peak, &self.found_busy, &self.beside_work] {
            count.store(0, Relaxed);
        }
        [held, then, &self.aged_ns].into_iter().for_each(|last| last.store(0, Relaxed));
        self.idle_at.store(NEVER, Relaxed);
        self.without_events.store(false, Relaxed);
        self.has_neighbours.store(false, Relaxed);
        self.release_stream.store(streams::UNKNOWN, Relaxed);
        self.readers.clear();
        self.context.store(context, Relaxed);
        self.record.store(record, Relaxed);
        self.gone.store(false, SeqCst);
    }

    fn events_now(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.events)
    }

    /// Returns true if nothing was submitted since the last work that is known to have completed.
    #[inline]
    pub(crate) fn known_idle(&self) -> bool {
        self.calls.sees_all() && self.unchanged_since_idle()
    }

    /// As [`ContextPool::known_idle`], for callers that have checked that all submissions are seen.
    #[inline(always)]
    pub(crate) fn unchanged_since_idle(&self) -> bool {
        activity::unchanged_since(self.idle_at.load(Acquire))
    }

    /// Notes that all work up to this submission count has completed.
    pub(super) fn found_idle(&self, at: Option<u64>) {
        if let Some(at) = at {
            // Counts only grow. NEVER is above all counts, and any count replaces it.
            let _ = self.idle_at.fetch_update(AcqRel, Acquire, |known| (known == NEVER || known < at).then_some(at));
        }
    }

    /// Returns true if the context has ended, and all its blocks with it.
    #[inline(always)]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Notes that the context ends.
    pub(super) fn end(&self) {
        self.gone.store(true, SeqCst);
    }

    /// Returns true if the vendor's pool has, or had, another context on this device.
    pub(super) fn has_neighbours(&self) -> bool {
        self.has_neighbours.load(Relaxed)
    }

    pub(super) fn note_neighbour(&self) {
        self.has_neighbours.store(true, Relaxed);
    }

    pub(super) fn idle_peak(&self) -> u64 {
        self.idle_peak.load(Relaxed)
    }

    /// Returns the thread that makes real frees.
    pub(super) fn freeing(&'static self) -> &'static Aside {
        &self.freeing
    }

    pub(super) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Notes if the context was at work when memory was to go back. Returns how many times in a row it was.
    pub(super) fn count_busy(&self, is_busy: bool) -> u64 {
        let times = if is_busy { self.found_busy.load(Relaxed) + 1 } else { 0 };
        self.found_busy.store(times, Relaxed);
        times
    }

    /// Begins a look at the ages of idle blocks, unless the last one was less than `every_ns` ago: returns false then.
    pub(super) fn begin_look(&self, now_ns: u64, every_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.aged_ns.load(Relaxed)) >= every_ns;
        if is_due {
            self.aged_ns.store(now_ns, Relaxed);
        }
        is_due
    }

    /// Returns the most idle bytes if frees wait for work ([`ContextPool::frees_wait`]).
    pub(super) fn beside_work(&self) -> u64 {
        self.beside_work.load(Relaxed)
    }

    /// Measures how much may be kept if frees wait for work, unless that cannot have changed. Returns true if it has.
    #[cold]
    pub(super) fn measure_beside_work(&self) -> bool {
        let (held, now, (held_then, then)) = (self.held(), clock::now_ns(), &self.measured);
        if held <= held_then.swap(held, Relaxed) && now.saturating_sub(then.load(Relaxed)) < MEASURED_EVERY_NS {
            return false;
        }
        then.store(now, Relaxed);
        let may = self.within(|| self.calls.free_bytes()).map_or(0, |free| free / BESIDE_WORK);
        self.beside_work.swap(may, Relaxed) != may
    }

    /// Runs a call in this context.
    pub(crate) fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        self.calls.within(self.context(), f)
    }

    /// Returns the bytes of driver allocations, live and idle.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Returns the bytes of idle blocks that are in no thread's cache.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// Adds a driver allocation of `bytes`, for the group as well.
    pub(crate) fn grew(&self, bytes: u64) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.live_peak.fetch_max(held.saturating_sub(self.idle()), Relaxed);
        if let Some(shim) = gate::shim() {
            grouped::took(shim, self.record(), bytes);
        }
    }

    /// Subtracts a driver allocation that went back, for the group as well: less of it if the context has ended
    /// meanwhile.
    pub(crate) fn shrank(&self, bytes: u64) {
        let before = self.held.fetch_update(Relaxed, Relaxed, |held| Some(held.saturating_sub(bytes)));
        // Not through the gate: this may run while the program's own free is being recorded.
        if let (Some(shim), Ok(held)) = (gate::shim(), before) {
            grouped::gave(shim, self.record(), held.min(bytes));
        }
    }

    /// Sets the held bytes to 0, since all allocations ended with the context. Returns the bytes before.
    pub(crate) fn lost_all(&self) -> u64 {
        self.held.swap(0, Relaxed)
    }

    /// Returns the bytes of idle blocks that should make way for this growth.
    pub(crate) fn in_the_way(&self, growth: u64) -> u64 {
        let held = self.held() + growth;
        let peak = self.live_peak.load(Relaxed).max(held.saturating_sub(self.idle()));
        held.saturating_sub(peak + (peak / GROWTH_SHARE).max(GROWTH_BYTES)).min(self.idle())
    }
}
