//! Tells which execs a launch that needs one may take from others (docs/graphs.md, "A launch").

use super::bounds::COLD_TIMES;

/// One of this many misses without room counts as a use: the exec that the miss takes moves to the newest place in the
/// order of uses. On such a miss an unused exec of another class may be destroyed as well.
const PROMOTED: u64 = 32;

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
