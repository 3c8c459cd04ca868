//! Records streams, and the captures in progress on them.

use super::contexts;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::{clock, map};
use crate::records::registry::sites::Made;
use crate::records::registry::streams::Entry;
use crate::shim::Shim;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering::*;

/// Records a new stream.
pub(crate) fn created(shim: &'static Shim, call: &Call, handle: u64, flags: u32, priority: i32) {
    let context = contexts::current(shim, call.vendor);
    let stack = shim.site(call.site(), Made::Stream);
    let stream = StreamSlot {
        stack,
        handle,
        time_ns: clock::now_ns(),
        flags,
        priority,
        tid: shim.tid(),
        context,
        ..Default::default()
    };
    let slot = shim.place(&shim.ledger.streams, stream);
    let entry = Entry { slot, context, capturing: false };
    if let Ok(Some(old)) = map::put(&shim.registry.streams.map, (call.vendor, handle), entry, true) {
        end(shim, old);
    }
}

/// Returns true if a stream belongs to a context. `None` if that is unknown.
pub(crate) fn is_of(shim: &Shim, vendor: Vendor, stream: u64, context: u64) -> Option<bool> {
    let context = contexts::known(shim, vendor, context)?;
    Some(shim.registry.streams.map.get(&(vendor, stream)).is_some_and(|entry| entry.context == context))
}

/// Removes a stream before its real destroy: another thread may get the handle at once.
pub(crate) fn going(shim: &Shim, vendor: Vendor, handle: u64) -> Option<Entry> {
    shim.registry.streams.map.remove(&(vendor, handle)).map(|(_, entry)| entry)
}

/// Records that the real destroy returned.
pub(crate) fn destroyed(shim: &Shim, vendor: Vendor, handle: u64, entry: Entry, status: Status) {
    if status != 0
        && let dashmap::Entry::Vacant(place) = shim.registry.streams.map.entry((vendor, handle))
    {
        place.insert(entry);
        return;
    }
    end(shim, entry);
}

fn end(shim: &Shim, entry: Entry) {
    shim.registry.streams.end_capture(&entry);
    shim.ledger.streams.clear_if_any(entry.slot);
}

/// Returns the known streams of a context.
pub(crate) fn of(shim: &Shim, vendor: Vendor, context: u64) -> Vec<u64> {
    let context = contexts::known(shim, vendor, context);
    let streams = shim.registry.streams.map.iter();
    streams.filter(|its| context == Some(its.context)).map(|its| its.key().1).collect()
}

/// True if a context has streams.
pub(crate) fn any_of(shim: &Shim, context: ContextRef) -> bool {
    shim.registry.streams.map.iter().any(|its| its.context == context)
}

/// Ends all streams of a context.
pub(crate) fn end_of(shim: &Shim, context: ContextRef) {
    shim.registry.streams.map.retain(|_, entry| {
        if entry.context == context {
            end(shim, *entry);
        }
        entry.context != context
    });
}

/// Returns the key of a capturing stream. Per-thread default streams have the same handle in all threads, and no other
/// default stream can capture.
fn capture_key(shim: &Shim, stream: u64) -> u64 {
    const PER_THREAD: u64 = 2;
    match stream {
        0 | PER_THREAD => PER_THREAD | u64::from(shim.tid()) << 32,
        stream => stream,
    }
}

/// Records the beginning of a capture.
pub(crate) fn capture_begun(shim: &Shim, vendor: Vendor, stream: u64, mode: i32) {
    let stream = capture_key(shim, stream);
    shim.count(counters::CAPTURES_BEGUN, 1);
    shim.registry.streams.capturing.fetch_add(1, Relaxed);
    // Default streams, and streams made before gpumem was loaded, are known only while they capture.
    let unlisted = Entry { slot: NO_SLOT, context: 0, capturing: true };
    let mut entry = shim.registry.streams.map.entry((vendor, stream)).or_insert(unlisted);
    entry.capturing = true;
    if entry.slot != NO_SLOT {
        let field = |offset| shim.ledger.streams.field(entry.slot, offset);
        field(offset_of!(StreamSlot, capture_mode)).store(u64::from(mode as u32), Relaxed);
        field(offset_of!(StreamSlot, captures)).fetch_add(1, Relaxed);
        field(offset_of!(StreamSlot, capturing_ns)).store(clock::now_ns(), Relaxed);
    }
}

/// Records the end of a capture, with a graph or with an error. An error without a capture in progress is the program's
/// mistake and not the end of a capture.
pub(crate) fn capture_ended(shim: &Shim, vendor: Vendor, stream: u64, graph: u64, status: Status) {
    let stream = capture_key(shim, stream);
    let streams = &shim.registry.streams;
    let Some(entry) = streams.map.get(&(vendor, stream)).map(|entry| *entry).filter(|entry| entry.capturing) else {
        return;
    };
    streams.end_capture(&entry);
    if entry.slot == NO_SLOT {
        streams.map.remove(&(vendor, stream));
    } else {
        if let Some(mut entry) = streams.map.get_mut(&(vendor, stream)) {
            entry.capturing = false;
        }
        shim.ledger.streams.field(entry.slot, offset_of!(StreamSlot, capturing_ns)).store(0, Relaxed);
    }
    if graph != 0 {
        return shim.count(counters::CAPTURES_ENDED, 1);
    }
    shim.count(counters::CAPTURES_FAILED, 1);
    let failure = EventSlot { context: entry.context, a: stream, code: status as i32, ..Default::default() };
    shim.event(EventKind::CaptureFailed, failure);
}
