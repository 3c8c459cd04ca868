//! Memory is short, so all idle blocks go back. Where a free waits for work, the request that runs out waits for that
//! no longer than [`LONGEST_WAIT`]. What is still kept then counts as taken.

use super::Pool;
use super::context_pool::{ContextPool, Most};
use super::release_aside::FreeingProgress;
use crate::process::cancel;
use crate::progress::activity;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How long a request that runs out waits for the work that uses freed blocks (in deferred mode), or for the work that
/// a real free would wait for (where there are no other frees). Work that completes within this time was worth the
/// wait. Other work must not be waited for.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Between two looks.
const SLEEP: Duration = Duration::from_micros(100);

impl Pool {
    /// Gives back all idle blocks of a context. The answer is the bytes that went back. In deferred mode, and where a
    /// free waits, work is waited for that may complete.
    pub(super) fn release_all(&'static self, context_pool: &'static ContextPool) -> u64 {
        if context_pool.has_pending() {
            let _transit = context_pool.in_transit.blocks.begin();
            context_pool.wait_for_freed(LONGEST_WAIT);
        }
        self.leave_quarantine(context_pool, context_pool.take_quarantine());
        if context_pool.idle() == 0 {
            return 0;
        }
        // Blocks that a late reader may still read do not go back.
        context_pool.settle_readers_within(LONGEST_WAIT);
        if context_pool.gives_back_at_once() {
            return self.release(context_pool, Most::AtLeast(u64::MAX, usize::MAX), || false);
        }
        if context_pool.calls.tells_all() {
            let idle = context_pool.idle_within(LONGEST_WAIT);
            return if idle { self.release_in_time(context_pool, ContextPool::is_idle) } else { 0 };
        }
        // Without events behind all work nobody can say whether the context is idle. The free then waits, unless some
        // of the work is known to wait for the program itself.
        self.release_in_time(context_pool, |_| !activity::is_outside())
    }

    /// Gives back all idle blocks by real frees, and waits for these frees, but not for ever. The answer is the bytes
    /// that went back. `may` is asked before each free.
    fn release_in_time(&'static self, context_pool: &'static ContextPool, may: fn(&ContextPool) -> bool) -> u64 {
        let (start, all) = (Instant::now(), Most::AtLeast(u64::MAX, usize::MAX));
        loop {
            let left = LONGEST_WAIT.saturating_sub(start.elapsed());
            let goes_on = move |seen: &FreeingProgress| !seen.left.load(Relaxed) && may(context_pool);
            if let Some(released) = self.release_aside(context_pool, all, left, goes_on) {
                return released;
            }
            // The frees of another thread have waited in vain for so long already.
            if left.is_zero() || context_pool.frees_for() > LONGEST_WAIT {
                return 0;
            }
            cancel::sleep(SLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_wire::kinds::Vendor;
    use gpumem_wire::settings::Settings;

    /// A thread whose free has waited so long is not waited for: a request does so for what is left of that time.
    #[test]
    fn frees_that_wait_for_long_are_waited_for_no_longer() {
        let (settings, _) = Settings::read(std::iter::empty());
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(Vendor::Cuda, &settings, true)));
        let context_pool = ContextPool::made_up(1, 0, 0);
        for waited in [LONGEST_WAIT, LONGEST_WAIT - Duration::from_millis(300)] {
            let _frees = context_pool.begin_freeing().unwrap().since(waited);
            let start = Instant::now();
            assert_eq!(pool.release_in_time(context_pool, |_| true), 0);
            // It is the other thread's time that counts, or this would have taken all of its own.
            assert!(start.elapsed() < LONGEST_WAIT / 2 && context_pool.frees_for() >= LONGEST_WAIT, "{waited:?}");
        }
    }
}
