//! Parked execs, which no handle has: they are as many as was lately needed at once, and a few more, and none stays
//! that nobody wants. Those used last serve first, so that others go cold.

use super::Cache;
use super::needed::Need;
use super::real::{RealExec, StreamKey};
use super::take::IdleDevices;
use crate::process::clock;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::progress::activity;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::*;

/// So many execs, and bytes of them, are kept beyond the most that were lately needed at once: one handle that goes
/// through a few shapes finds an exec for each. A native run has no such memory.
const SPARE: Need = Need { execs: 12, bytes: 1 << 20 };
/// Parked execs that are asked whether they are over before the others are left for another time.
const ASKED: usize = 8;
/// Of those, so many that were used longest ago: the last ones may all run.
const ASKED_OLDEST: usize = 2;
/// At most so many surplus execs are destroyed at a time. Each time goes with one new exec, so their number falls.
const AT_A_TIME: usize = 2;

/// The end of the process waits so long for what the control thread is at.
const LONGEST_NS: u64 = 1_000_000_000;

impl Cache {
    /// Whether there are more execs than was lately needed at once, and a few.
    pub(super) fn has_too_many(&self) -> bool {
        let inner = lock(&self.inner);
        let most = inner.needed.lately(clock::now_ns(), self.bounds.long_ns() / 2) + SPARE;
        inner.count > most.execs || inner.bytes > most.bytes
    }

    /// Whether there are fewer execs than handles that need one.
    pub(super) fn has_fewer_than_handles(&self) -> bool {
        let inner = lock(&self.inner);
        inner.count < inner.needed.now().execs
    }

    /// Of the parked ones among `ours`, those to be asked first whether a launch on a stream may have them.
    pub(super) fn parked_first(&self, ours: &[&'static RealExec], stream_key: StreamKey) -> Vec<&'static RealExec> {
        let mut parked: Vec<_> = ours.iter().copied().filter(|real| real.is_parked()).collect();
        // What runs on this very stream need not be over.
        parked.sort_by_cached_key(|real| (real.stream_key.load(Relaxed) != stream_key, Reverse(real.place())));
        if parked.len() > ASKED {
            let mut oldest = parked.split_off(ASKED - ASKED_OLDEST);
            oldest.sort_by_cached_key(|real| real.place());
            oldest.truncate(ASKED_OLDEST);
            parked.extend(oldest);
        }
        parked
    }

    /// Parked execs that are too many go, those used longest ago first, a few at a time, as far as they can; how many.
    pub(super) fn parked_go(&self) -> usize {
        if !self.has_too_many() {
            return 0;
        }
        let mut idle_devices = IdleDevices::default();
        let oldest = self.candidates(0).into_iter().take_while(|real| real.is_parked());
        let goes = |real: &&'static RealExec| self.has_too_many() && self.goes(real, &mut idle_devices);
        oldest.take(ASKED).filter(goes).take(AT_A_TIME).count()
    }

    fn goes(&self, real: &'static RealExec, idle_devices: &mut IdleDevices) -> bool {
        self.take_idle(real, idle_devices).is_some_and(|idle| self.end_idle(idle, true))
    }

    /// What is done once a second, and when somebody asks (then `all` that is parked goes): execs that are over the
    /// bounds, too many, or parked for too long go as far as they can. How many did, and how many are parked.
    pub(super) fn housekeeping(&self, all: bool) -> (usize, usize) {
        let _at_work = Raised::new(&self.looking_after);
        let (now, long) = (clock::now_ns(), self.bounds.long_ns());
        let due = |real: &RealExec| {
            let parked = real.is_parked();
            let old = now.saturating_sub(real.used_ns.load(Relaxed)) > long;
            parked && (all || old || super::is_off() || self.has_too_many()) || self.over_bound()
        };
        if activity::broken() || !self.reals().into_iter().any(|real| real.in_use() && due(real)) {
            return (0, self.parked());
        }
        let mut gone = 0;
        let _relaxed = self.library.relax();
        let _ = self.handles.contain(|| {
            self.destroy_completed();
            let mut idle_devices = IdleDevices::default();
            for real in self.candidates(0) {
                // Somebody else's context is left alone as soon as it ends.
                let entered = if self.is_ending() { None } else { self.library.enter_context_of(real) };
                gone += usize::from(entered.is_some() && due(real) && self.goes(real, &mut idle_devices));
            }
        });
        (gone, self.parked())
    }

    /// No thread of ours destroys anything any more. One that is at it is not waited for for ever: what it waits for
    /// may be the program's own.
    pub(super) fn end_housekeeping(&self) {
        self.ending_process.store(true, SeqCst);
        let start = clock::precise_ns();
        let at_work = || self.looking_after.load(SeqCst) != 0 || self.aside.is_at_work();
        while at_work() && clock::precise_ns() - start < LONGEST_NS {
            std::thread::yield_now();
        }
    }

    /// Parked execs.
    fn parked(&self) -> usize {
        lock(&self.inner).of_class(0).filter(|real| real.is_parked()).count()
    }
}
