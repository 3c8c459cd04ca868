//! Handles whose source is a private clone of their graph, and execs whose launches the library does not order. An exec
//! of this kind is taken from nobody while one of its launches is pending.

use super::class::{Class, Template};
use super::handle::{Body, Handle, context_of};
use super::real::Lease;
use super::store::choose::Origin;
use super::{Cache, Work};
use crate::gate;
use crate::process::clock;
use crate::records;
use crate::vendor::graphs::Read;
use crate::vendor::source::Packed;
use gpumem_abi::types::{Graph, SUCCESS, Status};
use gpumem_wire::counters;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Weak};

impl Cache {
    /// Makes an exec of a class of clones hold the clone in `work`.
    ///
    /// # Errors
    /// The library's, from instantiate.
    pub(super) fn hold_clone(
        &'static self,
        mut lease: Lease,
        found: Origin,
        class: &Arc<Class>,
        slot: u32,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        let clone = work.clone.clone().ok_or(super::handle::INVALID)?;
        if found == Origin::New || lease.body().holds.as_ptr() == Arc::as_ptr(&clone) {
            return Ok(lease);
        }
        if self.is_worn(&mut lease) {
            return self.instead_of(lease, class, slot, work);
        }
        let start = clock::precise_ns();
        let status = {
            let _alone = clone.alone();
            self.library.calls.update(lease.real().exec(), clone.graph)
        };
        if status != SUCCESS {
            // The exec may hold parts of both graphs now. A new exec, made of the clone, takes its place.
            gate::record_if_started(|shim| shim.count(counters::FALLBACK_INSTANTIATES, 1));
            return self.instead_of(lease, class, slot, work);
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
        lease: Lease,
        class: &Arc<Class>,
        slot: u32,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        self.store.destroy_when_completed(lease);
        let lease = self.store.make_over_bound(&self.sources, class, work)?;
        gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        Ok(lease)
    }

    /// Whether an exec was updated so often that a new one is to take its place.
    fn is_worn(&'static self, lease: &mut Lease) -> bool {
        lease.body().updates >= self.library.calls.behaviour().most_updates
    }

    /// The program is about to update a handle. If the handle's exec is worn and its last launch has completed, a new
    /// exec, made of the handle's clone, takes its place. If none can be made, the worn exec stays.
    pub(super) fn replace_worn(&'static self, index: u32, handle: &Handle, body: &Body) {
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
        if !self.store.completion().known_completed(&mut lease) {
            return;
        }
        let made = self.handles().contain(|| {
            self.sources.with_work(|work| {
                work.clone = body.apart().template.clone();
                self.store.make_over_bound(&self.sources, class, work)
            })
        });
        match made {
            Ok(Ok(made)) => {
                self.store.evict_and_destroy(lease, true);
                let slot = handle.slot.load(Relaxed);
                gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
                self.handles().publish(made, index, handle);
            }
            Ok(Err(status)) => self.library.calls.unheard(status),
            Err(_) => {}
        }
    }

    /// The library has updated an exec from a graph. Whether a clone of that graph stands for the handle now.
    pub(super) fn clone_follows(&'static self, lease: &mut Lease, body: &mut Body, graph: Graph) -> bool {
        if body.apart().owned || !self.library.calls.behaviour().clones_follow {
            return false;
        }
        let relaxed = self.library.relax();
        let Some(clone) = self.sources.with_work(|work| self.same_clone(body, graph, work)) else { return false };
        drop(relaxed);
        lease.body().holds = Arc::downgrade(&clone);
        body.apart_mut().template = Some(clone);
        true
    }

    /// A clone of a graph that has the handle's shape.
    fn same_clone(&'static self, body: &Body, graph: Graph, work: &mut Work) -> Option<Arc<Template>> {
        let class = body.class.as_ref().filter(|class| class.alone && !self.sources.holds_user_objects(graph))?;
        work.read = Weak::new();
        let read = self.library.calls.read(graph, &mut work.reading).ok()?;
        if read == Read::Whole || Packed::new(&work.reading.shape, &mut work.scratch) != class.shape.key {
            return None;
        }
        Template::clone_of(graph, self.library.calls).ok().map(Arc::new)
    }
}
