//! Which real exec a handle gets: a parked or cold one, a new one, or one of another handle. [`policy`](super::policy)
//! says what is tried next, and here it is tried.

use super::ExecStore;
use super::candidates::{Candidates, MAX_TRIES, parked_first};
use super::give_back::age_of;
use super::policy::{Age, Facts, Step, counts};
use super::take::{Idle, IdleDevices};
use crate::gate;
use crate::graphs::class::Class;
use crate::graphs::real::{Lease, RealExec, StreamKey};
use crate::graphs::sources::{Sources, Work};
use crate::process::clock;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Where the exec of a handle came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::graphs) enum Origin {
    /// Just instantiated.
    New,
    /// The exec of a handle that was destroyed.
    Parked,
    /// Taken from another handle.
    Taken,
}

/// An exec, leased, and where it came from.
type Found = (Lease, Origin);

/// The search for an exec.
pub(super) struct Search<'a> {
    pub(super) store: &'static ExecStore,
    pub(super) sources: &'a Sources,
    pub(super) class: &'a Arc<Class>,
    pub(super) stream_key: StreamKey,
    /// What a new exec takes.
    pub(super) bytes: (u64, u64),
    now: u64,
    idle_ns: u64,
    pub(super) ours: Candidates,
    /// How many execs may still be asked whether they can be had.
    tries: usize,
    pub(super) idle_devices: IdleDevices,
    /// Whether this launch counts as a use of the exec that it gets, although there is no room for a new one.
    pub(super) counts: bool,
}

impl ExecStore {
    /// A real exec for a class, leased. The order is that of [`Facts::next`].
    ///
    /// # Errors
    /// The library's, from instantiate.
    pub(in crate::graphs) fn acquire(
        &'static self,
        sources: &Sources,
        class: &Arc<Class>,
        stream_key: StreamKey,
        comes_back: bool,
        work: &mut Work,
    ) -> Result<Found, Status> {
        self.destroy_completed();
        let facts = Facts {
            is_shared: class.shared,
            comes_back,
            fewer_than_handles: comes_back && self.bounds.has_fewer_than_handles(),
            short_age_ns: age_of(&self.short_ns, clock::now_ns()),
            long_ns: self.bounds.long_ns(),
        };
        let mut search = Search::new(self, sources, class, stream_key);
        let mut step = None;
        loop {
            let next = facts.next(step);
            if let Some(found) = search.carry_out(next, work)? {
                return Ok(found);
            }
            step = Some(next);
        }
    }
}

impl<'a> Search<'a> {
    fn new(store: &'static ExecStore, sources: &'a Sources, class: &'a Arc<Class>, stream_key: StreamKey) -> Self {
        let mut search = Self {
            store,
            sources,
            class,
            stream_key,
            bytes: class.shape.exec_bytes(),
            now: clock::now_ns(),
            idle_ns: store.bounds.idle_ns(),
            ours: Candidates::default(),
            tries: MAX_TRIES,
            idle_devices: IdleDevices::default(),
            counts: false,
        };
        if class.shared {
            search.ours = store.execs.candidates(search.key(), |real| search.age(real).is_cold());
        }
        search
    }

    /// What a decision comes to; `None` for nothing.
    fn carry_out(&mut self, step: Step, work: &mut Work) -> Result<Option<Found>, Status> {
        match step {
            Step::TakeParked => Ok(self.take_first(parked_first(&self.ours.parked, self.stream_key))),
            Step::MakeOwn if self.reserve() => {
                self.store.parked_go();
                Ok(self.make(work).ok())
            }
            Step::TakeCold => {
                let cold = std::mem::take(&mut self.ours.cold);
                Ok(self.take_first(cold))
            }
            Step::Make if self.reserve() => {
                self.make_way_for_growth();
                self.make(work).map(Some)
            }
            Step::MakeForUnwanted => {
                self.counts = counts(self.store.thrash.found_no_room(&self.store.bounds));
                // A parked exec of another class goes first. Now and then a cold exec of another class goes as well; not
                // more often, because after a pause all execs are cold.
                let goes = |real: &RealExec| real.is_parked() || (self.counts && self.age(real).is_unwanted());
                let unwanted = self.store.execs.first_of_all(|real| self.is_of_another(real) && goes(real));
                self.make_for(unwanted, work)
            }
            Step::Replace => Ok(self.replace(work).map(|lease| (lease, Origin::New))),
            Step::TakeOldest => {
                let first = std::mem::take(&mut self.ours.first);
                Ok(self.take_first(first).map(|(mut lease, found)| {
                    // The exec stays the oldest in the order of uses, so it also serves the next launch that finds no
                    // room. Otherwise handles that take turns, and are a few more than there are execs, would all lose
                    // their execs before they come again.
                    lease.body().stays = !self.counts;
                    (lease, found)
                }))
            }
            Step::MakeForAny => {
                let all = self.store.execs.in_order(0);
                let others = all.into_iter().filter(|real| self.is_of_another(real)).take(MAX_TRIES);
                let others: Vec<_> = others.collect();
                self.make_for(others, work)
            }
            // A launch does not wait for pending work. The new exec goes above the bound, and an exec is destroyed once
            // one has completed.
            Step::MakeOver => {
                if !self.store.reserve(self.bytes, true) {
                    gate::record_if_started(|shim| shim.count(counters::OVER_BOUND, 1));
                }
                self.make(work).map(Some)
            }
            Step::MakeOwn | Step::Make => Ok(None),
        }
    }

    fn key(&self) -> usize {
        Arc::as_ptr(self.class) as usize
    }

    fn age(&self, real: &RealExec) -> Age {
        let ns = self.now.saturating_sub(real.used_ns.load(Relaxed));
        Age { ns, is_parked: real.is_parked(), idle_ns: self.idle_ns }
    }

    fn is_of_another(&self, real: &RealExec) -> bool {
        real.class.load(Relaxed) != self.key()
    }

    /// The first of these execs that can be had.
    fn take_first(&mut self, reals: Vec<&'static RealExec>) -> Option<Found> {
        reals.into_iter().find_map(|real| {
            self.tries = self.tries.checked_sub(1)?;
            let found = if real.is_parked() { Origin::Parked } else { Origin::Taken };
            let lease = self.store.take(real, self.key(), self.stream_key, &mut self.idle_devices)?;
            Some((lease, found))
        })
    }

    pub(super) fn take_idle(&mut self, real: &'static RealExec) -> Option<Idle> {
        self.store.take_idle(real, &mut self.idle_devices)
    }

    pub(super) fn reserve(&self) -> bool {
        self.store.reserve(self.bytes, false)
    }

    /// A new exec, for which room is reserved.
    fn make(&self, work: &mut Work) -> Result<Found, Status> {
        let lease = self.store.make(self.sources, self.class, self.bytes, work)?;
        Ok((lease, Origin::New))
    }

    /// A new exec, once there is room because others were destroyed: the first of these that can be.
    fn make_for(
        &mut self,
        others: impl IntoIterator<Item = &'static RealExec>,
        work: &mut Work,
    ) -> Result<Option<Found>, Status> {
        for real in others {
            if let Some(idle) = self.take_idle(real) {
                self.store.end_idle(idle, true);
                if self.reserve() {
                    return self.make(work).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Before one more exec is made, an exec that no launch has wanted for long is destroyed, so that the library can
    /// use its memory again. The library gives no memory back.
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
}
