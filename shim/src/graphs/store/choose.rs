//! Chooses the real exec for a handle: a parked one or a cold one, a new one, or one of another handle.
//! docs/graphs.md, "A launch", tells the order.
//!
//! **A new exec instead of a retarget.** If the device is behind, the host has the time to make one. When an exec's
//! node is given another grid, block, shared memory or function, the device reads that node's parameters afresh at
//! every launch from then on (H200, driver 580: 0.1 µs for a kernel of few parameters, 0.45 for those of PyTorch; the
//! constant caches miss 340 times more for each). A newly instantiated exec has no such nodes, but takes the host four
//! times as long as a retarget.

use super::ExecStore;
use super::bounds::COLD_TIMES;
use super::candidates::{Candidates, MAX_TRIES, parked_first};
use super::give_back::age_of;
use super::make::WantedExec;
use super::take::{Idle, IdleDevices};
use crate::gate;
use crate::graphs::real::{Lease, RealExec, StreamKey};
use crate::process::clock;
use crate::progress::activity;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Number of instantiates by which the device has to be behind, so that it does not run dry during one. The rest of
/// making an exec is shorter than one instantiate.
const BEHIND: u64 = 2;

/// One of this many misses without room counts as a use: the exec that the miss takes moves to the newest place in the
/// order of uses. On such a miss an unused exec of another class may be destroyed as well.
const PROMOTED: u64 = 32;

/// Origin of a handle's exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Just instantiated.
    New,
    /// The exec of a handle that was destroyed.
    Parked,
    /// Taken from another handle.
    Taken,
}

/// An exec, leased, and its origin.
type FoundExec = (Lease, Origin);

/// The search for an exec.
struct Search<'a, 'b> {
    store: &'static ExecStore,
    wanted: &'a mut WantedExec<'b>,
    stream_key: StreamKey,
    /// Bytes of a new exec.
    bytes: (u64, u64),
    now: u64,
    idle_ns: u64,
    ours: Candidates,
    /// Number of execs that may still be tried.
    tries: usize,
    idle_devices: IdleDevices,
    /// True if this launch counts as a use of the exec that it gets, although there is no room for a new one.
    counts: bool,
}

impl ExecStore {
    /// Gets a real exec for a class, leased. `comes_back`: the handle had an exec, and another handle took it.
    ///
    /// # Errors
    /// The library's status, from instantiate.
    pub(super) fn acquire(
        &'static self,
        wanted: &mut WantedExec,
        stream_key: StreamKey,
        comes_back: bool,
    ) -> Result<FoundExec, Status> {
        let class = wanted.class;
        self.destroy_completed();
        let mut search = Search {
            store: self,
            wanted,
            stream_key,
            bytes: class.shape.exec_bytes(),
            now: clock::now_ns(),
            idle_ns: self.bounds.idle_ns(),
            ours: Candidates::default(),
            tries: MAX_TRIES,
            idle_devices: IdleDevices::default(),
            counts: false,
        };
        if class.shared {
            search.ours = self.execs.candidates(search.key(), |real| search.age(real).is_cold());
        }
        if let Some(found) = search.within_bounds(comes_back)? {
            return Ok(found);
        }
        // A launch does not wait for pending work. The new exec goes above the bound, and an exec is destroyed once one
        // has completed.
        if !self.reserve(search.bytes, true) {
            gate::record_if_started(|shim| shim.count(counters::OVER_BOUND, 1));
        }
        search.make()
    }
}

impl Search<'_, '_> {
    /// Takes an exec of the class, or makes one within the bounds. Returns `None` if nothing has completed.
    fn within_bounds(&mut self, comes_back: bool) -> Result<Option<FoundExec>, Status> {
        let parked = parked_first(&self.ours.parked, self.stream_key);
        if let Some(found) = self.take_first(parked) {
            return Ok(Some(found));
        }
        // Natively a handle that comes back would have had its own exec all the time.
        if comes_back && self.lacks_execs() && self.reserve() {
            self.store.parked_go();
            if let Ok(found) = self.make() {
                return Ok(Some(found));
            }
        }
        let cold = std::mem::take(&mut self.ours.cold);
        if let Some(found) = self.take_first(cold) {
            return Ok(Some(found));
        }
        if self.reserve() {
            self.make_way_for_growth();
            return self.make().map(Some);
        }
        self.counts = counts(self.store.thrash.found_no_room(&self.store.bounds));
        // A parked exec of another class goes first. Now and then a cold exec of another class goes as well; not more
        // often, because after a pause all execs are cold.
        let goes = |real: &RealExec| real.is_parked() || (self.counts && self.age(real).is_unwanted());
        let unwanted = self.store.execs.first_of_all(|real| self.is_of_another(real) && goes(real));
        if let Some(found) = self.make_for(unwanted)? {
            return Ok(Some(found));
        }
        if let Some(lease) = self.replace() {
            return Ok(Some((lease, Origin::New)));
        }
        let first = std::mem::take(&mut self.ours.first);
        if let Some((mut lease, origin)) = self.take_first(first) {
            // The exec stays the oldest in the order of uses, so it also serves the next launch that finds no room.
            // Otherwise handles that take turns, and are a few more than there are execs, would all lose their execs
            // before they come again.
            lease.body().stays = !self.counts;
            return Ok(Some((lease, origin)));
        }
        let all = self.store.execs.in_order(0).into_iter();
        let others: Vec<_> = all.filter(|real| self.is_of_another(real)).take(MAX_TRIES).collect();
        self.make_for(others)
    }

    fn key(&self) -> usize {
        Arc::as_ptr(self.wanted.class) as usize
    }

    fn age(&self, real: &RealExec) -> Age {
        let ns = self.now.saturating_sub(real.used_ns.load(Relaxed));
        Age { ns, is_parked: real.is_parked(), idle_ns: self.idle_ns }
    }

    /// Returns true if there are fewer execs than handles that need one, and memory was not short lately.
    fn lacks_execs(&self) -> bool {
        let bounds = &self.store.bounds;
        bounds.has_fewer_than_handles() && age_of(&self.store.short_ns, self.now) > bounds.long_ns()
    }

    fn is_of_another(&self, real: &RealExec) -> bool {
        real.class.load(Relaxed) != self.key()
    }

    /// Takes the first of these execs that is available.
    fn take_first(&mut self, reals: Vec<&'static RealExec>) -> Option<FoundExec> {
        reals.into_iter().find_map(|real| {
            self.tries = self.tries.checked_sub(1)?;
            let found = if real.is_parked() { Origin::Parked } else { Origin::Taken };
            let lease = self.store.take(real, self.key(), self.stream_key, &mut self.idle_devices)?;
            Some((lease, found))
        })
    }

    fn take_idle(&mut self, real: &'static RealExec) -> Option<Idle> {
        self.store.take_idle(real, &mut self.idle_devices)
    }

    fn reserve(&self) -> bool {
        self.store.reserve(self.bytes, false)
    }

    /// Makes an exec for which room is reserved.
    fn make(&mut self) -> Result<FoundExec, Status> {
        let lease = self.store.make(self.wanted, self.bytes)?;
        Ok((lease, Origin::New))
    }

    /// Makes an exec, once destroying others has made room: the first of these that can be destroyed.
    fn make_for(&mut self, others: impl IntoIterator<Item = &'static RealExec>) -> Result<Option<FoundExec>, Status> {
        for real in others {
            if let Some(idle) = self.take_idle(real) {
                self.store.end_idle(idle, true);
                if self.reserve() {
                    return self.make().map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Destroys an exec that no launch has used for long before one more is made, so that the library can reuse its
    /// memory. The library gives no memory back.
    fn make_way_for_growth(&self) {
        if self.idle_ns != 0 {
            let unwanted = |real: &RealExec| self.is_of_another(real) && self.age(real).is_unwanted();
            let old = self.store.execs.first_of_all(unwanted);
            if let Some(idle) = old.and_then(|real| self.store.take_idle(real, &mut IdleDevices::default())) {
                self.store.end_idle(idle, true);
            }
        }
        self.store.parked_go();
    }

    /// Makes a new exec instead of taking the oldest one of the class, if that one is degraded and the device is
    /// behind. The new exec gets the room of one whose last launch has completed, preferably of a degraded one. It also
    /// takes the oldest one's position in the order of uses, unless this launch counts as a use. So launches make an
    /// exec or retarget by turns, and making execs takes no more time than the device does.
    fn replace(&mut self) -> Option<Lease> {
        let oldest = *self.ours.first.first()?;
        let takes = BEHIND * self.wanted.class.instantiate_ns.load(Relaxed);
        // Work that waits for the program completes only when the program lets it, and the library may wait for it.
        if !oldest.degraded.load(Relaxed) || activity::is_outside() {
            return None;
        }
        let store = self.store;
        let all = store.execs.in_order(0);
        if !self.is_behind(&all, takes) {
            return None;
        }
        // Only an exec whose room is enough by itself. Many small ones are not destroyed for one large one.
        let goes =
            |real: &&'static RealExec| !ptr::eq(*real, oldest) && store.bounds.fits_in_place_of(self.bytes, real);
        let mut others: Vec<_> = all.into_iter().filter(goes).collect();
        others.sort_by_key(|real| (!real.is_parked(), !real.degraded.load(Relaxed)));
        let idle = others.into_iter().take(MAX_TRIES).find_map(|real| self.take_idle(real))?;
        store.end_idle(idle, true);
        if !self.reserve() {
            return None;
        }
        // If the library makes none, the oldest is taken.
        let (mut lease, _) = self.make().ok()?;
        gate::record_if_started(|shim| shim.count(counters::MADE_ANEW, 1));
        lease.real().takes_place_of(oldest);
        lease.body().stays = !self.counts;
        Some(lease)
    }

    /// Returns true if a launch on this stream `ns` ago has not completed. Later launches run after it, so the stream
    /// has work for about as long.
    fn is_behind(&self, all: &[&'static RealExec], ns: u64) -> bool {
        let stream_key = self.stream_key;
        let before = clock::precise_ns().saturating_sub(ns);
        let of_stream =
            all.iter().filter(|real| real.stream_key.load(Relaxed) == stream_key && real.marked.load(Relaxed));
        let launched = |real: &RealExec| real.launched_ns.load(Relaxed);
        let long_ago = of_stream.filter(|real| launched(real) <= before).max_by_key(|real| launched(real));
        let Some(mut lease) = long_ago.and_then(|real| real.lease()) else { return false };
        // The exec may have been launched or taken since.
        let real = lease.real();
        let same = real.stream_key.load(Relaxed) == stream_key && real.marked.load(Relaxed);
        same && launched(real) <= before && !self.store.completion.has_completed(&mut lease, stream_key)
    }
}

/// The age of an exec, which decides if a launch of another class, or another handle of its own class, may take it.
#[derive(Clone, Copy, Debug)]
struct Age {
    /// Time since its last launch.
    ns: u64,
    is_parked: bool,
    /// `GPUMEM_GRAPH_IDLE`. 0: no time counts as idle.
    idle_ns: u64,
}

impl Age {
    /// Returns true if another handle of its class may have it although there is room for a new one.
    fn is_cold(self) -> bool {
        self.idle_ns != 0 && self.ns > self.idle_ns
    }

    /// Returns true if this exec has been idle long enough to be evicted for another class. If `GPUMEM_GRAPH_IDLE` is
    /// 0, an exec with a handle is never evicted for its age.
    fn is_unwanted(self) -> bool {
        match self.is_parked {
            true => self.ns > self.idle_ns,
            false => self.idle_ns != 0 && self.ns > self.idle_ns.saturating_mul(COLD_TIMES),
        }
    }
}

/// Returns true if a miss counts as a use. `misses`: the number without room so far, including this one.
fn counts(misses: u64) -> bool {
    misses.is_multiple_of(PROMOTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cold_and_what_nobody_wants() {
        let age = |ns, is_parked, idle_ns| Age { ns, is_parked, idle_ns };
        let facts = [
            (age(11, false, 10), (true, false)),
            (age(10, true, 10), (false, false)),
            (age(11, true, 10), (true, true)),
            (age(101, false, 10), (true, true)),
            (age(u64::MAX, false, 0), (false, false)),
            (age(1, true, 0), (false, true)),
        ];
        for (age, told) in facts {
            assert_eq!((age.is_cold(), age.is_unwanted()), told, "{age:?}");
        }
        assert_eq!((1..=96).filter(|&misses| counts(misses)).collect::<Vec<_>>(), [32, 64, 96]);
    }
}
