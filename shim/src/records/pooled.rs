//! Records about a context's memory under the pool: what may be taken, what was placed elsewhere, what was refused. The
//! pool itself writes the records of blocks.

use super::contexts;
use crate::call::Call;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Share of the device that idle blocks may take where the user sets no bound.
const SHARE: u64 = 4;
/// The same where the device's memory is the machine's: a quarter of what all programs share would be too much.
const INTEGRATED_SHARE: u64 = 16;

/// The driver refused a free, so the block is as live as before.
pub(crate) fn free_failed(shim: &Shim, addr: u64, status: Status) {
    shim.count(counters::FREE_FAILURES, 1);
    shim.event(EventKind::FreeFailed, |event| {
        event.a = addr;
        event.code = status as i32;
    });
}

/// What this process may take of a context's device. 0: no limit.
pub(crate) fn limit(shim: &Shim, context: ContextRef, limit: u64) {
    if let Some(field) = contexts::field(shim, context, offset_of!(ContextSlot, limit_bytes)) {
        field.store(limit, Relaxed);
    }
}

/// Live bytes outside of the device's memory were added to a context, or taken away.
pub(crate) fn spilled_bytes(shim: &Shim, context: ContextRef, bytes: i64) {
    if let Some(field) = contexts::field(shim, context, offset_of!(ContextSlot, spilled_bytes)) {
        field.fetch_add(bytes as u64, Relaxed);
    }
}

/// An allocation was placed outside of the device's memory.
pub(crate) fn spilled(shim: &'static Shim, call: &Call, bytes: u64) {
    shim.count(counters::SPILLS, 1);
    shim.count(counters::SPILLED_BYTES, bytes);
    let stack = shim.site(call.site(), Made::Stream);
    let context = contexts::current(shim, call.vendor);
    spilled_bytes(shim, context, bytes as i64);
    shim.event(EventKind::Spilled, |event| {
        event.a = bytes;
        event.context = context;
        event.stack = stack;
    });
}

/// An allocation did not fit under the quota, of this process or of its group.
pub(crate) fn limit_refused(shim: &Shim, bytes: u64, of_group: bool) {
    shim.count(counters::LIMIT_REFUSALS, 1);
    shim.event(EventKind::LimitRefused, |event| {
        event.a = bytes;
        event.b = of_group.into();
    });
}

fn live_in(shim: &Shim, context: ContextRef) -> u64 {
    contexts::field(shim, context, offset_of!(ContextSlot, live_bytes)).map_or(0, |live| live.load(Relaxed))
}

/// Live device bytes of all contexts on a device.
pub(crate) fn live_on(shim: &Shim, vendor: Vendor, device: i32) -> u64 {
    let on = contexts::on(shim, vendor, device);
    on.into_iter().map(|context| live_in(shim, context)).sum()
}

/// Idle bytes that a context may keep where the user sets no bound.
pub(crate) fn device_share(shim: &Shim, context: ContextRef) -> u64 {
    let share = |slot: ContextSlot| slot.total_bytes / if slot.integrated == 0 { SHARE } else { INTEGRATED_SHARE };
    contexts::slot(shim, context).map_or(0, share)
}
