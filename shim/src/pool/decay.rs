//! Decay: the idle memory that goes back with time.

use super::context_pool::ContextPool;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Least time between two looks of the program's frees at the curve, ns.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// Returns the share of memory that may stay after it was idle for `age_ns`: 1 at first, 0 after `decay_ns`, smooth at
/// both ends, as in jemalloc.
fn staying(age_ns: u64, decay_ns: u64) -> f64 {
    let x = (age_ns as f64 / decay_ns as f64).min(1.0);
    1.0 - x * x * x * (x * (x * 6.0 - 15.0) + 10.0)
}

/// Time that idle memory stays, ns. 0: for ever.
#[derive(Default)]
pub(super) struct Decay(AtomicU64);

impl Decay {
    pub(super) fn set(&self, ns: u64) {
        self.0.store(ns, Relaxed);
    }

    /// Returns the idle bytes of a context that are due to go back by now.
    pub(super) fn due(&self, context_pool: &ContextPool, now_ns: u64) -> u64 {
        let decay = self.0.load(Relaxed);
        if decay == 0 || context_pool.idle() == 0 {
            return 0;
        }
        let (mut idle, mut may_stay) = (0, 0.0);
        for (bytes, age) in context_pool.ages(now_ns) {
            idle += bytes;
            may_stay += bytes as f64 * staying(age, decay);
        }
        idle - (may_stay as u64).min(idle)
    }

    /// As [`Decay::due`], but returns 0 if that was computed less than [`LOOK_EVERY_NS`] ago.
    pub(super) fn due_at_times(&self, context_pool: &ContextPool, now_ns: u64) -> u64 {
        if context_pool.begin_look(now_ns, LOOK_EVERY_NS) { self.due(context_pool, now_ns) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::block::{Block, State};

    /// The frees of one context do not keep another context from looking.
    #[test]
    fn each_context_looks_for_itself() {
        let decay = Decay::default();
        decay.set(10_000_000_000);
        let due = [1, 2].map(|context| {
            let context_pool = ContextPool::for_test(context, 0, 0);
            let block: &'static Block = Box::leak(Box::default());
            block.set_bytes(1024);
            block.set(State::Busy);
            context_pool.keep(block, 1);
            let now = 20_000_000_001;
            (decay.due_at_times(context_pool, now), decay.due_at_times(context_pool, now))
        });
        assert_eq!(due, [(1024, 0), (1024, 0)]);
    }

    #[test]
    fn what_is_idle_goes_slowly_at_first_and_is_gone_in_the_end() {
        assert_eq!(staying(0, 10), 1.0);
        assert_eq!(staying(10, 10), 0.0);
        assert_eq!(staying(1000, 10), 0.0);
        assert!((staying(5, 10) - 0.5).abs() < 1e-9);
        let curve: Vec<f64> = (0..=10).map(|age| staying(age, 10)).collect();
        assert!(curve.is_sorted_by(|a, b| a >= b) && curve[1] > 0.99);
    }
}
