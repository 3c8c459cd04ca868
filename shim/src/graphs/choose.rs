//! Which real exec a handle gets: a parked or cold one, a new one, or one of another handle.

use super::bounds::COLD_TIMES;
use super::candidates::{Candidates, MAX_TRIES};
use super::class::Class;
use super::give_back::age_of;
use super::real::{Lease, RealExec, StreamKey};
use super::take::{IdleDevices, may_wait};
use super::{Cache, Work};
use crate::gate;
use crate::process::clock;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

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

impl Cache {
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

/// Whether no launch has wanted an exec for so long that another class gets its room. An exec that a handle has never
/// goes because of its age if `GPUMEM_GRAPH_IDLE` is 0.
fn unwanted(real: &RealExec, age: u64, idle_ns: u64) -> bool {
    if real.is_parked() {
        return age > idle_ns;
    }
    idle_ns != 0 && age > idle_ns.saturating_mul(COLD_TIMES)
}
