//! A new exec instead of a retarget. Where the device is behind, the host has the time to make one.
//!
//! When an exec's node is given another grid, block, shared memory or function, the device reads that node's parameters
//! afresh at every launch from then on (H200, driver 580: 0.1 µs for a kernel of few parameters, 0.45 for those of
//! PyTorch; the constant caches miss 340 times more for each). An exec that is instantiated has no such nodes, but
//! takes the host four times as long as a retarget.

use super::ExecStore;
use super::candidates::MAX_TRIES;
use super::choose::Search;
use crate::gate;
use crate::graphs::real::{Lease, RealExec, StreamKey};
use crate::graphs::sources::Work;
use crate::process::clock;
use crate::progress::activity;
use gpumem_wire::counters;
use std::ptr;
use std::sync::atomic::Ordering::*;

/// By how many instantiates the device has to be behind, so that it does not run dry during one. Everything else that
/// making an exec takes is shorter than one instantiate.
const BEHIND: u64 = 2;

impl Search<'_> {
    /// Makes a new exec instead of taking the oldest one of the class, if that one is degraded and the device is behind.
    /// The new exec gets the room of one whose last launch has completed, preferably of a degraded one. It also takes the
    /// oldest one's place in the order of uses, unless this launch counts as a use. So launches make an exec or
    /// retarget by turns, and making execs takes no more time than the device does.
    pub(super) fn replace(&mut self, work: &mut Work) -> Option<Lease> {
        let oldest = *self.ours.first.first()?;
        let takes = BEHIND * self.class.instantiate_ns.load(Relaxed);
        // Work that waits for the program completes when the program likes, and the library may wait for it.
        if !oldest.degraded.load(Relaxed) || activity::is_outside() {
            return None;
        }
        let store = self.store;
        let all = store.execs.in_order(0);
        if !store.is_behind(&all, self.stream_key, takes) {
            return None;
        }
        // Only an exec whose room is enough by itself. Many small ones are not destroyed for one large one.
        let goes =
            |real: &&'static RealExec| !ptr::eq(*real, oldest) && store.bounds.fits_in_place_of(self.bytes, real);
        let mut others: Vec<_> = all.into_iter().filter(goes).collect();
        others.sort_by_key(|real| (!real.is_parked(), !real.degraded.load(Relaxed)));
        let idle = others.into_iter().take(MAX_TRIES).find_map(|real| self.take_idle(real))?;
        store.end_idle(idle, true);
        if !self.reserve() {
            return None;
        }
        // If the library makes none, the oldest is taken.
        let mut lease = store.make(self.sources, self.class, self.bytes, work).ok()?;
        gate::record_if_started(|shim| shim.count(counters::MADE_ANEW, 1));
        lease.real().takes_place_of(oldest);
        lease.body().stays = !self.counts;
        Some(lease)
    }
}

impl ExecStore {
    /// Whether something that was launched on this stream `ns` ago has not completed. What was launched since runs
    /// after it, so the stream has work for about as long.
    fn is_behind(&self, all: &[&'static RealExec], stream_key: StreamKey, ns: u64) -> bool {
        let before = clock::precise_ns().saturating_sub(ns);
        let of_stream =
            all.iter().filter(|real| real.stream_key.load(Relaxed) == stream_key && real.marked.load(Relaxed));
        let launched = |real: &RealExec| real.launched_ns.load(Relaxed);
        let long_ago = of_stream.filter(|real| launched(real) <= before).max_by_key(|real| launched(real));
        let Some(mut lease) = long_ago.and_then(|real| real.lease()) else { return false };
        // The exec may have been launched or taken since.
        let real = lease.real();
        let same = real.stream_key.load(Relaxed) == stream_key && real.marked.load(Relaxed);
        same && launched(real) <= before && !self.completion.has_completed(&mut lease, stream_key)
    }
}
