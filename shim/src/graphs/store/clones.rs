//! Handles whose source is a private clone of their graph, and execs whose launches the library does not order. An exec
//! of this kind is taken from nobody while one of its launches is pending.

use super::ExecStore;
use super::choose::Origin;
use crate::gate;
use crate::graphs::class::Class;
use crate::graphs::handle::{Body, Handle, INVALID, context_of};
use crate::graphs::real::Lease;
use crate::graphs::sources::{Sources, Work};
use crate::process::clock;
use crate::records;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl ExecStore {
    /// Makes an exec of a class of clones hold the clone in `work`.
    ///
    /// # Errors
    /// The library's, from instantiate.
    pub(super) fn hold_clone(
        &'static self,
        sources: &Sources,
        mut lease: Lease,
        found: Origin,
        class: &Arc<Class>,
        slot: u32,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        let clone = work.clone.clone().ok_or(INVALID)?;
        if found == Origin::New || lease.body().holds.as_ptr() == Arc::as_ptr(&clone) {
            return Ok(lease);
        }
        if self.is_worn(&mut lease) {
            return self.instead_of(sources, lease, class, slot, work);
        }
        let start = clock::precise_ns();
        let status = {
            let _alone = clone.alone();
            self.library.calls.update(lease.real().exec(), clone.graph)
        };
        if status != SUCCESS {
            // The exec may hold parts of both graphs now. A new exec, made of the clone, takes its place.
            gate::record_if_started(|shim| shim.count(counters::FALLBACK_INSTANTIATES, 1));
            return self.instead_of(sources, lease, class, slot, work);
        }
        lease.body().updates += 1;
        lease.body().holds = Arc::downgrade(&clone);
        let (took, nodes) = (clock::precise_ns() - start, class.shape.nodes() as u64);
        gate::record_if_started(|shim| records::handles::retargeted(shim, slot, took, nodes, found == Origin::Parked));
        Ok(lease)
    }

    /// A new exec of the clone in `work`, instead of one that nobody can use any more.
    fn instead_of(
        &'static self,
        sources: &Sources,
        lease: Lease,
        class: &Arc<Class>,
        slot: u32,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        self.destroy_when_completed(lease);
        let lease = self.make_over_bound(sources, class, work)?;
        gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        Ok(lease)
    }

    /// Whether an exec was updated so often that a new one is to take its place.
    fn is_worn(&'static self, lease: &mut Lease) -> bool {
        lease.body().updates >= self.library.calls.behaviour().most_updates
    }

    /// The program is about to update a handle. If the handle's exec is worn and its last launch has completed, a new
    /// exec, made of the handle's clone, takes its place. If none can be made, the worn exec stays.
    pub(crate) fn replace_worn(&'static self, sources: &Sources, index: u32, handle: &Handle, body: &Body) {
        let wears = self.library.calls.behaviour().most_updates != u32::MAX
            && !body.apart().owned
            && body.apart().template.is_some();
        let Some(class) = body.class.as_ref().filter(|_| wears) else { return };
        let Some(mut lease) = handle.lease() else { return };
        if !self.is_worn(&mut lease) {
            return;
        }
        let _within = self.library.relax_in(context_of(body));
        // The lease ends within.
        let mut lease = lease;
        if !self.completion.known_completed(&mut lease) {
            return;
        }
        let made = self.handles.contain(|| {
            sources.with_work(|work| {
                work.clone = body.apart().template.clone();
                self.make_over_bound(sources, class, work)
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
