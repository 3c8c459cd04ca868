//! Chooses the real exec for a handle: a parked one or a cold one, a new one, or one of another handle.
//! [`policy`](super::policy) decides the steps; this file carries them out.
//!
//! **A new exec instead of a retarget.** If the device is behind, the host has the time to make one. When an exec's
//! node is given another grid, block, shared memory or function, the device reads that node's parameters afresh at
//! every launch from then on (H200, driver 580: 0.1 µs for a kernel of few parameters, 0.45 for those of PyTorch; the
//! constant caches miss 340 times more for each). A newly instantiated exec has no such nodes, but takes the host four
//! times as long as a retarget.

use super::ExecStore;
use super::candidates::{Candidates, MAX_TRIES, parked_first};
use super::give_back::age_of;
use super::make::WantedExec;
use super::policy::{Age, ChoiceStep, Facts, counts};
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
    /// Gets a real exec for a class, leased. The order is that of [`Facts::steps`].
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
        let (now, idle_ns) = (clock::now_ns(), self.bounds.idle_ns());
        let facts = Facts {
            is_shared: class.shared,
            comes_back,
            fewer_than_handles: comes_back && self.bounds.has_fewer_than_handles(),
            short_age_ns: age_of(&self.short_ns, now),
            long_ns: self.bounds.long_ns(),
        };
        let mut search = Search {
            store: self,
            wanted,
            stream_key,
            bytes: class.shape.exec_bytes(),
            now,
            idle_ns,
            ours: Candidates::default(),
            tries: MAX_TRIES,
            idle_devices: IdleDevices::default(),
            counts: false,
        };
        if class.shared {
            search.ours = self.execs.candidates(search.key(), |real| search.age(real).is_cold());
        }
        for step in facts.steps() {
            if let Some(found) = search.carry_out(step)? {
                return Ok(found);
            }
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
    /// Carries out a step. Returns `None` if it finds no exec.
    fn carry_out(&mut self, step: ChoiceStep) -> Result<Option<FoundExec>, Status> {
        match step {
            ChoiceStep::TakeParked => Ok(self.take_first(parked_first(&self.ours.parked, self.stream_key))),
            ChoiceStep::MakeOwn if self.reserve() => {
                self.store.parked_go();
                Ok(self.make().ok())
            }
            ChoiceStep::TakeCold => {
                let cold = std::mem::take(&mut self.ours.cold);
                Ok(self.take_first(cold))
            }
            ChoiceStep::Make if self.reserve() => {
                self.make_way_for_growth();
                self.make().map(Some)
            }
            ChoiceStep::MakeOwn | ChoiceStep::Make => Ok(None),
            ChoiceStep::MakeForUnwanted => {
                self.counts = counts(self.store.thrash.found_no_room(&self.store.bounds));
                // A parked exec of another class goes first. Now and then a cold exec of another class goes as well;
                // not more often, because after a pause all execs are cold.
                let goes = |real: &RealExec| real.is_parked() || (self.counts && self.age(real).is_unwanted());
                self.make_for(self.store.execs.first_of_all(|real| self.is_of_another(real) && goes(real)))
            }
            ChoiceStep::Replace => Ok(self.replace().map(|lease| (lease, Origin::New))),
            ChoiceStep::TakeOldest => {
                let first = std::mem::take(&mut self.ours.first);
                let mut found = self.take_first(first);
                // The exec stays the oldest in the order of uses, so it also serves the next launch that finds no room.
                // Otherwise handles that take turns, and are a few more than there are execs, would all lose their
                // execs before they come again.
                found.iter_mut().for_each(|(lease, _)| lease.body().stays = !self.counts);
                Ok(found)
            }
            ChoiceStep::MakeForAny => {
                let all = self.store.execs.in_order(0).into_iter();
                let others: Vec<_> = all.filter(|real| self.is_of_another(real)).take(MAX_TRIES).collect();
                self.make_for(others)
            }
        }
    }

    fn key(&self) -> usize {
        Arc::as_ptr(self.wanted.class) as usize
    }

    fn age(&self, real: &RealExec) -> Age {
        let ns = self.now.saturating_sub(real.used_ns.load(Relaxed));
        Age { ns, is_parked: real.is_parked(), idle_ns: self.idle_ns }
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
