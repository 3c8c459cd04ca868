//! A handle gets an exec that holds what it means: an exec is chosen for it, and retargeted node by node.

use super::ExecStore;
use super::choose::Origin;
use crate::gate;
use crate::graphs::handle::{Body, Handle, INVALID, context_of};
use crate::graphs::real::{Lease, StreamKey};
use crate::graphs::retarget::retarget;
use crate::graphs::sources::{Sources, Work};
use crate::process::clock;
use crate::records;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;

impl ExecStore {
    /// As [`Self::hold`], with panics contained.
    pub(crate) fn held(
        &'static self,
        sources: &Sources,
        handle: &Handle,
        body: &Body,
        stream_key: StreamKey,
    ) -> Result<Lease, Status> {
        self.handles.contain(|| sources.with_work(|work| self.hold(sources, handle, body, stream_key, work)))?
    }

    /// The same for a launch. Natively the launch would have had its exec.
    pub(crate) fn missed(
        &'static self,
        sources: &Sources,
        handle: &Handle,
        body: &Body,
        stream_key: StreamKey,
    ) -> Result<Lease, Status> {
        let _entered = self.library.enter(context_of(body));
        let start = clock::precise_ns();
        let lease = self.held(sources, handle, body, stream_key)?;
        let took = clock::precise_ns() - start;
        gate::record_if_started(|shim| records::handles::missed(shim, handle.slot.load(Relaxed), took));
        Ok(lease)
    }

    /// A real exec that holds what the handle means, leased and not yet given to it.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn hold(
        &'static self,
        sources: &Sources,
        handle: &Handle,
        body: &Body,
        stream_key: StreamKey,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        let class = body.class.clone().ok_or(INVALID)?;
        let slot = handle.slot.load(Relaxed);
        if !class.alone && !work.unfold(body) {
            return Err(INVALID);
        }
        work.clone = body.apart().template.clone();
        let comes_back = handle.lost_its.load(Relaxed);
        let (mut lease, found) = self.acquire(sources, &class, stream_key, comes_back, work)?;
        let new = found == Origin::New;
        if new {
            gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        }
        if class.alone {
            return self.hold_clone(sources, lease, found, &class, slot, work);
        }
        let start = clock::precise_ns();
        let set = match retarget(self.library, &mut lease, &mut work.target, &body.edits().disabled) {
            Ok(set) => set,
            Err(_) => {
                // The exec may hold parts of both now. A new exec, made of the template, takes its place.
                self.destroy_when_completed(lease);
                gate::record_if_started(|shim| shim.count(counters::FALLBACK_INSTANTIATES, 1));
                lease = self.make_of(&class, body, work)?;
                gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
                return Ok(lease);
            }
        };
        if !new {
            let took = clock::precise_ns() - start;
            gate::record_if_started(|shim| {
                records::handles::retargeted(shim, slot, took, set, found == Origin::Parked)
            });
        }
        Ok(lease)
    }
}
