//! Memory is short: all that is idle goes back. Where a free waits for work, the request that runs out waits for that no
//! longer than [`LONGEST_WAIT`]. What is still kept then counts as taken.

use super::Pool;
use super::aside::Seen;
use super::context_pool::{ContextPool, Most};
use crate::process::cancel;
use crate::progress::activity;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// A request that runs out waits this long for work that uses freed blocks (in deferred mode), or that a real free would
/// wait for (where there are no others): work that is over by then was worth it, and other work must not be waited for.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Between two looks.
const SLEEP: Duration = Duration::from_micros(100);

impl Pool {
    /// Gives back all that is idle in a context; bytes given back. In deferred mode, and where a free waits, work is
    /// waited for that may be finite.
    pub(super) fn release_all(&'static self, context_pool: &'static ContextPool) -> u64 {
        if context_pool.has_pending() {
            let _transit = context_pool.in_transit.blocks.begin();
            context_pool.wait_for_freed(LONGEST_WAIT);
        }
        self.leave_quarantine(context_pool, context_pool.take_quarantine());
        if context_pool.idle() == 0 {
            return 0;
        }
        if context_pool.gives_back_at_once() {
            return self.release(context_pool, Most::AtLeast(u64::MAX, usize::MAX), || false);
        }
        if context_pool.calls.tells_all() {
            let rests = context_pool.rests_within(LONGEST_WAIT);
            return if rests { self.release_in_time(context_pool, ContextPool::is_idle) } else { 0 };
        }
        // Without events of contexts nobody can say whether the context is idle. The free then waits, unless some of the
        // work is known to wait for the program itself.
        self.release_in_time(context_pool, |_| !activity::is_outside())
    }

    /// Gives back all that is idle by real frees, and waits for them, but not for ever; bytes given back. `may`: asked
    /// before each.
    fn release_in_time(&'static self, context_pool: &'static ContextPool, may: fn(&ContextPool) -> bool) -> u64 {
        let (start, all) = (Instant::now(), Most::AtLeast(u64::MAX, usize::MAX));
        loop {
            let left = LONGEST_WAIT.saturating_sub(start.elapsed());
            let goes_on = move |seen: &Seen| !seen.left.load(Relaxed) && may(context_pool);
            if let Some(released) = self.release_aside(context_pool, all, left, goes_on) {
                return released;
            }
            // Another thread's frees have waited so long in vain.
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
