//! Parked execs, which no handle has: they are as many as was lately needed at once, and a few more, and none stays
//! that nobody wants. Those used last serve first, so that others go cold.

use super::ExecStore;
use super::candidates::ASKED;
use super::take::{IdleDevices, may_wait};
use crate::graphs::real::RealExec;
use crate::process::clock;
use crate::process::raised::Raised;
use crate::progress::activity;
use std::sync::atomic::Ordering::*;

/// At most so many surplus execs are destroyed at a time. Each time goes with one new exec, so their number falls.
const AT_A_TIME: usize = 2;

/// The end of the process waits so long for what the control thread is at.
const LONGEST_NS: u64 = 1_000_000_000;

impl ExecStore {
    /// Parked execs that are too many go, those used longest ago first, a few at a time, as far as they can; how many.
    pub(super) fn parked_go(&'static self) -> usize {
        if !self.bounds.has_too_many() {
            return 0;
        }
        let mut idle_devices = IdleDevices::default();
        let oldest = self.execs.in_order(0).into_iter().take_while(|real| real.is_parked());
        let goes = |real: &&'static RealExec| self.bounds.has_too_many() && self.goes(real, &mut idle_devices);
        oldest.take(ASKED).filter(goes).take(AT_A_TIME).count()
    }

    fn goes(&'static self, real: &'static RealExec, idle_devices: &mut IdleDevices) -> bool {
        self.take_idle(real, idle_devices).is_some_and(|idle| self.end_idle(idle, true))
    }

    /// What is done once a second, and when somebody asks (then `all` that is parked goes): execs that are over the
    /// bounds, too many, or parked for too long go as far as they can; if the cache is `off`, all parked ones. How many did, and how many are parked.
    pub(crate) fn housekeeping(&'static self, all: bool, off: bool) -> (usize, usize) {
        let _at_work = Raised::new(&self.looking_after);
        let (now, long) = (clock::now_ns(), self.bounds.long_ns());
        let due = |real: &RealExec| {
            let parked = real.is_parked();
            let old = now.saturating_sub(real.used_ns.load(Relaxed)) > long;
            parked && (all || old || off || self.bounds.has_too_many()) || self.is_over_bound()
        };
        if activity::broken() || !self.reals().into_iter().any(|real| real.in_use() && due(real)) {
            return (0, self.execs.parked());
        }
        let mut gone = 0;
        let _relaxed = self.library.relax();
        let _ = self.handles.contain(|| {
            self.destroy_completed();
            let mut idle_devices = IdleDevices::default();
            for real in self.execs.in_order(0) {
                // Somebody else's context is left alone as soon as it ends.
                let entered = if self.is_ending() { None } else { self.library.enter_context_of(real) };
                gone += usize::from(entered.is_some() && due(real) && self.goes(real, &mut idle_devices));
            }
        });
        (gone, self.execs.parked())
    }

    /// No thread of ours destroys anything any more. One that is at it is not waited for for ever: what it waits for
    /// may be the program's own.
    pub(crate) fn end_housekeeping(&self) {
        self.ending_process.store(true, SeqCst);
        let start = clock::precise_ns();
        let at_work = || self.looking_after.load(SeqCst) != 0 || self.aside.is_at_work();
        while at_work() && clock::precise_ns() - start < LONGEST_NS {
            std::thread::yield_now();
        }
    }

    /// Gets back under the bounds after they were exceeded, right after a launch. Only execs are destroyed that need no
    /// idle device for that.
    pub(crate) fn back_under_bounds_at_once(&'static self) {
        self.back_under_bounds_where(|real| !may_wait(real));
    }

    /// The same after the program has waited, perhaps for all pending work.
    pub(crate) fn back_under_bounds(&'static self) {
        self.destroy_completed();
        self.back_under_bounds_where(|_| true);
    }

    fn back_under_bounds_where(&'static self, may_go: fn(&RealExec) -> bool) {
        let mut idle_devices = IdleDevices::default();
        for real in self.execs.in_order(0).into_iter().filter(|real| may_go(real)) {
            if !self.is_over_bound() {
                return;
            }
            self.goes(real, &mut idle_devices);
        }
    }
}
