//! Real execs are destroyed, or marked to be destroyed once they have completed.

use super::ExecStore;
use super::bounds::to_go;
use super::needed::Need;
use crate::gate;
use crate::graphs::handle::{Body, Handle};
use crate::graphs::real::{Lease, NOWHERE};
use crate::records;
use gpumem_wire::kinds::Pinned;
use std::sync::atomic::Ordering::*;

impl ExecStore {
    /// Destroys a real exec. Pending launches of it go on.
    pub(super) fn end(&self, lease: Lease, evicted: bool) {
        self.end_in(lease, evicted, false);
    }

    /// Marks an exec that would be destroyed but whose launch may be pending. Instantiating waits for destroyed execs
    /// whose launches are pending, and the shim instantiates at launches, too, which must not wait. So the exec stays
    /// parked and is destroyed once it is seen to have completed. If the class is shared, another handle may use it
    /// before that.
    pub(super) fn mark_to_destroy(&self, lease: &Lease, alone: bool) {
        if alone && !lease.real().to_destroy.swap(true, Relaxed) {
            self.to_destroy.fetch_add(1, Relaxed);
            to_go();
        }
    }

    /// As [`Self::end`]. If the exec's context is gone already, no call to the library is made.
    ///
    /// Until the library is done with it, the exec is leased and listed in its context. A thread that ends the context
    /// finds it there and waits ([`Self::end_context`]).
    pub(super) fn end_in(&self, mut lease: Lease, evicted: bool, gone: bool) {
        let real = lease.real();
        if real.to_destroy.swap(false, Relaxed) {
            self.to_destroy.fetch_sub(1, Relaxed);
        }
        let body = std::mem::take(lease.body());
        // An exec that stays with its handle for good is not counted.
        let counted = real.class.swap(0, Relaxed) != 0;
        self.handles.lose(&lease);
        real.stream_key.store(NOWHERE, Relaxed);
        let bytes = real.take_bytes();
        if gone || lease.is_abandoned() {
            // Its events and its template's graph ended with the context.
            body.template.iter().for_each(|template| template.lose_graph());
        } else {
            {
                let _alone = body.template.as_ref().map(|template| template.alone());
                self.library.calls.destroy_exec(real.exec());
            }
            body.event.into_iter().chain(body.earlier).for_each(|event| self.library.calls.drop_event(event));
            drop(body.template);
        }
        let context = real.context.load(Relaxed);
        lease.set_unused();
        drop(lease);
        self.execs.give_place(real);
        if counted {
            self.release(bytes);
            gate::record_if_started(|shim| {
                records::handles::real_ended(shim, self.library.vendor, context, bytes, evicted)
            });
        }
    }

    /// From now on an exec stays with this handle: no other exec may stand in for what it holds.
    pub(crate) fn own(&self, lease: Lease, index: u32, handle: &Handle, body: &mut Body, why: Pinned) {
        let real = lease.real();
        handle.gets(&lease, index);
        if !body.apart().owned {
            let before = Need::of(body);
            body.apart_mut().owned = true;
            self.need_is(before, Need::default());
            body.source = None;
            body.take_changes();
            real.class.store(0, Relaxed);
            let (slot, bytes, context) = (handle.slot.load(Relaxed), real.take_bytes(), real.context.load(Relaxed));
            self.release(bytes);
            gate::record_if_started(|shim| {
                records::handles::real_ended(shim, self.library.vendor, context, bytes, false);
                records::handles::pinned(shim, slot, why);
            });
        }
    }
}
