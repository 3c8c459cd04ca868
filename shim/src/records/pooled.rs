//! Records of a context's memory under the pool: limits, spilled allocations, refusals. The pool itself writes the
//! records of blocks.

use super::contexts;
use crate::call::Call;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Share of the device for idle blocks if the user sets no bound.
const SHARE: u64 = 4;
/// The share if the device's memory is the machine's: a quarter of what all programs share would be too much.
const INTEGRATED_SHARE: u64 = 16;

/// Records how much this process may take of a context's device. 0: no limit.
pub(crate) fn limit(shim: &Shim, context: ContextRef, limit: u64) {
    contexts::set(shim, context, offset_of!(ContextSlot, limit_bytes), limit);
}

/// Adds (or subtracts) live bytes outside the device's memory to a context.
pub(crate) fn spilled_bytes(shim: &Shim, context: ContextRef, bytes: i64) {
    if let Some(field) = contexts::field(shim, context, offset_of!(ContextSlot, spilled_bytes)) {
        field.fetch_add(bytes as u64, Relaxed);
    }
}

/// Records an allocation placed outside the device's memory.
pub(crate) fn spilled(shim: &'static Shim, call: &Call, bytes: u64) {
    shim.count(counters::SPILLS, 1);
    shim.count(counters::SPILLED_BYTES, bytes);
    let stack = shim.site(call.site(), Made::Stream);
    let context = contexts::current(shim, call.vendor);
    spilled_bytes(shim, context, bytes as i64);
    shim.event_at(EventKind::Spilled, (bytes, 0), stack, context);
}

/// Records an allocation that exceeded the limit, of this process or of its group.
pub(crate) fn limit_refused(shim: &Shim, bytes: u64, of_group: bool) {
    shim.count(counters::LIMIT_REFUSALS, 1);
    shim.event_at(EventKind::LimitRefused, (bytes, of_group.into()), 0, 0);
}

fn live_in(shim: &Shim, context: ContextRef) -> u64 {
    contexts::field(shim, context, offset_of!(ContextSlot, live_bytes)).map_or(0, |live| live.load(Relaxed))
}

/// Returns the live device bytes of all contexts on a device.
pub(crate) fn live_on(shim: &Shim, vendor: Vendor, device: i32) -> u64 {
    let on = contexts::on(shim, vendor, device);
    on.into_iter().map(|context| live_in(shim, context)).sum()
}

/// Returns the idle bytes that a context may keep if the user sets no bound.
pub(crate) fn device_share(shim: &Shim, context: ContextRef) -> u64 {
    let share = |slot: ContextSlot| slot.total_bytes / if slot.integrated == 0 { SHARE } else { INTEGRATED_SHARE };
    contexts::slot(shim, context).map_or(0, share)
}
