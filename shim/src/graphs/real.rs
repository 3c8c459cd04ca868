//! A real exec: its handle, its content, its last launch, and the lease on it.

use super::class::{Class, Template};
use super::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use crate::backend::graphs::{Event, StreamArg};
use crate::backend::source::Records;
use crate::process::threads;
use gpumem_abi::types::{GraphExec, Stream};
use std::cell::UnsafeCell;
use std::sync::{Arc, Weak};

/// The stream of a launch, as a number that differs between streams. For a default stream it is the special handle,
/// with further numbers above it: that of its context or device, and for a per-thread stream that of the thread.
pub(crate) type StreamKey = u64;
/// No launch is pending.
pub(crate) const NOWHERE: StreamKey = 0;
/// The last launch was on a stream that is gone, and its completion cannot be known.
pub(crate) const LOST: StreamKey = u64::MAX;
/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// Handles of streams are addresses of objects: no other key has these bits.
const SPECIAL: u64 = 3;
const HOME_SHIFT: u32 = 8;
const THREAD_SHIFT: u32 = 32;

/// An exec is degraded once a single retarget gave one in this many of its nodes another shape.
const DEGRADED_SHARE: u64 = 8;

/// Returns the key of a stream that has a handle of its own. `None` for a default stream.
#[inline(always)]
pub(crate) fn key_by_handle(stream: Stream) -> Option<StreamKey> {
    (stream as StreamKey > PER_THREAD).then_some(stream as StreamKey)
}

#[inline]
pub(crate) fn key_of(to: StreamArg) -> StreamKey {
    let home = u64::from(to.home) << HOME_SHIFT;
    match to.stream as u64 {
        0 if !to.per_thread => LEGACY | home,
        LEGACY => LEGACY | home,
        0 | PER_THREAD => PER_THREAD | home | u64::from(threads::tid(|_| {})) << THREAD_SHIFT,
        stream => stream,
    }
}

/// Returns the stream of a key, if this thread can name it.
pub(crate) fn stream_of(stream_key: StreamKey) -> Option<StreamArg> {
    let home = (stream_key >> HOME_SHIFT) as u32 & ((1 << (THREAD_SHIFT - HOME_SHIFT)) - 1);
    let special = |stream: u64| Some(StreamArg { home, ..StreamArg::new(stream as Stream, false) });
    match stream_key {
        NOWHERE | LOST => None,
        stream_key if stream_key & SPECIAL == PER_THREAD => {
            let ours = stream_key >> THREAD_SHIFT == u64::from(threads::tid(|_| {}));
            if ours { special(PER_THREAD) } else { None }
        }
        stream_key if stream_key & SPECIAL == LEGACY => special(LEGACY),
        stream_key => Some(StreamArg::new(stream_key as Stream, false)),
    }
}

/// Returns true if a key is that of the legacy stream of any context.
pub(crate) fn is_legacy(stream_key: StreamKey) -> bool {
    stream_key != NOWHERE && stream_key != LOST && stream_key & SPECIAL == LEGACY
}

/// Returns the handle of the stream that a key stands for. `None` for default streams.
pub(crate) fn handle_of(stream_key: StreamKey) -> Option<u64> {
    (stream_key != NOWHERE && stream_key != LOST && stream_key & SPECIAL == 0).then_some(stream_key)
}

/// Bit of [`RealExec::lease`]: one thread has the exec for itself. The lower bits count launches that are being made.
const EXCLUSIVE: u32 = 1 << 31;

/// A real exec. It is never freed, only reused. The fields that a launch reads and writes come first and are in one
/// cache line, as in `Handle`. So are the fields that tell if another handle's launch may take the exec, since for
/// that many execs are looked at.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct RealExec {
    lease: AtomicU32,
    /// True if the body's event covers the last launch.
    pub marked: AtomicBool,
    exec: AtomicUsize,
    /// The key of the stream on which the last launch may be pending.
    pub stream_key: AtomicU64,
    /// Last launch, ns.
    pub used_ns: AtomicU64,
    /// The index of its handle plus one. 0: no handle has the exec.
    handle: AtomicU32,
    /// The address of its class. 0: the exec stays with one handle for good, or is not in use.
    pub class: AtomicUsize,
    /// The time of a launch that does not count in the order of last uses, and the exec's position in that order.
    uncounted_ns: AtomicU64,
    place_ns: AtomicU64,
    pub context: AtomicU64,
    /// The exec's content is unknown, so its lease is never given back.
    pub lost: AtomicBool,
    /// No handle can use the exec. It is destroyed once it has completed.
    pub to_destroy: AtomicBool,
    /// The library may wait for the device when it destroys the exec.
    pub waits: AtomicBool,
    /// Many of its nodes were given another shape, so the device takes longer for them.
    pub degraded: AtomicBool,
    /// The time of the last launch that left an event, by the precise clock: the other clock may give two launches the
    /// same time.
    pub launched_ns: AtomicU64,
    /// A context that ended while another thread had the lease for too long. If it is this exec's context, the exec is
    /// never passed to the library again.
    abandoned: AtomicU64,
    /// Estimated bytes of it on the host, and on the device.
    host_bytes: AtomicU64,
    device_bytes: AtomicU64,
    body: UnsafeCell<ExecBody>,
}

/// Fields that only the holder of the lease may touch.
#[derive(Default)]
pub(crate) struct ExecBody {
    pub class: Option<Arc<Class>>,
    pub template: Option<Arc<Template>>,
    pub content: Records,
    /// Nodes that are switched off.
    pub disabled: Vec<u32>,
    pub event: Option<Event>,
    /// True if the exec was ever launched.
    pub launched: bool,
    /// The exec's content is unknown, so no handle can use it.
    pub broken: bool,
    /// Its next launch does not count in the order of last uses.
    pub stays: bool,
    /// The clone that it holds now, if its class has clones.
    pub holds: Weak<Template>,
    /// Events after earlier launches on other streams, in libraries that do not order the launches of one exec.
    pub earlier: Vec<Event>,
    /// There was such a launch, and its completion cannot be known.
    pub unknown: bool,
    /// Number of whole updates since it was instantiated.
    pub updates: u32,
}

// SAFETY: `body` is reached only through a `Lease`, and one exists at a time. The other fields are atomics.
unsafe impl Sync for RealExec {}

impl RealExec {
    /// Returns the index of the handle that has the exec; `None` if the exec is parked.
    pub(crate) fn handle_index(&self) -> Option<u32> {
        self.handle.load(Relaxed).checked_sub(1)
    }

    /// Returns true if no handle has the exec.
    pub(crate) fn is_parked(&self) -> bool {
        self.handle_index().is_none()
    }

    /// Gives the exec to the handle with this index, or to none.
    pub(crate) fn set_handle(&self, index: Option<u32>) {
        self.handle.store(index.map_or(0, |index| index + 1), Relaxed);
    }

    /// Returns its position in the order of last uses.
    pub(crate) fn place(&self) -> u64 {
        let used = self.used_ns.load(Relaxed);
        if self.uncounted_ns.load(Relaxed) == used { self.place_ns.load(Relaxed) } else { used }
    }

    /// Notes a launch of the exec. If `stays`, it keeps its position in the order of last uses.
    pub(crate) fn used(&self, now: u64, stays: bool) {
        if stays {
            self.place_ns.store(self.place(), Relaxed);
            self.uncounted_ns.store(now, Relaxed);
        }
        self.used_ns.store(now, Relaxed);
    }

    /// Takes the position just before `other` in the order of last uses. `other` moves to the time of its own last
    /// launch. (Both may have the same position, because the clock ticks every few milliseconds.)
    pub(crate) fn takes_place_of(&self, other: &Self) {
        self.place_ns.store(other.place().saturating_sub(1), Relaxed);
        self.uncounted_ns.store(self.used_ns.load(Relaxed), Relaxed);
        other.uncounted_ns.store(0, Relaxed);
    }

    pub(crate) fn exec(&self) -> GraphExec {
        self.exec.load(Relaxed) as GraphExec
    }

    /// Joins the launches that are being made. Returns false if one thread has the exec for itself.
    #[inline(always)]
    pub(crate) fn share(&self) -> bool {
        if self.lease.fetch_add(1, Acquire) & EXCLUSIVE == 0 {
            return true;
        }
        self.lease.fetch_sub(1, Release);
        false
    }

    #[inline(always)]
    pub(crate) fn unshare(&self) {
        self.lease.fetch_sub(1, Release);
    }

    /// Leases the exec if no thread uses it.
    pub(crate) fn lease(&'static self) -> Option<Lease> {
        self.lease.compare_exchange(0, EXCLUSIVE, AcqRel, Relaxed).ok().map(|_| Lease(self))
    }

    /// Notes that this many of its nodes were given another shape, or were switched on or off.
    pub(super) fn degrades(&self, reshaped: u64, nodes: usize) {
        if reshaped > 0 && reshaped * DEGRADED_SHARE >= nodes as u64 {
            self.degraded.store(true, Relaxed);
        }
    }

    pub(crate) fn set_bytes(&self, (host, device): (u64, u64)) {
        self.host_bytes.store(host, Relaxed);
        self.device_bytes.store(device, Relaxed);
    }

    /// Returns host and device bytes together.
    pub(crate) fn bytes(&self) -> u64 {
        self.host_bytes.load(Relaxed) + self.device_bytes.load(Relaxed)
    }

    /// Takes out the host and device bytes, which are 0 from now on.
    pub(crate) fn take_bytes(&self) -> (u64, u64) {
        (self.host_bytes.swap(0, Relaxed), self.device_bytes.swap(0, Relaxed))
    }

    /// Returns true if this slot holds an exec: false once that exec is destroyed.
    pub(crate) fn in_use(&self) -> bool {
        self.exec.load(Acquire) != 0
    }

    pub(crate) fn is_in(&self, context: u64) -> bool {
        self.in_use() && self.context.load(Acquire) == context
    }

    /// Notes that this context ends while another thread holds the lease.
    pub(crate) fn abandon(&self, context: u64) {
        self.abandoned.store(context, SeqCst);
    }
}

/// Exclusive access to an exec, until it is dropped.
pub(crate) struct Lease(&'static RealExec);

impl Lease {
    pub(crate) fn real(&self) -> &'static RealExec {
        self.0
    }

    pub(crate) fn body(&mut self) -> &mut ExecBody {
        // SAFETY: one lease of an exec exists at a time, and `self` is borrowed mutably as long as the body is.
        unsafe { &mut *self.0.body.get() }
    }

    pub(crate) fn set_exec(&mut self, exec: GraphExec, context: u64) {
        self.0.abandoned.store(0, Relaxed);
        self.0.context.store(context, Release);
        self.0.exec.store(exec as usize, Release);
    }

    /// Notes that the library has destroyed the exec, or never will.
    pub(crate) fn set_unused(&mut self) {
        self.0.exec.store(0, Release);
        self.0.context.store(0, Release);
    }

    /// Returns true if the exec ended with its context. Then nothing of it may be passed to the library.
    pub(crate) fn is_abandoned(&self) -> bool {
        let abandoned = self.0.abandoned.load(SeqCst);
        abandoned != 0 && abandoned == self.0.context.load(Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The exec may hold parts of two graphs, so no handle gets it any more.
            self.0.class.store(0, Relaxed);
            return self.0.lost.store(true, Release);
        }
        // Threads that looked at the exec meanwhile have added themselves and are about to leave.
        self.0.lease.fetch_and(!EXCLUSIVE, Release);
    }
}
