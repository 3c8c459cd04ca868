//! Blocks are taken out of threads' caches and put where all threads find them.

use super::Pool;
use super::block_records;
use super::context_pool::ContextPool;
use super::thread::{LOOKS, Taken, ThreadCache};
use crate::process::clock;
use crate::shim::Shim;
use std::sync::atomic::Ordering::*;

impl Pool {
    /// Binds a thread's cache to another context. The blocks in it go where all threads find them.
    #[cold]
    pub(super) fn rebind(&self, shim: &'static Shim, taken: &mut Taken<'_>, context_pool: *const ContextPool) {
        let before = taken.context_pool();
        let unreported = taken.unreported();
        let now = clock::now_ns();
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        let owner = unsafe { before.cast::<ContextPool>().as_ref() }.filter(|_| taken.bytes() != 0);
        let _transit = owner.map(|owner| owner.in_transit.blocks.begin());
        let blocks = taken.rebind(context_pool);
        // SAFETY: null, or a ContextPool out of a leaked box, which is never freed.
        if let Some(before) = unsafe { before.cast::<ContextPool>().as_ref() } {
            let before: &'static ContextPool = before;
            block_records::add_live(shim, before, unreported);
            if !before.gone.load(Relaxed) {
                blocks.into_iter().for_each(|block| before.keep(block, now));
            }
        }
    }

    /// Empties a thread's cache, so that all threads find its blocks. Whether that could be done.
    pub(super) fn empty(&self, shim: &'static Shim, cache: &ThreadCache) -> bool {
        let Some(mut taken) = cache.take() else { return false };
        let context_pool = taken.context_pool();
        self.rebind(shim, &mut taken, context_pool);
        true
    }

    /// Empties all threads' caches.
    pub(crate) fn gather(&self, shim: &'static Shim) {
        for cache in self.caches() {
            let _ = (0..LOOKS).any(|_| self.empty(shim, cache));
        }
    }
}
