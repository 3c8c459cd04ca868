//! Records the end of a context and of everything that belongs to it.

use crate::process::clock;
use crate::process::lock::lock;
use crate::records::{allocations, execs, graph_memory, shared, streams};
use crate::shim::Shim;
use crate::stranded;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::EventKind;
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Records that a context is gone, with everything that belonged to it.
pub(super) fn ended(shim: &Shim, handle: u64, context: ContextRef) {
    // 0: the context found no room in the table, so its contents cannot be told from those of other such contexts.
    if let Some(slot) = u32::from(context).checked_sub(1) {
        allocations::end_with(shim, context);
        stranded::context_ended(shim, context);
        shared::end_with(shim, context);
        graph_memory::end_with(shim, context);
        execs::end_of(shim, context);
        streams::end_of(shim, context);
        shim.ledger.contexts.field(slot, offset_of!(ContextSlot, gone_ns)).store(clock::now_ns(), Relaxed);
    }
    shim.event_at(EventKind::ContextDestroyed, (handle, 0), 0, context);
}

/// Records the end of a green context. What was made in it lives as long as the primary context.
pub(super) fn green_ended(shim: &Shim, device: Device, handle: u64, context: ContextRef) {
    if allocations::any_of(shim, context) || streams::any_of(shim, context) || execs::any_of(shim, context) {
        lock(&shim.registry.contexts.left).push((device, handle, context));
    } else {
        ended(shim, handle, context);
    }
}

/// Records the end of a device's primary context, and of what was left of green ones.
pub(super) fn greens_ended(shim: &Shim, device: Device) {
    let mut left = lock(&shim.registry.contexts.left);
    let gone: Vec<_> = left.extract_if(.., |(on, ..)| *on == device).collect();
    drop(left);
    gone.into_iter().for_each(|(_, handle, context)| ended(shim, handle, context));
}
