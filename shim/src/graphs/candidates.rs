//! Which execs are looked at for a launch whose handle has none, and in which order.

use super::Cache;
use super::real::RealExec;
use crate::process::lock::lock;

/// How many candidates are asked whether they have completed, before an exec is made above the bound instead.
pub(super) const MAX_TRIES: usize = 8;
/// How many execs are put in order. Some are asked whether they have completed, and some are asked for another reason.
const FIRST: usize = 2 * MAX_TRIES;

impl Cache {
    /// Real execs of a class, or of all classes if `class` is 0. Parked ones come first, and among those the least
    /// recently used.
    pub(super) fn candidates(&self, class: usize) -> Vec<&'static RealExec> {
        let mut found: Vec<_> = lock(&self.inner).of_class(class).map(|real| (in_line(real), real)).collect();
        found.sort_by_key(|(place, _)| *place);
        found.into_iter().map(|(_, real)| real).collect()
    }

    /// Those execs of a class that may be asked whether a launch can have them.
    pub(super) fn first_candidates(&self, class: usize, is_cold: impl Fn(&RealExec) -> bool) -> Candidates {
        let (mut first, mut cold, mut parked) = (First::default(), First::default(), Vec::new());
        for real in lock(&self.inner).of_class(class) {
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

    /// The first of all execs for which `is` holds.
    pub(super) fn first_of_all(&self, is: impl Fn(&RealExec) -> bool) -> Option<&'static RealExec> {
        lock(&self.inner).of_class(0).filter(|real| is(real)).min_by_key(|real| in_line(real))
    }
}

/// The place of an exec in the order in which execs go: parked ones first, and among them the one that was used longest
/// ago.
type Place = (bool, u64);

fn in_line(real: &RealExec) -> Place {
    (!real.is_parked(), real.place())
}

fn is_parked(place: Place) -> bool {
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

/// The first `FIRST` of many execs. Putting all of them in order, or only keeping all, takes longer than everything
/// else that a launch does to find one.
#[derive(Default)]
struct First {
    kept: Vec<(Place, &'static RealExec)>,
    /// The place of the first exec that was left out: `FIRST` others are before it.
    end: Option<Place>,
}

impl First {
    /// If there are more execs than this, the last ones are left out.
    const MOST: usize = 2 * FIRST;

    #[inline]
    fn offer(&mut self, place: Place, real: &'static RealExec) {
        if self.end.is_some_and(|end| place >= end) {
            return;
        }
        self.kept.push((place, real));
        if self.kept.len() == Self::MOST {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.kept.len() > FIRST {
            let (_, (end, _), _) = self.kept.select_nth_unstable_by_key(FIRST, |(place, _)| *place);
            self.end = Some(*end);
            self.kept.truncate(FIRST);
        }
    }

    fn in_order(mut self) -> Vec<&'static RealExec> {
        self.cut();
        self.kept.sort_by_key(|(place, _)| *place);
        self.kept.into_iter().map(|(_, real)| real).collect()
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
            let mut first = First::default();
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
