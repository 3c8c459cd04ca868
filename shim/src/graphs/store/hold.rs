//! Gives a handle an exec with its content: an exec is chosen for it, and retargeted node by node. If a private clone
//! of its graph stands for the handle, the exec is updated from the clone.

use super::ExecStore;
use super::choose::Origin;
use super::make::WantedExec;
use crate::gate;
use crate::graphs::handle::{Body, Handle, INVALID, context_of};
use crate::graphs::real::{Lease, StreamKey};
use crate::graphs::retarget::retarget;
use crate::graphs::sources::Buffers;
use crate::process::clock;
use crate::records;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl ExecStore {
    /// As [`Self::hold`], with panics contained.
    pub(crate) fn held(&'static self, handle: &Handle, body: &Body, stream_key: StreamKey) -> Result<Lease, Status> {
        self.handles.contain(|| self.sources.with_work(|work| self.hold(handle, body, stream_key, work)))?
    }

    /// As [`Self::held`], for a launch. Natively the launch would have had its exec.
    pub(crate) fn missed(&'static self, handle: &Handle, body: &Body, stream_key: StreamKey) -> Result<Lease, Status> {
        let _entered = self.library.enter(context_of(body));
        let start = clock::precise_ns();
        let lease = self.held(handle, body, stream_key)?;
        let took = clock::precise_ns() - start;
        gate::record_if_started(|shim| records::handles::missed(shim, handle.slot.load(Relaxed), took));
        Ok(lease)
    }

    /// Returns a real exec that holds the handle's content, leased and not yet given to the handle.
    ///
    /// # Errors
    /// The library's status.
    pub(crate) fn hold(
        &'static self,
        handle: &Handle,
        body: &Body,
        stream_key: StreamKey,
        work: &mut Buffers,
    ) -> Result<Lease, Status> {
        let class = body.class.clone().ok_or(INVALID)?;
        let slot = handle.slot.load(Relaxed);
        if !class.alone && !work.unfold(body) {
            return Err(INVALID);
        }
        work.clone = body.apart().template.clone();
        let comes_back = handle.lost_its.load(Relaxed);
        let wanted = &mut WantedExec { class: &class, work };
        let (mut lease, found) = self.acquire(wanted, stream_key, comes_back)?;
        let new = found == Origin::New;
        if new {
            gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        }
        if class.alone {
            return self.hold_clone(lease, found, slot, wanted);
        }
        let start = clock::precise_ns();
        let set = retarget(self.library, &mut lease, &mut wanted.work.target, &body.edits().disabled);
        let Ok(set) = set else {
            // The exec may now hold parts of both. A new exec, made of the template, takes its place.
            gate::record_if_started(|shim| shim.count(counters::FALLBACK_INSTANTIATES, 1));
            lease = self.instead_of(lease, slot, wanted)?;
            // It holds all but which nodes are off.
            if let Err(status) = retarget(self.library, &mut lease, &mut wanted.work.target, &body.edits().disabled) {
                self.destroy_when_completed(lease);
                return Err(status);
            }
            return Ok(lease);
        };
        if !new {
            let took = clock::precise_ns() - start;
            gate::record_if_started(|shim| {
                records::handles::retargeted(shim, slot, took, set, found == Origin::Parked)
            });
        }
        Ok(lease)
    }

    /// Makes an exec of a class of clones hold the clone in `work`.
    ///
    /// # Errors
    /// The library's status, from instantiate.
    fn hold_clone(
        &'static self,
        mut lease: Lease,
        found: Origin,
        slot: u32,
        wanted: &mut WantedExec,
    ) -> Result<Lease, Status> {
        let clone = wanted.work.clone.clone().ok_or(INVALID)?;
        if found == Origin::New || lease.body().holds.as_ptr() == Arc::as_ptr(&clone) {
            return Ok(lease);
        }
        if self.is_worn(&mut lease) {
            return self.instead_of(lease, slot, wanted);
        }
        let start = clock::precise_ns();
        let status = {
            let _alone = clone.alone();
            self.library.calls.update(lease.real().exec(), clone.graph)
        };
        if status != SUCCESS {
            // The exec may now hold parts of both graphs. A new exec, made of the clone, takes its place.
            gate::record_if_started(|shim| shim.count(counters::FALLBACK_INSTANTIATES, 1));
            return self.instead_of(lease, slot, wanted);
        }
        lease.body().updates += 1;
        lease.body().holds = Arc::downgrade(&clone);
        let (took, nodes) = (clock::precise_ns() - start, wanted.class.shape.nodes() as u64);
        gate::record_if_started(|shim| records::handles::retargeted(shim, slot, took, nodes, found == Origin::Parked));
        Ok(lease)
    }

    /// Makes a new exec of the content or the clone in `work`, instead of one that is no longer usable.
    fn instead_of(&'static self, lease: Lease, slot: u32, wanted: &mut WantedExec) -> Result<Lease, Status> {
        self.destroy_when_completed(lease);
        let lease = self.make_over_bound(wanted)?;
        gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        Ok(lease)
    }

    /// Returns true if an exec was updated so often that a new one has to take its place.
    fn is_worn(&'static self, lease: &mut Lease) -> bool {
        lease.body().updates >= self.library.calls.behaviour().most_updates
    }

    /// Replaces a worn exec before the program updates its handle, if its last launch has completed. The new exec is
    /// made of the handle's clone. If none can be made, the worn exec stays.
    pub(crate) fn replace_worn(&'static self, index: u32, handle: &Handle, body: &Body) {
        let wears = self.library.calls.behaviour().most_updates != u32::MAX
            && !body.apart().owned
            && body.apart().template.is_some();
        let Some(class) = body.class.as_ref().filter(|_| wears) else { return };
        let Some(mut lease) = handle.lease() else { return };
        if !self.is_worn(&mut lease) {
            return;
        }
        let _within = self.library.relax_in(context_of(body));
        // The lease ends before `_within`.
        let mut lease = lease;
        if !self.completion.known_completed(&mut lease) {
            return;
        }
        let made = self.handles.contain(|| {
            self.sources.with_work(|work| {
                work.clone = body.apart().template.clone();
                self.make_over_bound(&mut WantedExec { class, work })
            })
        });
        match made {
            Ok(Ok(made)) => {
                self.evict_and_destroy(lease, true);
                let slot = handle.slot.load(Relaxed);
                gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
                self.handles.publish(made, index, handle);
            }
            Ok(Err(status)) => self.library.calls.unheard(status),
            Err(_) => {}
        }
    }
}
