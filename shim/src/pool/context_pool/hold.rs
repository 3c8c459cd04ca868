//! Keeps a context from ending while its blocks are given back.

use super::ContextPool;
use crate::process::cancel;
use crate::process::raised::Raised;
use crate::progress::device::ContextHold;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// Keeps a context from ending until it is dropped. The pool holds no lock meanwhile.
pub(crate) struct PoolHold<'a> {
    context_pool: &'a ContextPool,
    _releasing: Raised<'a>,
    hold: ContextHold,
}

impl PoolHold<'_> {
    /// Returns true if a thread waits to end the context.
    pub(crate) fn is_wanted(&self) -> bool {
        self.context_pool.gone.load(SeqCst) || self.hold.is_wanted()
    }
}

impl ContextPool {
    /// Keeps the context from ending while its blocks are given back. `None` if the context has ended.
    pub(crate) fn hold(&self) -> Option<PoolHold<'_>> {
        // A program may release a primary context. Only after the release is it known if that was the last one and
        // ended the context.
        let context = self.context();
        let hold = ContextHold::begin(context)?;
        let staying = PoolHold { context_pool: self, _releasing: Raised::new(&self.releasing), hold };
        (!self.gone.load(SeqCst) && self.context() == context).then_some(staying)
    }

    /// Waits at most `longest` until no thread gives blocks back any more. A thread that begins after this call sees
    /// that the context is gone, or that the pool is closed.
    pub(crate) fn wait_for_releases(&self, longest: Duration) {
        cancel::poll(longest, Duration::from_micros(50), || self.releasing.load(SeqCst) == 0);
    }
}
