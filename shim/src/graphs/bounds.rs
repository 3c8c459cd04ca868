//! The bounds of the cache: what counts against them, how many execs are needed, and whether anything is above them.

use super::class::Shape;
use super::handle::Body;
use super::needed::Need;
use super::real::RealExec;
use super::{Cache, Inner};
use crate::process::clock;
use crate::process::lock::lock;
use crate::records::registry::estimate;
use gpumem_wire::settings::Settings;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Destroying an exec and instantiating it again costs about ten times a retarget. So an exec has to be idle for this
/// many times `GPUMEM_GRAPH_IDLE` before another class gets its room.
pub(super) const COLD_TIMES: u64 = 10;
/// How long an exec is kept that no launch has wanted, if `GPUMEM_GRAPH_IDLE` is 0 (no time counts as idle).
const LONG_NS: u64 = 10_000_000_000;

/// Bounds, as the user set them; 0: no such bound. They may change while the process runs.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub count: AtomicU64,
    pub bytes: AtomicU64,
    pub idle_ns: AtomicU64,
}

impl Bounds {
    /// The most execs and the most bytes.
    fn most(&self) -> (u64, u64) {
        (self.count.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// How long something is kept for a handle that may come: as long as the exec of another class is.
    pub(super) fn long_ns(&self) -> u64 {
        match self.idle_ns.load(Relaxed) {
            0 => LONG_NS,
            idle => idle.saturating_mul(COLD_TIMES),
        }
    }
}

/// Some execs are to be destroyed and could not be yet: execs above the bounds, or execs that no handle can use.
pub(super) static OVER: AtomicBool = AtomicBool::new(false);

/// Notes that some exec is to be destroyed when it can be.
pub(super) fn to_go() {
    OVER.store(true, Relaxed);
}

impl Cache {
    /// Follows these variables from now on.
    pub(crate) fn goes_by(&self, settings: &Settings) {
        let Bounds { count, bytes, idle_ns } = &self.bounds;
        bytes.store(settings.graph_cache_bytes, Relaxed);
        idle_ns.store(settings.graph_idle, Relaxed);
        self.sources.apply_settings(settings);
        // 0 turns the cache off. The execs that there are keep their bound.
        if settings.graph_cache != 0 {
            count.store(settings.graph_cache, Relaxed);
        }
    }

    /// Counts an exec that is about to be made, if there is room for it. If `over`, it is counted without room as well.
    /// Whether there was room.
    pub(crate) fn reserve(&self, (host, device): (u64, u64), over: bool) -> bool {
        let mut inner = lock(&self.inner);
        let bytes = host + device;
        let room = self.has_room(inner.count, inner.bytes + bytes);
        if room || over {
            inner.count += 1;
            inner.bytes += bytes;
            self.look_at_pressure(&inner);
        }
        room
    }

    /// Whether there would be room for an exec if another went.
    pub(super) fn fits_in_place_of(&self, (host, device): (u64, u64), other: &RealExec) -> bool {
        let inner = lock(&self.inner);
        let left = inner.bytes.saturating_sub(other.bytes());
        self.has_room(inner.count.saturating_sub(1), left + host + device)
    }

    /// Whether there may be one exec more than `others`, with so many bytes in all.
    fn has_room(&self, others: u64, bytes: u64) -> bool {
        let (count, most) = self.bounds.most();
        (count == 0 || others < count) && (most == 0 || bytes <= most)
    }

    /// An exec is gone, or was not made after all.
    pub(crate) fn release(&self, (host, device): (u64, u64)) {
        let mut inner = lock(&self.inner);
        inner.count -= 1;
        inner.bytes -= host + device;
        self.look_at_pressure(&inner);
    }

    fn look_at_pressure(&self, inner: &Inner) {
        let (count, bytes) = self.bounds.most();
        let near = |now: u64, most: u64| most != 0 && now >= most - most / 4;
        self.pressed.store(near(inner.count, count) || near(inner.bytes, bytes), Relaxed);
        if self.exceeds(inner) {
            to_go();
        }
    }

    fn exceeds(&self, inner: &Inner) -> bool {
        let (count, bytes) = self.bounds.most();
        (count != 0 && inner.count > count) || (bytes != 0 && inner.bytes > bytes)
    }

    pub(crate) fn over_bound(&self) -> bool {
        self.exceeds(&lock(&self.inner))
    }

    /// Host and device bytes that an exec of this shape takes.
    pub(crate) fn estimate(&self, shape: &Shape) -> (u64, u64) {
        estimate::exec_bytes(&shape.counts)
    }

    /// What a handle needs of what the bounds limit: an exec, if it is in use and has none for good.
    pub(super) fn need_of(&self, body: &Body) -> Need {
        let class = body.class.as_ref().filter(|_| !body.apart().owned);
        class.map_or(Need::default(), |class| {
            let (host, device) = self.estimate(&class.shape);
            Need { execs: 1, bytes: host + device }
        })
    }

    /// From now on a handle needs this, and no longer what it needed `before`.
    pub(super) fn need_is(&self, before: Need, need: Need) {
        if before != need {
            let (now, window) = (clock::now_ns(), self.bounds.long_ns() / 2);
            let needed = &mut lock(&self.inner).needed;
            needed.becomes(needed.now() - before + need, now, window);
        }
    }
}
