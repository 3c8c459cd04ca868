//! The existing real execs, and the order in which a launch without an exec looks at them.

use crate::graphs::real::{Lease, RealExec, StreamKey};
use crate::process::lock::lock;
use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::Ordering::*;

/// The most candidates whose completion is checked, before an exec is made above the bound instead.
pub(super) const MAX_TRIES: usize = 8;
/// Number of execs that are sorted. Some are checked for completion, and some for another reason.
const FIRST: usize = 2 * MAX_TRIES;
/// Parked execs whose completion is checked before the others are left for another time.
pub(super) const ASKED: usize = 8;
/// Number of those that were used longest ago: the last ones may all run.
const ASKED_OLDEST: usize = 2;

/// Slots of real execs. They are reused and never freed.
#[derive(Default)]
pub(super) struct ExecSlots(Mutex<SlotLists>);

#[derive(Default)]
struct SlotLists {
    /// Every real exec that exists or existed.
    all: Vec<&'static RealExec>,
    unused: Vec<&'static RealExec>,
}

impl SlotLists {
    /// Returns real execs of a class. For 0, all execs that do not stay with one handle for good.
    fn of_class(&self, class: usize) -> impl Iterator<Item = &'static RealExec> {
        let is = move |its: usize| its != 0 && (class == 0 || its == class);
        self.all.iter().copied().filter(move |real| real.in_use() && is(real.class.load(Relaxed)))
    }
}

impl ExecSlots {
    /// Returns all execs that exist or existed.
    pub(super) fn all(&self) -> Vec<&'static RealExec> {
        lock(&self.0).all.clone()
    }

    /// Returns a slot for a real exec, leased.
    pub(super) fn take_place(&self) -> Lease {
        loop {
            let unused = lock(&self.0).unused.pop();
            let real = unused.unwrap_or_else(|| {
                let real: &'static RealExec = Box::leak(Box::default());
                lock(&self.0).all.push(real);
                real
            });
            // A thread may be looking at an unused slot for a moment.
            if let Some(lease) = real.lease() {
                return lease;
            }
            self.give_place(real);
            std::thread::yield_now();
        }
    }

    /// Frees the slot of an exec that is gone.
    pub(super) fn give_place(&self, real: &'static RealExec) {
        lock(&self.0).unused.push(real);
    }

    /// Returns the number of parked execs.
    pub(super) fn parked(&self) -> usize {
        lock(&self.0).of_class(0).filter(|real| real.is_parked()).count()
    }

    /// Returns real execs of a class, or of all classes if `class` is 0. Parked ones come first, and among those the
    /// least recently used.
    pub(super) fn in_order(&self, class: usize) -> Vec<&'static RealExec> {
        let mut found: Vec<_> = lock(&self.0).of_class(class).map(|real| (in_line(real), real)).collect();
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, real)| real).collect()
    }

    /// Returns the execs of a class that a launch may try to take.
    pub(super) fn candidates(&self, class: usize, is_cold: impl Fn(&RealExec) -> bool) -> Candidates {
        let (mut first, mut cold, mut parked) = (FirstExecs::default(), FirstExecs::default(), Vec::new());
        for real in lock(&self.0).of_class(class) {
            let place = in_line(real);
            first.offer(place, real);
            if is_cold(real) {
                cold.offer(place, real);
            }
            if is_parked(place) {
                parked.push(real);
            }
        }
        Candidates { parked, cold: cold.in_order(), first: first.in_order() }
    }

    /// Returns the first of all execs for which `is` returns true.
    pub(super) fn first_of_all(&self, is: impl Fn(&RealExec) -> bool) -> Option<&'static RealExec> {
        lock(&self.0).of_class(0).filter(|real| is(real)).min_by_key(|real| in_line(real))
    }
}

/// Returns the parked ones among `ours` that a launch on a stream should try first.
pub(super) fn parked_first(ours: &[&'static RealExec], stream_key: StreamKey) -> Vec<&'static RealExec> {
    let mut parked: Vec<_> = ours.iter().copied().filter(|real| real.is_parked()).collect();
    // Work on this very stream need not have completed.
    parked.sort_by_cached_key(|real| (real.stream_key.load(Relaxed) != stream_key, Reverse(real.place())));
    if parked.len() > ASKED {
        let mut oldest = parked.split_off(ASKED - ASKED_OLDEST);
        oldest.sort_by_cached_key(|real| real.place());
        oldest.truncate(ASKED_OLDEST);
        parked.extend(oldest);
    }
    parked
}

/// The position of an exec in the order in which execs go: parked ones first, and among them the one that was used
/// longest ago.
type Rank = (bool, u64);

fn in_line(real: &RealExec) -> Rank {
    (!real.is_parked(), real.place())
}

fn is_parked(place: Rank) -> bool {
    !place.0
}

/// Execs of one class.
#[derive(Default)]
pub(super) struct Candidates {
    /// All parked execs of the class.
    pub parked: Vec<&'static RealExec>,
    /// The first of those that were not launched for `GPUMEM_GRAPH_IDLE`.
    pub cold: Vec<&'static RealExec>,
    /// The first of all.
    pub first: Vec<&'static RealExec>,
}

/// The first `FIRST` of many execs, in order. Sorting all of them, or only keeping all, takes longer than everything else
/// that a launch does to find one.
#[derive(Default)]
struct FirstExecs(Vec<(Rank, &'static RealExec)>);

impl FirstExecs {
    #[inline]
    fn offer(&mut self, place: Rank, real: &'static RealExec) {
        if self.0.get(FIRST - 1).is_some_and(|(last, _)| place >= *last) {
            return;
        }
        let at = self.0.partition_point(|(its, _)| *its <= place);
        self.0.insert(at, (place, real));
        self.0.truncate(FIRST);
    }

    fn in_order(self) -> Vec<&'static RealExec> {
        self.0.into_iter().map(|(_, real)| real).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_are_found_in_whatever_order_they_come() {
        const MANY: u64 = 300;
        let reals: Vec<&'static RealExec> = (0..MANY).map(|_| &*Box::leak(Box::default())).collect();
        let of = |places: &mut dyn Iterator<Item = u64>| {
            let mut first = FirstExecs::default();
            places.for_each(|at| first.offer((at >= 2, at), reals[at as usize]));
            first.in_order()
        };
        let same = |found: Vec<&'static RealExec>, wanted: &[&'static RealExec]| {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| std::ptr::eq(*a, *b))
        };
        assert!(same(of(&mut (0..MANY)), &reals[..FIRST]));
        assert!(same(of(&mut (0..MANY).rev()), &reals[..FIRST]));
        assert!(
            same(of(&mut (0..MANY).map(|at| at * 7 % MANY)), &reals[..FIRST]),
            "7 and 300 have no divisor in common"
        );
        assert!(same(of(&mut (0..5).rev()), &reals[..5]));
    }
}
