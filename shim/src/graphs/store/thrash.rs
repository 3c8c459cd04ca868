//! Detects thrashing: launches retarget only because there is no room for more execs.

use super::bounds::Bounds;
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records;
use gpumem_wire::counters;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Number of launches without an exec and without room after which thrashing is checked.
const THRASH_WINDOW: u64 = 256;
/// The cache thrashes if fewer than half of the launches since the last check were hits. It also thrashes if the other
/// launches took more time than the cache saved, and more than one part in this many of all time.
const COSTLY_SHARE: u64 = 50;
/// Thrashing is reported at most once in this time, ns.
const THRASH_EVERY_NS: u64 = 60_000_000_000;

/// Counters at a check for thrashing.
#[derive(Clone, Copy, Default)]
struct LastValues {
    launches: u64,
    saved_ns: u64,
    miss_ns: u64,
    at_ns: u64,
}

/// State of the checks for thrashing.
#[derive(Default)]
pub(super) struct Thrash {
    /// Launches that found neither an exec of their own nor room for one.
    misses: AtomicU64,
    printed_ns: AtomicU64,
    /// The counters at the last check.
    before: Mutex<LastValues>,
}

impl Thrash {
    /// Counts a launch that found neither an exec of its own nor room for one. Returns the number of such launches.
    pub(super) fn found_no_room(&self, bounds: &Bounds) -> u64 {
        let misses = self.misses.fetch_add(1, Relaxed) + 1;
        if misses == 1 || misses.is_multiple_of(THRASH_WINDOW) {
            self.look(bounds);
        }
        misses
    }

    fn look(&self, bounds: &Bounds) {
        let now = clock::now_ns();
        let counter = |of| gate::record_if_started(|shim| shim.ledger.counter(of)).unwrap_or(0);
        let values = LastValues {
            launches: counter(counters::LAUNCHES),
            saved_ns: counter(counters::SAVED_NS),
            miss_ns: counter(counters::MISS_NS),
            at_ns: now,
        };
        let before = std::mem::replace(&mut *lock(&self.before), values);
        let since = |of: fn(&LastValues) -> u64| of(&values).wrapping_sub(of(&before));
        let most_miss = since(|values| values.launches) < 2 * THRASH_WINDOW;
        let took = since(|values| values.miss_ns);
        let costs = took > since(|values| values.saved_ns) && took > since(|values| values.at_ns) / COSTLY_SHARE;
        let printed = self.printed_ns.load(Relaxed);
        let first = before.at_ns == 0;
        if first || !(most_miss || costs) || (printed != 0 && now.saturating_sub(printed) < THRASH_EVERY_NS) {
            return;
        }
        self.printed_ns.store(now, Relaxed);
        let (count, bytes, by_count) = bounds.taken();
        gate::record_if_started(|shim| records::handles::thrashes(shim, by_count, count, bytes));
    }
}
