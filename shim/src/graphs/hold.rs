//! A handle gets an exec that holds what it means: an exec is chosen for it, and retargeted node by node.

use super::choose::Origin;
use super::handle::{Body, Handle, INVALID, context_of};
use super::real::{Lease, StreamKey};
use super::{Cache, Work};
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::records;
use crate::vendor::graphs::SetCount;
use crate::vendor::source::Records;
use gpumem_abi::types::{SUCCESS, Status};
use gpumem_wire::counters;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl Cache {
    /// As [`Cache::hold`], with panics contained.
    pub(crate) fn held(&self, handle: &Handle, body: &Body, stream_key: StreamKey) -> Result<Lease, Status> {
        self.handles.contain(|| self.sources.with_work(|work| self.hold(handle, body, stream_key, work)))?
    }

    /// The same for a launch. Natively the launch would have had its exec.
    pub(super) fn missed(&self, handle: &Handle, body: &Body, stream_key: StreamKey) -> Result<Lease, Status> {
        let _entered = self.library.enter(context_of(body));
        let start = clock::precise_ns();
        let lease = self.held(handle, body, stream_key)?;
        let took = clock::precise_ns() - start;
        gate::record_if_started(|shim| records::handles::missed(shim, handle.slot.load(Relaxed), took));
        Ok(lease)
    }

    /// A real exec that holds what the handle means, leased and not yet given to it.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn hold(
        &self,
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
        let (mut lease, found) = self.acquire(&class, stream_key, comes_back, work)?;
        let new = found == Origin::New;
        if new {
            gate::record_if_started(|shim| records::handles::instantiated(shim, slot));
        }
        if class.alone {
            return self.hold_clone(lease, found, &class, slot, work);
        }
        let start = clock::precise_ns();
        let set = match self.retarget(&mut lease, &mut work.target, &body.edits().disabled) {
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

    /// Makes an exec hold what is in `target`; `target` gets what the exec held before. The answer is how many nodes
    /// were set.
    ///
    /// # Errors
    /// The library's. The exec then holds parts of both.
    pub(crate) fn retarget(&self, lease: &mut Lease, target: &mut Records, disabled: &[u32]) -> Result<u64, Status> {
        let real = lease.real();
        let exec = real.exec();
        let body = lease.body();
        let (Some(class), Some(template)) = (&body.class, &body.template) else { return Err(INVALID) };
        let check = |status| if status == SUCCESS { Ok(()) } else { Err(status) };
        let _alone = template.alone();
        let SetCount { nodes, mut reshaped } =
            self.library.calls.set(Some(exec), template.nodes(class), &body.content, target)?;
        let node = |index: u32| template.nodes.get(index as usize).copied().ok_or(INVALID);
        for &index in body.disabled.iter().filter(|index| !disabled.contains(index)) {
            check(self.library.calls.set_enabled(exec, node(index)?, true))?;
            reshaped += 1;
        }
        for &index in disabled.iter().filter(|index| !body.disabled.contains(index)) {
            check(self.library.calls.set_enabled(exec, node(index)?, false))?;
            reshaped += 1;
        }
        body.disabled = disabled.to_vec();
        std::mem::swap(&mut body.content, target);
        // Another handle had the exec and never launched it. An upload would save the device that time, but what is
        // uploaded may run the code of another kernel (docs/decisions/drivers.md).
        let early = !body.launched && self.library.calls.behaviour().set_early_is_slow && nodes + reshaped > 0;
        real.degrades(if early { body.content.len() as u64 } else { reshaped }, body.content.len());
        Ok(nodes)
    }

    /// Makes an exec that could not take all of `target` hold its own content again.
    ///
    /// # Errors
    /// The library's. The exec then holds parts of both.
    pub(crate) fn restore(&self, lease: &mut Lease, target: &Records) -> Result<(), Status> {
        let (context, exec) = (lease.real().context.load(Relaxed), lease.real().exec());
        let body = lease.body();
        let (Some(class), Some(template)) = (&body.class, &body.template) else { return Err(INVALID) };
        let _alone = template.alone();
        let _entered = self.library.enter(context);
        self.library.calls.set(Some(exec), template.nodes(class), target, &body.content).map(drop)
    }

    /// An exec of a graph that is built for this handle alone. No setter is needed.
    pub(super) fn make_of(
        &self,
        class: &Arc<super::class::Class>,
        body: &Body,
        work: &mut Work,
    ) -> Result<Lease, Status> {
        if !work.unfold(body) {
            return Err(INVALID);
        }
        let template = self.build_template(class, work)?;
        let exec = self.exec_from(&template, class)?;
        let bytes = self.estimate(&class.shape);
        self.reserve(bytes, true);
        let mut target = lock(&template.content).clone().unwrap_or_default();
        let mut lease = self.keep(class, template, exec, target.clone(), bytes);
        match self.retarget(&mut lease, &mut target, &body.edits().disabled) {
            Ok(_) => Ok(lease),
            Err(status) => {
                self.destroy_when_completed(lease);
                Err(status)
            }
        }
    }
}
