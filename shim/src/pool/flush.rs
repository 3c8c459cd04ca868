//! All idle blocks of a device go back for a request that has no room, and how long that may take.

use super::Pool;
use super::context_pool::ContextPool;
use super::in_transit::DESCHEDULED;
use super::release_all::LONGEST_WAIT;
use crate::gate;
use crate::progress::queries;
use gpumem_wire::counters;
use std::time::Duration;

impl Pool {
    /// Whether idle blocks can go back now: a real free is refused while something captures.
    pub(crate) fn may_flush(&self, context_pool: &ContextPool) -> bool {
        !queries::capturing() || context_pool.gives_back_at_once()
    }

    /// How long a block or a request may be on its way.
    pub(crate) fn longest_transit(&self, context_pool: &ContextPool) -> Duration {
        if !self.may_have_pending() && context_pool.gives_back_at_once() {
            return DESCHEDULED;
        }
        // A free that waits for work has waited for some time already. That time is taken off.
        let of_device = self.context_pools().into_iter().filter(|other| other.device == context_pool.device);
        LONGEST_WAIT.saturating_sub(of_device.map(ContextPool::frees_for).max().unwrap_or_default())
    }

    /// Idle bytes of a device.
    pub(crate) fn idle_on(&self, device: i32) -> u64 {
        self.context_pools()
            .into_iter()
            .filter(|context_pool| context_pool.device == device)
            .map(|context_pool| self.idle(context_pool))
            .sum()
    }

    /// Idle bytes of a device that can go back for a request, even while the device works.
    pub(crate) fn to_be_had_on(&self, device: i32) -> u64 {
        let of_device = self.context_pools().into_iter().filter(|context_pool| context_pool.device == device);
        let goes = |context_pool: &&'static ContextPool| {
            !context_pool.frees_wait()
                || context_pool.known_idle()
                || context_pool.calls.tells_all() && context_pool.is_idle()
        };
        of_device.filter(goes).map(|context_pool| self.idle(context_pool)).sum()
    }

    /// Gives back all idle blocks of a device. The answer is the bytes that went back. Freed blocks that pending work
    /// uses stay, if that work does not complete soon.
    pub(crate) fn flush(&'static self, device: i32) -> u64 {
        let Some(shim) = gate::shim() else { return 0 };
        self.gather(shim);
        let of_device = self.context_pools().into_iter().filter(|context_pool| context_pool.device == device);
        // Another thread may be ending this context. It waits until this is done.
        let give_back =
            |context_pool: &'static ContextPool| context_pool.hold().map_or(0, |_hold| self.release_all(context_pool));
        let released = of_device.map(give_back).sum();
        shim.count(counters::POOL_FLUSHES, 1);
        released
    }
}
