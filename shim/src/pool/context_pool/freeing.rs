//! The shim's thread that makes real frees of a context. Such a free may wait for the context's work. Each context has
//! at most one such thread at a time.

use super::ContextPool;
use crate::process::clock;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// The time since which a thread makes real frees, ns. 0: no thread does.
#[derive(Default)]
pub(crate) struct Freeing(AtomicU64);

/// A thread's claim on the real frees of a context. It ends on drop.
pub(crate) struct Frees(&'static ContextPool);

impl Drop for Frees {
    fn drop(&mut self) {
        self.0.freeing.0.store(0, Release);
    }
}

impl ContextPool {
    /// Claims the freeing of this context for a thread. `None` if another thread has it.
    pub(in crate::pool) fn begin_freeing(&'static self) -> Option<Frees> {
        let now = clock::precise_ns().max(1);
        self.freeing.0.compare_exchange(0, now, Acquire, Relaxed).ok().map(|_| Frees(self))
    }

    /// Returns for how long a thread has been making real frees.
    pub(in crate::pool) fn frees_for(&self) -> Duration {
        match self.freeing.0.load(Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(clock::precise_ns().saturating_sub(since)),
        }
    }
}

#[cfg(test)]
impl Frees {
    /// Pretends that the thread began that long ago.
    pub(in crate::pool) fn since(self, ago: Duration) -> Self {
        self.0.freeing.0.store(clock::precise_ns().saturating_sub(ago.as_nanos() as u64), Relaxed);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A free that never returns does not hold up another context.
    #[test]
    fn each_context_has_a_thread_of_its_own_that_frees() {
        let [one, other] = [1, 2].map(|context| ContextPool::for_test(context, 0, 0));
        let frees = one.begin_freeing().unwrap();
        assert!(one.begin_freeing().is_none() && other.begin_freeing().is_some());
        drop(frees);
        assert!(one.begin_freeing().is_some());
    }
}
