//! A handle ends, and its exec is parked or destroyed.

use super::ExecStore;
use super::needed::Need;
use crate::gate;
use crate::graphs::handle::{Body, Edits, Handle, INVALID, context_of};
use crate::ledger::table::NO_SLOT;
use crate::process::lock::lock;
use crate::progress::device;
use crate::records;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;

impl ExecStore {
    /// A handle ends.
    ///
    /// # Errors
    /// 1 if it is not in use.
    pub(crate) fn end_handle(&'static self, index: u32) -> Result<(), Status> {
        let handle = self.handles.get(index).ok_or(INVALID)?;
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
        self.handles.give(index);
        gate::record_if_started(|shim| {
            shim.count(counters::HANDLES_ENDED, 1);
            records::handles::source_is(shim, slot, 0);
        });
        Ok(())
    }

    /// Parks the exec of a handle that ends, or destroys it if no other can use it.
    fn retire_exec(&'static self, handle: &Handle, body: &Body) {
        if let Some(mut lease) = handle.lease() {
            let real = lease.real();
            handle.loses(&lease);
            let Edits { changes, disabled } = body.edits();
            let touched = !changes.is_empty() || !disabled.is_empty();
            let alone = body.class.as_ref().is_none_or(|class| !class.shared);
            // The library may wait for the device when it destroys an exec that never ran (measured on an H200, driver
            // 580). It is destroyed now, where the program expects that, and not later when room is needed.
            let never = !lease.body().launched;
            // If nothing can tell when its last launch completes, no handle could ever take the exec. So it is
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
