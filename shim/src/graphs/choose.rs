//! Which real exec a handle gets: a parked or cold one, a new one, or one of another handle.

use super::aside::Turn;
use super::bounds::COLD_TIMES;
use super::candidates::{Candidates, MAX_TRIES};
use super::class::Class;
use super::real::{self, LOST, Lease, NOWHERE, RealExec, StreamKey};
use super::{Cache, Work};
use crate::gate;
use crate::process::clock;
use crate::progress::device::ContextHold;
use crate::progress::queries::capturing;
use crate::progress::{activity, device};
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// One of this many misses without room counts as a use: the exec that the miss takes moves to the newest place in the
/// order of uses. On such a miss an unused exec of another class may be destroyed as well.
const PROMOTED: u64 = 32;

/// Where the exec of a handle came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Just instantiated.
    New,
    /// The exec of a handle that was destroyed.
    Parked,
    /// Taken from another handle.
    Taken,
}

/// An exec whose last launch has completed, and whose context does not end meanwhile.
pub(crate) struct Idle {
    lease: Lease,
    hold: ContextHold,
    /// The thread that destroys it, if its end may wait.
    turn: Option<Turn>,
}

/// Whether devices are idle, as asked while one exec is chosen. A device that is not idle, or that cannot be asked, is
/// not asked again.
#[derive(Default)]
pub(crate) struct IdleDevices(Vec<(u64, Option<bool>)>);

impl IdleDevices {
    /// `None` if the library cannot tell.
    fn of(&mut self, vendor: Vendor, context: u64) -> Option<bool> {
        if let Some((_, heard)) = self.0.iter().find(|(of, _)| *of == context) {
            return *heard;
        }
        let heard = device::is_idle(vendor, context);
        if heard != Some(true) {
            self.0.push((context, heard));
        }
        heard
    }
}

impl Cache {
    /// Takes an exec of a class (of any class, for 0) from whoever has it, if its last launch has completed or was made
    /// on this same stream.
    ///
    /// The handle that had the exec remembers a launch that may still be pending.
    fn take(
        &self,
        real: &'static RealExec,
        class: usize,
        stream_key: StreamKey,
        idle_devices: &mut IdleDevices,
    ) -> Option<Lease> {
        let mut lease = real.lease()?;
        // The exec may have gone since it was chosen, and another may have been made in its place.
        let its = real.class.load(Relaxed);
        if !real.in_use() || its == 0 || (class != 0 && its != class) {
            return None;
        }
        if lease.is_abandoned() {
            self.end_in(lease, false, true);
            return None;
        }
        if class != 0 && lease.body().broken {
            return None;
        }
        let last = real.stream_key.load(Relaxed);
        if !self.earlier_completed(&mut lease) {
            return None;
        }
        let pending = match last {
            NOWHERE => false,
            _ if self.has_completed(&mut lease, last) => false,
            // The last launch was on a stream that is gone, or that only another thread can name. If the device is
            // idle, that launch has completed.
            _ if self.is_unknowable(real, last)
                && idle_devices.of(self.vendor, real.context.load(Relaxed)) == Some(true) =>
            {
                false
            }
            _ if last != stream_key || last == LOST || !self.calls.behaviour().outlived => return None,
            // The exec's handle has ended. Nobody asks when its last launch completes, and the next launch comes after
            // it on the same stream.
            _ if real.is_parked() => true,
            _ => {
                if !real.marked.load(Relaxed) {
                    let body = lease.body();
                    // The stream is that of this launch, so the stream lives. If it captures, the launch fails.
                    let stream = real::stream_of(last)?;
                    if capturing() && self.calls.captures(stream) {
                        return None;
                    }
                    body.event = self.calls.mark(body.event.take(), stream);
                    body.event?;
                }
                true
            }
        };
        self.evict(&mut lease, pending, last);
        Some(lease)
    }

    /// Takes an exec whose last launch has completed, in order to destroy it. An exec whose launch is pending is not
    /// destroyed: instantiating waits for destroyed execs whose memory it needs (measured on an H200, driver 580: after
    /// nine of 400 nodes each), and their work may wait for the program.
    ///
    /// Destroying some execs may wait for all of the device's work and hold up the launches of other threads meanwhile
    /// (87 ms behind a kernel of 100, measured there). Such an exec is taken only while the device is idle. While pending
    /// work may wait for the program, every exec counts as such an exec. Work may begin right after the look, so a thread
    /// that may wait destroys such an exec. If that thread is not available, the exec is not taken.
    pub(crate) fn take_idle(&self, real: &'static RealExec, idle_devices: &mut IdleDevices) -> Option<Idle> {
        let context = real.context.load(Relaxed);
        let waits = may_wait(real);
        let turn = if waits { Some(self.aside.turn()?) } else { None };
        let hold = ContextHold::begin(context)?;
        // If the library cannot tell whether the device is idle, this exec is treated like any other.
        if waits && !idle_devices.of(self.vendor, context).unwrap_or(true) {
            return None;
        }
        // Another exec may have been made in its place meanwhile.
        let lease = self.take(real, 0, LOST, idle_devices).filter(|_| real.is_in(context))?;
        Some(Idle { lease, hold, turn })
    }

    /// Destroys an exec. `true` if it is gone; an exec whose end may wait is destroyed later, by another thread.
    pub(crate) fn end_idle(&self, idle: Idle, evicted: bool) -> bool {
        let Idle { lease, hold, turn } = idle;
        let vendor = self.vendor;
        let Some(turn) = turn else {
            self.end(lease, evicted);
            return true;
        };
        turn.run(move || {
            let _hold = hold;
            let Some(cache) = super::cache(vendor).filter(|cache| !cache.is_ending()) else { return };
            let context = lease.real().context.load(Relaxed);
            let end = || cache.in_context(context, || cache.end(lease, evicted));
            let _ = cache.relaxed(|| super::contained(cache, end));
        })
    }

    /// Takes from its handle an exec that was only partly changed. Unless its last launch has `completed`, there is an
    /// event behind that launch ([`Cache::completed_or_marked`]), and the next launch of the handle waits for the
    /// event.
    pub(super) fn evict_and_destroy(&self, mut lease: Lease, completed: bool) {
        // The stream may be destroyed meanwhile. LOST is the key of no stream.
        self.evict(&mut lease, !completed, LOST);
        self.destroy_when_completed(lease);
    }

    /// A real exec for a class, leased. The order is that of docs/graphs.md, "A launch": a parked one, a new one for a
    /// handle that `comes_back`, a cold one, a new one within the bounds, one in the room of another class's, one instead
    /// of a degraded one, the least recently used, and a new one above the bound.
    ///
    /// # Errors
    /// The library's, from instantiate.
    pub(crate) fn acquire(
        &self,
        class: &Arc<Class>,
        stream_key: StreamKey,
        comes_back: bool,
        work: &mut Work,
    ) -> Result<(Lease, Origin), Status> {
        self.destroy_completed();
        let key = Arc::as_ptr(class) as usize;
        let now = clock::now_ns();
        let age = |real: &RealExec| now.saturating_sub(real.used_ns.load(Relaxed));
        let idle_ns = self.bounds.idle_ns.load(Relaxed);
        let cold = |real: &RealExec| idle_ns != 0 && age(real) > idle_ns;
        let ours = if class.shared { self.first_candidates(key, cold) } else { Candidates::default() };
        let (mut tries, mut idle_devices) = (MAX_TRIES, IdleDevices::default());
        let mut attempt = |real: &'static RealExec, idle_devices: &mut IdleDevices| {
            tries = tries.checked_sub(1)?;
            let found = if real.is_parked() { Origin::Parked } else { Origin::Taken };
            self.take(real, key, stream_key, idle_devices).map(|lease| (lease, found))
        };
        let parked = self.parked_first(&ours.parked, stream_key);
        if let Some(lease) = parked.into_iter().find_map(|real| attempt(real, &mut idle_devices)) {
            return Ok(lease);
        }
        let bytes = self.estimate(&class.shape);
        // Natively the handle would have had its own exec all the time.
        let own = comes_back && self.has_fewer_than_handles() && age_of(&self.short_ns, now) > self.bounds.long_ns();
        if own && self.reserve(bytes, false) {
            self.parked_go();
            if let Ok(lease) = self.make(class, bytes, work) {
                return Ok((lease, Origin::New));
            }
        }
        if let Some(lease) = ours.cold.into_iter().find_map(|real| attempt(real, &mut idle_devices)) {
            return Ok(lease);
        }
        if self.reserve(bytes, false) {
            self.make_way_for_growth(key, age);
            return self.make(class, bytes, work).map(|lease| (lease, Origin::New));
        }
        let of_others = |real: &RealExec| real.class.load(Relaxed) != key;
        let counts = self.found_no_room().is_multiple_of(PROMOTED);
        // A parked exec of another class goes first. Now and then a cold exec of another class goes as well; not more
        // often, because after a pause all execs are cold.
        let goes = |real: &RealExec| real.is_parked() || (counts && unwanted(real, age(real), idle_ns));
        let cold_other = self.first_of_all(|real| of_others(real) && goes(real));
        if let Some(idle) = cold_other.and_then(|real| self.take_idle(real, &mut idle_devices)) {
            self.end_idle(idle, true);
            if self.reserve(bytes, false) {
                return self.make(class, bytes, work).map(|lease| (lease, Origin::New));
            }
        }
        if let Some(lease) = self.replace(class, &ours.first, (stream_key, counts), bytes, work, &mut idle_devices) {
            return Ok((lease, Origin::New));
        }
        if let Some((mut lease, found)) = ours.first.into_iter().find_map(|real| attempt(real, &mut idle_devices)) {
            // The exec stays the oldest in the order of uses, so it also serves the next launch that finds no room.
            // Otherwise handles that take turns, and are a few more than there are execs, would all lose their execs
            // before they come again.
            lease.body().stays = !counts;
            return Ok((lease, found));
        }
        for real in self.candidates(0).into_iter().filter(|real| of_others(real)).take(MAX_TRIES) {
            if let Some(idle) = self.take_idle(real, &mut idle_devices) {
                self.end_idle(idle, true);
                if self.reserve(bytes, false) {
                    return self.make(class, bytes, work).map(|lease| (lease, Origin::New));
                }
            }
        }
        // A launch does not wait for pending work. The new exec goes above the bound, and an exec is destroyed once one
        // has completed.
        if !self.reserve(bytes, true) {
            gate::record_if_started(|shim| shim.count(counters::OVER_BOUND, 1));
        }
        self.make(class, bytes, work).map(|lease| (lease, Origin::New))
    }

    /// Before one more exec is made, an exec that no launch has wanted for long is destroyed, so that the library can
    /// use its memory again. The library gives no memory back.
    fn make_way_for_growth(&self, key: usize, age: impl Fn(&RealExec) -> u64) {
        let idle_ns = self.bounds.idle_ns.load(Relaxed);
        if idle_ns == 0 {
            self.parked_go();
            return;
        }
        let old = self.first_of_all(|real| real.class.load(Relaxed) != key && unwanted(real, age(real), idle_ns));
        if let Some(idle) = old.and_then(|real| self.take_idle(real, &mut IdleDevices::default())) {
            self.end_idle(idle, true);
        }
        self.parked_go();
    }

    /// Gets back under the bounds after they were exceeded, right after a launch. Only execs are destroyed that need no
    /// idle device for that.
    pub(crate) fn back_under_bounds_at_once(&self) {
        self.back_under_bounds_where(|real| !may_wait(real));
    }

    /// The same after the program has waited, perhaps for all pending work.
    pub(crate) fn back_under_bounds(&self) {
        self.destroy_completed();
        self.back_under_bounds_where(|_| true);
    }

    fn back_under_bounds_where(&self, may_go: fn(&RealExec) -> bool) {
        let mut idle_devices = IdleDevices::default();
        for real in self.candidates(0).into_iter().filter(|real| may_go(real)) {
            if !self.over_bound() {
                return;
            }
            if let Some(idle) = self.take_idle(real, &mut idle_devices) {
                self.end_idle(idle, true);
            }
        }
    }
}

/// How long ago a time was, ns. A time of 0 was never.
pub(super) fn age_of(time_ns: &AtomicU64, now: u64) -> u64 {
    match time_ns.load(Relaxed) {
        0 => u64::MAX,
        then => now.saturating_sub(then),
    }
}

/// Whether no launch has wanted an exec for so long that another class gets its room. An exec that a handle has never
/// goes because of its age if `GPUMEM_GRAPH_IDLE` is 0.
fn unwanted(real: &RealExec, age: u64, idle_ns: u64) -> bool {
    if real.is_parked() {
        return age > idle_ns;
    }
    idle_ns != 0 && age > idle_ns.saturating_mul(COLD_TIMES)
}

/// Whether destroying an exec may wait for the device.
fn may_wait(real: &RealExec) -> bool {
    real.waits.load(Relaxed) || activity::is_outside()
}
