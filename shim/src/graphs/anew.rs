//! An exec instead of a retarget: where the device is behind, the host has the time for it.
//!
//! Nodes whose grid, block, shared memory or function an exec is given anew make the device read their
//! parameters afresh at every launch, from then on (H200, driver 580: 0.1 µs for a kernel of few parameters,
//! 0.45 for those of PyTorch; the constant caches miss 340 times more for each). An exec that is instantiated
//! has no such nodes, but takes the host four times as long as a retarget.

use super::cache::{Cache, Work};
use super::choose::{MAX_TRIES, Rest};
use super::class::Class;
use super::real::{LOST, Lane, Lease, NOWHERE, Real};
use crate::gate;
use gpumem_wire::counters;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// An exec is worn once so large a share of its nodes was given another shape at a time.
const WORN_SHARE: u64 = 8;
/// After the device ran dry again and again, one in so many misses tries.
const LONGEST: u32 = 64;

/// Whether it was worth it the last time: what waits for the program's next launch is not behind for long.
#[derive(Default)]
pub struct Patience {
    /// Misses from one try to the next, less one.
    step: AtomicU32,
    /// Misses until the next try.
    left: AtomicU32,
}

impl Patience {
    /// Counts a miss; whether it may try.
    fn is_over(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
    }

    /// Half as long after a try that did no harm, twice as long after one that let the device run dry.
    fn learn(&self, dry: bool) {
        let step = self.step.load(Relaxed);
        let step = if dry { (2 * step + 1).min(LONGEST - 1) } else { step / 2 };
        self.step.store(step, Relaxed);
        self.left.store(step, Relaxed);
    }
}

impl Real {
    /// So many of its nodes were given another shape, or switched.
    pub(super) fn wears(&self, reshaped: u64, nodes: usize) {
        if reshaped > 0 && reshaped * WORN_SHARE >= nodes as u64 {
            self.worn.store(true, Relaxed);
        }
    }
}

impl Cache {
    /// Instead of taking the oldest of `ours`, if that is worn and the device is behind: a new exec in the room of
    /// one of `all` that is idle, worn ones first. It takes the oldest's place, too, unless it `counts` as used: by
    /// turns with retargets, execs are made in no more time than the device takes.
    pub(super) fn make_anew(
        &self,
        class: &Arc<Class>,
        (ours, mut all): (&[&'static Real], Vec<&'static Real>),
        (lane, counts): (Lane, bool),
        bytes: (u64, u64),
        work: &mut Work,
        rest: &mut Rest,
    ) -> Option<Lease> {
        let oldest = *ours.first()?;
        if !oldest.worn.load(Relaxed) || !self.is_behind(oldest, lane) || !class.patience.is_over() {
            return None;
        }
        all.retain(|real| !ptr::eq(*real, oldest));
        all.sort_by_key(|real| (real.owner.load(Relaxed) != 0, !real.worn.load(Relaxed)));
        let idle = all.into_iter().take(MAX_TRIES).find_map(|real| self.take_idle(real, rest))?;
        self.end_idle(idle, true);
        if !self.reserve(bytes, false) {
            return None;
        }
        // Where the library has none, the oldest is there.
        let mut lease = self.make(class, bytes, work).ok()?;
        gate::record_if_started(|shim| shim.count(counters::MADE_ANEW, 1));
        class.patience.learn(!self.is_behind(oldest, lane));
        lease.real().takes_place_of(oldest);
        lease.body().stays = !counts;
        Some(lease)
    }

    /// Whether the last launch of an exec was on this lane and is not over.
    fn is_behind(&self, real: &'static Real, lane: Lane) -> bool {
        let Some(mut lease) = real.lease() else { return false };
        let last = real.lane.load(Relaxed);
        last == lane && ![NOWHERE, LOST].contains(&last) && !self.is_over(&mut lease, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_that_let_the_device_run_dry_become_rare() {
        let patience = Patience::default();
        let mut tries = 0;
        for _ in 0..1000 {
            if patience.is_over() {
                patience.learn(true);
                tries += 1;
            }
        }
        assert!((15..25).contains(&tries), "{tries}");
        for _ in 0..1000 {
            if patience.is_over() {
                patience.learn(false);
                tries += 1;
            }
        }
        assert!(tries > 800, "{tries}");
    }
}
