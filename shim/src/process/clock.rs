//! Time for records, nanoseconds.

use std::cell::Cell;

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local with room for the one timespec that is written. The clocks that
    // callers name exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns CLOCK_MONOTONIC to the tick (4 ms): precise enough for the time of a record, at a quarter of the cost.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// [`Recent`] is ahead of [`now_ns`] by at most this many ns. If a time from one exceeds a time from the other by more,
/// it was taken later.
pub(crate) const MOST_AHEAD_NS: u64 = Recent::GOOD_FOR / Recent::MOST_TICKS_IN_NS;

/// The calling thread's last reading of the clock, reused for a while.
///
/// Reading the clock touches nine cache lines on seven pages of the C library and the kernel. A thread that comes back
/// after other work has to wait for each of them.
pub struct Recent {
    ticks: Cell<u64>,
    ns: Cell<u64>,
}

impl Recent {
    /// Number of counter ticks for which a reading is reused: 22 ms at 3 GHz.
    const GOOD_FOR: u64 = 1 << 26;
    /// Upper bound on counter ticks per nanosecond, for any processor.
    const MOST_TICKS_IN_NS: u64 = 8;

    /// Creates the state before the first reading.
    pub const fn never() -> Self {
        Self { ticks: Cell::new(0), ns: Cell::new(0) }
    }

    /// As [`now_ns`], but up to [`Self::GOOD_FOR`] ticks late. Times given to one thread never go backwards: the amount
    /// added for ticks since the last reading is less than the time that passed.
    #[inline(always)]
    pub fn now_ns(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        return self.at(
            // SAFETY: reads the processor's counter into two registers and touches no memory.
            unsafe { std::arch::x86_64::_rdtsc() },
            now_ns,
        );
        // The counter's rate differs between machines of this architecture.
        #[cfg(not(target_arch = "x86_64"))]
        self.at(0, now_ns)
    }

    #[inline(always)]
    fn at(&self, ticks: u64, clock: impl FnOnce() -> u64) -> u64 {
        // A counter that went back, for example after a move to another machine, wraps to a large difference here.
        let since = ticks.wrapping_sub(self.ticks.get());
        if since >= Self::GOOD_FOR || ticks == 0 {
            return self.ask(ticks, clock);
        }
        self.ns.get() + since / Self::MOST_TICKS_IN_NS
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, ticks: u64, clock: impl FnOnce() -> u64) -> u64 {
        // The clock itself ticks every few milliseconds.
        let ns = clock().max(self.ns.get());
        self.ticks.set(ticks);
        self.ns.set(ns);
        ns
    }
}

/// Returns CLOCK_MONOTONIC.
pub(crate) fn precise_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the calling thread's processor time, without the time in which it did not run.
pub(crate) fn worked_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns CLOCK_REALTIME.
pub(crate) fn real_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_asked_once_in_a_while() {
        let recent = Recent::never();
        let asked = Cell::new(0);
        let at = |ticks: u64, ns: u64| {
            recent.at(ticks, || {
                asked.set(asked.get() + 1);
                ns
            })
        };
        let start = 1 << 40;
        assert_eq!(at(start, 5000), 5000);
        assert_eq!(at(start + 80, 9999), 5010, "what certainly went by is added");
        assert_eq!((at(start + Recent::GOOD_FOR - 1, 0), asked.get()), (5000 + (1 << 23) - 1, 1));
        let later = at(start + Recent::GOOD_FOR, 30_000_000);
        assert_eq!((later, asked.get()), (30_000_000, 2));
        assert_eq!((at(start, 40_000_000), asked.get()), (40_000_000, 3), "a counter that went back is not believed");
        assert_eq!((at(start + 8, 0), asked.get()), (40_000_001, 3));
        assert_eq!(at(u64::MAX, 39_000_000), 40_000_000, "of a clock that ticks seldom the order stays");
        assert_eq!(
            (at(0, 41_000_000), asked.get()),
            (41_000_000, 5),
            "where nothing counts the clock is asked each time"
        );
        assert_eq!((at(0, 42_000_000), asked.get()), (42_000_000, 6));
    }

    #[test]
    fn the_time_is_never_ahead_of_the_clock_and_keeps_its_order() {
        let (recent, mut last) = (Recent::never(), 0);
        for _ in 0..100_000 {
            let now = recent.now_ns();
            assert!(last <= now && now <= precise_ns(), "{last} {now}");
            last = now;
        }
    }
}
