//! Counts words that refer to targets, apart from the driver's own.
//!
//! Other words that refer to the same block may show what a word is. So words that may be the driver's are kept until
//! all of them are found, or there is no more room. Some words that stand like the driver's may still be the program's:
//! they are counted apart.

use super::Limit;
use super::driver::{Patterns, STEPS};
use super::host::{self, Found, Word};
use super::targets::Targets;
use super::tokens::{AROUND, Near, Of};
use crate::shim::Shim;
use gpumem_wire::references::{Place, Seen};
use std::sync::Arc;

/// Counts the words of host memory that refer to a target. Words that fit the patterns count as the driver's.
pub(super) fn count(
    shim: &Shim,
    targets: &Targets,
    patterns: &[Arc<Patterns>],
    limit: &mut Limit,
) -> (Found, Vec<Seen>) {
    let mut counted = Counted::new(targets, patterns);
    let found = host::look(shim, targets, || limit.check(), |word| counted.add(word));
    counted.settle();
    (found, counted.seen)
}

/// Maximum number of kept words: 20 MiB.
const MOST: usize = 1 << 16;
/// Maximum number of words per block that are examined for what they point to.
const KNOWN: usize = 64;

/// A word that may be the driver's.
struct CandidateWord {
    index: usize,
    place: Place,
    near: Near,
}

struct Counted<'a> {
    targets: &'a Targets,
    patterns: &'a [Arc<Patterns>],
    seen: Vec<Seen>,
    kept: Vec<CandidateWord>,
}

impl<'a> Counted<'a> {
    fn new(targets: &'a Targets, patterns: &'a [Arc<Patterns>]) -> Self {
        // The room is taken now, because the shim's own memory must not move during the search.
        let room = if patterns.is_empty() { 0 } else { MOST };
        let seen = vec![Seen::default(); targets.all().len()];
        Self { targets, patterns, seen, kept: Vec::with_capacity(room) }
    }

    fn add(&mut self, word: &Word<'_>) {
        let may_fit = |index: usize| {
            let of = self.of(index, word.at, &[]);
            self.patterns.iter().any(|patterns| patterns.may_fit(word.word, of))
        };
        let ends = self.targets.ends_at(word.index, word.word);
        if !may_fit(word.index) && !ends.is_some_and(may_fit) {
            return self.count(word.index, word.place, word.at);
        }
        if self.kept.len() == MOST {
            self.settle();
        }
        self.kept.push(CandidateWord {
            index: word.index,
            place: word.place,
            near: Near { at: word.at, window: word.window() },
        });
    }

    fn of<'b>(&self, index: usize, at: u64, known: &'b [Near]) -> Of<'b> {
        let target = &self.targets.all()[index];
        Of { base: target.base, bytes: target.bytes, at, known }
    }

    /// Counts a word that is not the driver's.
    fn count(&mut self, index: usize, place: Place, at: u64) {
        let seen = &mut self.seen[index];
        seen.add(place, 1);
        // A variable says more than any other place.
        if seen.at == 0 || place == Place::Data && seen.of(Place::Data) == 1 {
            seen.at = at;
        }
    }

    /// Counts the kept words.
    fn settle(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.sort_by_key(|kept| kept.index);
        // The target before, and the driver's words that refer to it: all, and those that are certain.
        let mut before = (usize::MAX, Vec::new(), Vec::new());
        for same in kept.chunk_by_mut(|one, other| one.index == other.index) {
            let index = same[0].index;
            let of_before = |near: &Near| self.targets.ends_at(index, near.window[AROUND]) == Some(before.0);
            let like = turn(same, Place::DriverLike, |near, known| {
                let of_before = if of_before(near) { &before.1[..] } else { &[] };
                self.is_drivers(index, near, known, of_before, |patterns, near, of| patterns.fit(&near.window, of))
            });
            let surely = turn(same, Place::Driver, |near, known| {
                let of_before = if of_before(near) { &before.2[..] } else { &[] };
                self.is_drivers(index, near, known, of_before, Patterns::fit_surely)
            });
            for kept in same {
                match kept.place {
                    Place::Driver | Place::DriverLike => self.seen[index].add(kept.place, 1),
                    place => self.count(index, place, kept.near.at),
                }
            }
            before = (index, like, surely);
        }
        kept.clear();
        self.kept = kept;
    }

    /// True if a word stands as it does in a record of the driver: the record of its own block, or of the block that
    /// ends where this one begins, which may be one that is not looked for.
    fn is_drivers(
        &self,
        index: usize,
        near: &Near,
        known: &[Near],
        of_before: &[Near],
        fit: impl Fn(&Patterns, &Near, Of<'_>) -> bool,
    ) -> bool {
        let fits = |of: Of<'_>| self.patterns.iter().any(|patterns| fit(patterns, near, of));
        let ends = self.targets.ends_at(index, near.window[AROUND]);
        fits(self.of(index, near.at, known))
            || ends.is_some_and(|ends| fits(self.of(ends, near.at, of_before)))
            || near.window[AROUND] == self.targets.all()[index].base
                && self.patterns.iter().any(|patterns| patterns.end_another(near))
    }
}

/// Reclassifies candidate words of one target if they match next to confirmed ones; returns the newly confirmed.
fn turn(same: &mut [CandidateWord], to: Place, is_so: impl Fn(&Near, &[Near]) -> bool) -> Vec<Near> {
    let mut known: Vec<Near> = Vec::new();
    for _ in 0..STEPS {
        let was = known.len();
        for kept in same
            .iter_mut()
            .filter(|kept| kept.place != to && (to == Place::DriverLike || kept.place == Place::DriverLike))
        {
            if is_so(&kept.near, &known) {
                kept.place = to;
                known.extend(Some(kept.near.clone()).filter(|_| known.len() < KNOWN));
            }
        }
        if known.len() == was {
            break;
        }
    }
    known
}
