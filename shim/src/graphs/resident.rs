//! The exec that a handle has: how the handle gets it and loses it, and what the handle's next launch waits for then.

use super::Cache;
use super::handle::{Handle, Pending};
use super::real::{Lease, NOWHERE, StreamKey};
use crate::gate;
use crate::records;
use std::sync::atomic::Ordering::*;

impl Cache {
    /// Gives an exec to a handle, and tells the records if it had none.
    pub(super) fn publish(&self, lease: Lease, index: u32, handle: &Handle) {
        if handle.resident().is_none() {
            let slot = handle.slot.load(Relaxed);
            gate::record_if_started(|shim| records::handles::resident(shim, slot));
        }
        handle.gets(&lease, index);
    }

    /// Takes an exec from its handle.
    pub(super) fn evict(&self, lease: &mut Lease, pending: bool, stream_key: StreamKey) {
        let real = lease.real();
        let handle = real.handle_index().and_then(|index| self.execs.get(index));
        if let Some(handle) = handle {
            let slot = handle.slot.load(Relaxed);
            gate::record_if_started(|shim| records::handles::left(shim, slot));
            if let Some(event) = lease.body().event.take_if(|_| pending) {
                self.set_pending(handle, Pending { event, stream_key });
            }
            // The handle's exec is cleared last: the next launch, or the handle's end, that sees it cleared also sees what
            // was stored above.
            handle.loses(lease);
        }
        real.marked.store(false, Relaxed);
        real.stream_key.store(if pending { stream_key } else { NOWHERE }, Relaxed);
    }

    /// The next launch of a handle has to wait for this one.
    pub(super) fn set_pending(&self, handle: &Handle, pending: Pending) {
        if let Some(old) = self.pendings.put(handle, pending) {
            self.library.calls.drop_event(old.event);
        }
    }
}
