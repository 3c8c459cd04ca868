//! The order in which a launch without an exec looks for one (docs/graphs.md, "A launch"). The input is facts, the
//! output is steps; the store carries them out, one after the other until one succeeds.

use super::bounds::COLD_TIMES;

/// One of this many misses without room counts as a use: the exec that the miss takes moves to the newest place in the
/// order of uses. On such a miss an unused exec of another class may be destroyed as well.
const PROMOTED: u64 = 32;

/// A step to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChoiceStep {
    /// A parked exec of the class.
    TakeParked,
    /// A new one for a handle that comes back, within the bounds.
    MakeOwn,
    /// An exec of the class that was not launched for long.
    TakeCold,
    /// A new one, within the bounds.
    Make,
    /// A new one, in the room of an unused exec of another class.
    MakeForUnwanted,
    /// A new one instead of a degraded one.
    Replace,
    /// The exec of the class that was used longest ago.
    TakeOldest,
    /// A new one, in the room of any exec of another class.
    MakeForAny,
}

/// Facts about a handle that needs an exec.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Execs of its class may go from one handle to another.
    pub is_shared: bool,
    /// It had an exec, and another handle took it.
    pub comes_back: bool,
    /// There are fewer execs than handles that need one.
    pub fewer_than_handles: bool,
    /// Time since the last memory shortage, ns.
    pub short_age_ns: u64,
    /// Time that an object is kept for a handle that may come, ns.
    pub long_ns: u64,
}

/// All steps before a new exec is made above the bound.
const ORDER: [ChoiceStep; 8] = [
    ChoiceStep::TakeParked,
    ChoiceStep::MakeOwn,
    ChoiceStep::TakeCold,
    ChoiceStep::Make,
    ChoiceStep::MakeForUnwanted,
    ChoiceStep::Replace,
    ChoiceStep::TakeOldest,
    ChoiceStep::MakeForAny,
];

impl Facts {
    /// Returns the steps to try, one after the other until one succeeds. If none does, a new exec goes above the bound.
    pub(super) fn steps(&self) -> impl Iterator<Item = ChoiceStep> {
        ORDER.into_iter().filter(|step| self.allows(*step))
    }

    fn allows(&self, step: ChoiceStep) -> bool {
        match step {
            ChoiceStep::TakeParked | ChoiceStep::TakeCold | ChoiceStep::Replace | ChoiceStep::TakeOldest => {
                self.is_shared
            }
            // Natively the handle would have had its own exec all the time.
            ChoiceStep::MakeOwn => self.comes_back && self.fewer_than_handles && self.short_age_ns > self.long_ns,
            ChoiceStep::Make | ChoiceStep::MakeForUnwanted | ChoiceStep::MakeForAny => true,
        }
    }
}

/// The age of an exec, which decides if a launch of another class, or another handle of its own class, may take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    /// Time since its last launch.
    pub ns: u64,
    pub is_parked: bool,
    /// `GPUMEM_GRAPH_IDLE`. 0: no time counts as idle.
    pub idle_ns: u64,
}

impl Age {
    /// Returns true if another handle of its class may have it although there is room for a new one.
    pub(super) fn is_cold(self) -> bool {
        self.idle_ns != 0 && self.ns > self.idle_ns
    }

    /// Returns true if this exec has been idle long enough to be evicted for another class. If `GPUMEM_GRAPH_IDLE` is
    /// 0, an exec with a handle is never evicted for its age.
    pub(super) fn is_unwanted(self) -> bool {
        match self.is_parked {
            true => self.ns > self.idle_ns,
            false => self.idle_ns != 0 && self.ns > self.idle_ns.saturating_mul(COLD_TIMES),
        }
    }
}

/// Returns true if a miss counts as a use. `misses`: the number without room so far, including this one.
pub(super) fn counts(misses: u64) -> bool {
    misses.is_multiple_of(PROMOTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts =
        Facts { is_shared: true, comes_back: true, fewer_than_handles: true, short_age_ns: 11, long_ns: 10 };

    fn steps(facts: &Facts) -> Vec<ChoiceStep> {
        facts.steps().collect()
    }

    #[test]
    fn all_is_tried_in_the_order_of_the_documentation() {
        assert_eq!(steps(&FACTS), ORDER);
    }

    #[test]
    fn a_handle_gets_an_exec_of_its_own_only_if_there_is_reason_to() {
        for facts in [
            Facts { comes_back: false, ..FACTS },
            Facts { fewer_than_handles: false, ..FACTS },
            Facts { short_age_ns: 10, ..FACTS },
        ] {
            assert!(!steps(&facts).contains(&ChoiceStep::MakeOwn), "{facts:?}");
            assert_eq!(steps(&facts).len(), ORDER.len() - 1);
        }
    }

    #[test]
    fn an_exec_that_stays_with_its_handle_is_taken_by_no_other() {
        let made = [ChoiceStep::MakeOwn, ChoiceStep::Make, ChoiceStep::MakeForUnwanted, ChoiceStep::MakeForAny];
        assert_eq!(steps(&Facts { is_shared: false, ..FACTS }), made);
    }

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
