//! Number of execs that the program needs at once. Natively there would be one for each of its handles.

use crate::graphs::handle::Body;

/// A number of execs, and their estimated bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub execs: u64,
    pub bytes: u64,
}

impl Need {
    /// Returns what a handle needs of the bounded resources: an exec, if it is in use and has none for good.
    pub(crate) fn of(body: &Body) -> Self {
        let class = body.class.as_ref().filter(|_| !body.apart().owned);
        class.map_or_else(Self::default, |class| {
            let (host, device) = class.shape.exec_bytes();
            Self { execs: 1, bytes: host + device }
        })
    }

    /// Combines each of the two amounts with the other's.
    pub(super) fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self { execs: combine(self.execs, other.execs), bytes: combine(self.bytes, other.bytes) }
    }
}

/// The present need, and the greatest need in this window of time and in the one before.
#[derive(Debug, Default)]
pub(super) struct Needed {
    now: Need,
    most: Need,
    before: Need,
    since_ns: u64,
}

impl Needed {
    pub(super) fn now(&self) -> Need {
        self.now
    }

    /// Returns the greatest need at once since the last window began.
    pub(super) fn lately(&self, now_ns: u64, window_ns: u64) -> Need {
        let (before, most) = self.windows(now_ns, window_ns);
        before.with(most, u64::max)
    }

    /// Returns the greatest need of the last window, and of the present one.
    fn windows(&self, now_ns: u64, window_ns: u64) -> (Need, Need) {
        match now_ns.saturating_sub(self.since_ns) {
            passed if passed >= 2 * window_ns => (self.now, self.now),
            passed if passed >= window_ns => (self.most, self.now),
            _ => (self.before, self.most),
        }
    }

    pub(super) fn becomes(&mut self, now: Need, now_ns: u64, window_ns: u64) {
        if now_ns.saturating_sub(self.since_ns) >= window_ns {
            (self.before, self.most) = self.windows(now_ns, window_ns);
            self.since_ns = now_ns;
        }
        self.now = now;
        self.most = self.most.with(now, u64::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_needed_is_remembered_for_a_window_and_then_forgotten() {
        let (mut needed, need) = (Needed::default(), |execs| Need { execs, bytes: 100 * execs });
        let window = 1000;
        needed.becomes(need(7), 10_000, window);
        needed.becomes(need(2), 10_100, window);
        assert_eq!((needed.now(), needed.lately(10_200, window)), (need(2), need(7)));
        assert_eq!(needed.lately(11_050, window), need(7), "the window before");
        assert_eq!(needed.lately(11_900, window), need(7));
        assert_eq!(needed.lately(12_100, window), need(2), "and no longer");
        needed.becomes(need(9), 12_200, window);
        needed.becomes(need(1), 12_300, window);
        assert_eq!(needed.lately(90_000, window), need(1), "nobody asked for long");
    }
}
