//! Parked execs, which have no handle. There are as many as were lately needed at once, and a few more; unused ones go.
//! The most recently used serve first, so that others go cold. An exec is parked when its handle ends.

use super::ExecStore;
use super::candidates::ASKED;
use super::needed::Need;
use super::take::{IdleDevices, may_wait};
use crate::gate;
use crate::graphs::handle::{Body, Edits, Handle, INVALID, context_of};
use crate::graphs::real::RealExec;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::progress::{activity, device};
use crate::records;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;

/// The most surplus execs that are destroyed at a time. Each time comes with one new exec, so their number falls.
const AT_A_TIME: usize = 2;

/// Longest wait of the process's end for the control thread's present work.
const LONGEST_NS: u64 = 1_000_000_000;

impl ExecStore {
    /// Destroys surplus parked execs, those used longest ago first, a few at a time, as far as possible. Returns their
    /// number.
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

    /// Runs once a second, and on request (then `all` parked execs go). Destroys, as far as possible, execs that are
    /// over the bounds, too many, or parked for too long; if the cache is `off`, all parked ones. Returns the number
    /// destroyed, and the number that are parked.
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
                // Another context is left alone as soon as it ends.
                let entered = if self.is_ending() { None } else { self.library.enter_context_of(real) };
                gone += usize::from(entered.is_some() && due(real) && self.goes(real, &mut idle_devices));
            }
        });
        (gone, self.execs.parked())
    }

    /// Stops all destruction by the shim's threads. The wait for one that is destroying is bounded: it may itself wait
    /// for the program.
    pub(crate) fn end_housekeeping(&self) {
        self.ending_process.store(true, SeqCst);
        let start = clock::precise_ns();
        let at_work = || self.looking_after.load(SeqCst) != 0 || self.aside.is_at_work();
        while at_work() && clock::precise_ns() - start < LONGEST_NS {
            std::thread::yield_now();
        }
    }

    /// Gets back under the bounds after they were exceeded, right after a launch. Destroys only execs for which the
    /// device need not be idle.
    pub(crate) fn back_under_bounds_at_once(&'static self) {
        self.back_under_bounds_where(|real| !may_wait(real));
    }

    /// As [`Self::back_under_bounds_at_once`], for all execs, after the program has waited, perhaps for all pending
    /// work.
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

    /// Ends a handle.
    ///
    /// # Errors
    /// 1 if it is not in use.
    pub(crate) fn end_handle(&'static self, index: u32) -> Result<(), Status> {
        let handle = self.handles.execs().get(index).ok_or(INVALID)?;
        self.library.allowed()?;
        let mut guard = lock(&handle.body);
        if guard.class.is_none() && guard.apart().ended.is_none() {
            return Err(INVALID);
        }
        let body = std::mem::take(&mut *guard);
        self.need_is(Need::of(&body), Need::default());
        let within = self.library.relax_in(context_of(&body));
        self.retire_exec(handle, &body);
        drop(within);
        let slot = handle.slot.swap(NO_SLOT, Relaxed);
        drop(guard);
        self.handles.execs().give(index);
        gate::record_if_started(|shim| {
            shim.count(counters::HANDLES_ENDED, 1);
            records::handles::source_is(shim, slot, 0);
        });
        Ok(())
    }

    /// Parks the exec of a handle that ends, or destroys it if no other handle can use it.
    fn retire_exec(&'static self, handle: &Handle, body: &Body) {
        if let Some(mut lease) = handle.lease() {
            let real = lease.real();
            handle.loses(&lease);
            let Edits { changes, disabled } = body.edits();
            let touched = !changes.is_empty() || !disabled.is_empty();
            let alone = body.class.as_ref().is_none_or(|class| !class.shared);
            // The library may wait for the device when it destroys an exec that never ran (measured on an H200, driver
            // 580). It is destroyed now, when the program expects that, and not later when room is needed.
            let never = !lease.body().launched;
            // If the completion of its last launch can never be known, no handle could ever take the exec. So it is
            // destroyed now.
            let lost = self.completion.is_unknowable(real, real.stream_key.load(Relaxed))
                && !device::can_tell(self.library.vendor);
            let at_once = body.apart().owned || lost || never;
            let too_many = || self.bounds.has_too_many() && self.parked_go() == 0;
            let goes = at_once || touched || alone || self.is_over_bound() || too_many();
            if goes
                && (at_once || !self.library.calls.behaviour().outlived || self.completion.known_completed(&mut lease))
            {
                self.end(lease, false);
            } else {
                self.completion.mark_last(&mut lease);
                self.mark_to_destroy(&lease, goes && alone);
            }
        }
        self.destroy_completed();
        self.handles.drop_pending(handle, false);
    }
}
