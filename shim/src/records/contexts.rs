//! Contexts: the memory that belongs to each, how much of it is live, and the device's used bytes.

use crate::backend::{self, memory};
use crate::process::clock;
use crate::process::threads::{self, LastContext};
use crate::records::registry::contexts::Known;
use crate::shim::Shim;
use gpumem_abi::types::Device;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, PoolState, Taken, Vendor};
use gpumem_wire::layout::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Minimum time between queries of a device's free memory.
const LOOK_EVERY_NS: u64 = 250_000_000;

/// True if this thread's context is known without asking: the process has one context, this thread has had it, and has
/// not changed it since.
#[inline]
pub(crate) fn has_the_only_context(shim: &Shim) -> bool {
    threads::local(|local| is_the_only_context_of(shim, local))
}

/// As [`has_the_only_context`], for a caller that has looked up its thread.
#[inline(always)]
pub(crate) fn is_the_only_context_of(shim: &Shim, local: &threads::Local) -> bool {
    local.only_context.get() == shim.registry.contexts.generation.load(Relaxed)
}

/// Notes that this thread was just found to have a context, if there is no other context.
pub(crate) fn found(shim: &Shim) {
    let contexts = &shim.registry.contexts;
    let generation = contexts.generation.load(Relaxed);
    if contexts.count.load(Relaxed) == 1 {
        threads::local(|local| local.only_context.set(generation));
    }
}

/// Returns the calling thread's context, 0 if there is none. A new context is listed.
#[inline(always)]
pub(crate) fn current(shim: &'static Shim, vendor: Vendor) -> ContextRef {
    let Some(handle) = backend::of(vendor).current_context() else { return 0 };
    let generation = shim.registry.contexts.generation.load(Relaxed);
    let last = threads::local(|local| local.context.get());
    if (last.vendor, last.handle, last.generation) == (vendor as u8, handle, generation) {
        return last.context;
    }
    let context = of_handle(shim, vendor, handle, None, false);
    threads::local(|local| local.context.set(LastContext { vendor: vendor as u8, handle, generation, context }));
    context
}

/// Returns the context that the calling thread was last seen in, or one of the existing contexts. 0 if there is none.
pub(crate) fn last(shim: &Shim, vendor: Vendor) -> ContextRef {
    let contexts = &shim.registry.contexts;
    let generation = contexts.generation.load(Relaxed);
    let last = threads::local(|local| local.context.get());
    match (last.vendor, last.generation) == (vendor as u8, generation) {
        true => last.context,
        false => contexts.map.iter().find(|entry| entry.key().0 == vendor).map_or(0, |entry| entry.context),
    }
}

/// Returns the context of a handle. A new one is listed with this device, or with the current one.
pub(crate) fn of_handle(
    shim: &'static Shim,
    vendor: Vendor,
    handle: u64,
    device: Option<Device>,
    primary: bool,
) -> ContextRef {
    let contexts = &shim.registry.contexts;
    if let Some(known) = contexts.map.get(&(vendor, handle)) {
        return known.context;
    }
    let backend = backend::of(vendor);
    let Some(device) = device.or_else(|| backend.current_device()) else { return 0 };
    let info = backend.device_info(device);
    let used = used_now(shim, vendor, handle);
    // Several threads may come here at once. The first one lists the context.
    let new = || {
        contexts.count.fetch_add(1, Relaxed);
        contexts.generation.fetch_add(2, Relaxed);
        let Some(slot) = shim.ledger.contexts.take().or_else(|| gone_context(shim)) else {
            shim.count(counters::DROPPED_RECORDS, 1);
            return 0;
        };
        let now = clock::now_ns();
        shim.ledger.contexts.write(
            slot,
            ContextSlot {
                name: shim.ledger.texts.intern(&info.name),
                handle,
                time_ns: now,
                total_bytes: info.total_bytes,
                baseline_used: used,
                used_bytes: used,
                used_ns: if used == 0 { 0 } else { now },
                uuid: info.uuid,
                device: device as u32,
                vendor: vendor as u8,
                primary: u8::from(primary),
                integrated: u8::from(info.integrated),
                ..Default::default()
            },
        );
        (slot + 1) as ContextRef
    };
    let entry = contexts.map.entry((vendor, handle));
    let context = entry.or_insert_with(|| Known { context: new(), device, primary }).context;
    if context != 0 {
        if vendor == Vendor::Hip {
            // Asked before interception counts as complete, because from then on the shim may do more than record.
            shim.ask_hip();
            // HIP needs no initialisation call; its doors are the only ones there are.
            shim.initialised();
        }
        shim.event_at(EventKind::ContextCreated, (handle, device as u64), 0, context);
        shim.context_exists();
    }
    context
}

/// Returns the used bytes on a context's device before anything was recorded in the context. 0 if unknown.
fn used_now(shim: &Shim, vendor: Vendor, handle: u64) -> u64 {
    // HIP's answers become the thread's last error.
    if vendor != Vendor::Cuda || shim.registry.streams.capturing() > 0 || shim.has_exited() {
        return 0;
    }
    let said = memory::calls(vendor).within(handle, || backend::of(vendor).memory_info());
    said.map_or(0, |(free, total)| total.saturating_sub(free))
}

/// Returns the slot of an ended context that no live memory refers to. Ended contexts are kept only while there is
/// room. The search continues after the last one found, so it is short.
#[cold]
fn gone_context(shim: &Shim) -> Option<u32> {
    let table = &shim.ledger.contexts;
    let handed_out = table.handed_out() as u32;
    let slot = (0..handed_out).find_map(|_| {
        let slot = shim.registry.contexts.cursor.fetch_add(1, Relaxed) % handed_out;
        let gone = table.field(slot, offset_of!(ContextSlot, gone_ns));
        let since = gone.load(Relaxed);
        let empty = table.field(slot, offset_of!(ContextSlot, live_bytes)).load(Relaxed) == 0;
        // The thread that sets it to 0 gets the slot.
        let ours = since != 0 && empty && gone.compare_exchange(since, 0, Relaxed, Relaxed).is_ok();
        ours.then_some(slot)
    })?;
    for unsealed in [
        offset_of!(ContextSlot, used_bytes),
        offset_of!(ContextSlot, used_ns),
        offset_of!(ContextSlot, not_ours),
        offset_of!(ContextSlot, peak_bytes),
        offset_of!(ContextSlot, idle_peak_bytes),
        offset_of!(ContextSlot, limit_bytes),
        offset_of!(ContextSlot, pool_state),
        offset_of!(ContextSlot, local_per_thread),
        offset_of!(ContextSlot, local_kernel),
    ]
    .into_iter()
    .chain(Taken::ALL.iter().map(|&what| ContextSlot::taken_at(what)))
    {
        table.field(slot, unsealed).store(0, Relaxed);
    }
    Some(slot)
}

/// Returns what is known of a context.
fn entry(shim: &Shim, vendor: Vendor, handle: u64) -> Option<Known> {
    shim.registry.contexts.map.get(&(vendor, handle)).map(|known| *known)
}

/// Returns the reference of a known context.
pub(crate) fn known(shim: &Shim, vendor: Vendor, handle: u64) -> Option<ContextRef> {
    entry(shim, vendor, handle).map(|known| known.context)
}

/// Removes a context before its real end: another thread may get the handle at once.
pub(crate) fn going(shim: &Shim, vendor: Vendor, handle: u64) -> Option<Known> {
    let (_, known) = shim.registry.contexts.map.remove(&(vendor, handle))?;
    shim.registry.contexts.count.fetch_sub(1, Relaxed);
    shim.registry.contexts.generation.fetch_add(2, Relaxed);
    shim.registry.contexts.looked_in.store(0, Relaxed);
    Some(known)
}

/// Restores a context whose real end failed.
pub(crate) fn stays(shim: &Shim, vendor: Vendor, handle: u64, known: Known) {
    shim.registry.contexts.map.entry((vendor, handle)).or_insert(known);
    shim.registry.contexts.count.fetch_add(1, Relaxed);
    shim.registry.contexts.generation.fetch_add(2, Relaxed);
}

/// Returns the handles of a device's primary context, if it was met.
pub(crate) fn primaries(shim: &Shim, vendor: Vendor, device: Device) -> Vec<u64> {
    let all = all(shim, vendor).into_iter();
    all.filter(|(_, known)| known.primary && known.device == device).map(|(handle, _)| handle).collect()
}

/// True if a context is known to be the primary context of a device.
pub(crate) fn is_primary(shim: &Shim, vendor: Vendor, handle: u64) -> bool {
    entry(shim, vendor, handle).is_some_and(|known| known.primary)
}

/// Returns a context's record; `None` if it found no room.
pub(crate) fn slot(shim: &Shim, context: ContextRef) -> Option<ContextSlot> {
    shim.ledger.contexts.read(u32::from(context).checked_sub(1)?)
}

/// Removes a device's primary context from the known ones.
pub(crate) fn primary_going(shim: &Shim, vendor: Vendor, device: Device) -> Vec<(u64, Known)> {
    let primary = primaries(shim, vendor, device).into_iter();
    primary.filter_map(|handle| Some((handle, going(shim, vendor, handle)?))).collect()
}

/// Records the call stack at which the program made a context.
pub(crate) fn made_at(shim: &Shim, context: ContextRef, stack: StackRef) {
    set(shim, context, offset_of!(ContextSlot, stack), stack.into());
}

pub(crate) fn field(shim: &Shim, context: ContextRef, offset: usize) -> Option<&AtomicU64> {
    Some(shim.ledger.contexts.field(u32::from(context).checked_sub(1)?, offset))
}

/// Sets a field of a context's record, if it has one.
pub(crate) fn set(shim: &Shim, context: ContextRef, offset: usize, value: u64) {
    if let Some(field) = field(shim, context, offset) {
        field.store(value, Relaxed);
    }
}

/// Returns the step of a peak. While a peak doubles, its step rises eight times by one, however small its increments.
fn step(peak: u64) -> u64 {
    /// Number of leading binary digits of the peak that count.
    const DIGITS: u32 = 4;
    let rest = peak.checked_ilog2().unwrap_or(0).saturating_sub(DIGITS - 1);
    (u64::from(rest) << (DIGITS - 1)) + (peak >> rest)
}

/// Adds live device bytes to a context. `taken`: bytes that the driver has just given for them; 0 if the driver had
/// given them before, or gives them from its own pool.
#[inline]
pub(crate) fn charge(shim: &'static Shim, vendor: Vendor, context: ContextRef, bytes: u64, taken: u64, time_ns: u64) {
    let Some(live) = field(shim, context, offset_of!(ContextSlot, live_bytes)) else { return };
    let now = live.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    let peak = field(shim, context, offset_of!(ContextSlot, peak_bytes));
    if let Some(peak) = peak.filter(|peak| peak.load(Relaxed) < now) {
        let before = peak.fetch_max(now, Relaxed);
        let known = shim.registry.contexts.looked_in.load(Relaxed) == context;
        if step(now) > step(before) {
            shim.event_at(EventKind::PeakGrew, (now, 0), 0, context);
            // The peak has risen much since the last look, so the numbers of that look are too low.
            if !known || shim.registry.keeps_unseen() {
                return look(shim, vendor, context, time_ns);
            }
        }
        // A query takes as long as a tenth of an allocation, so known growth is added without one.
        let grown = now.saturating_sub(before).min(bytes);
        if let Some(used) = field(shim, context, offset_of!(ContextSlot, used_bytes)).filter(|_| known && taken != 0) {
            used.fetch_add(grown + taken.saturating_sub(bytes), Relaxed);
        }
    }
    look_again(shim, vendor, context, time_ns);
}

/// Adds to a context device bytes that the driver took earlier, or subtracts them, without a call of the driver.
/// [`charge`] is for bytes that the driver has just taken.
pub(crate) fn add_live(shim: &Shim, context: ContextRef, bytes: i64) {
    let Some(live) = field(shim, context, offset_of!(ContextSlot, live_bytes)).filter(|_| bytes != 0) else { return };
    let now = live.fetch_add(bytes as u64, Relaxed).wrapping_add_signed(bytes);
    if let Some(peak) = field(shim, context, offset_of!(ContextSlot, peak_bytes)).filter(|_| bytes > 0) {
        peak.fetch_max(now, Relaxed);
    }
}

/// Asks the device for its used bytes, but never during a capture.
#[cold]
fn look(shim: &'static Shim, vendor: Vendor, context: ContextRef, now: u64) {
    // And not once the process has ended its work, because the driver may be gone.
    if shim.registry.streams.capturing() > 0 || shim.has_exited() {
        return;
    }
    let backend = backend::of(vendor);
    if let Some((free, total)) = backend.memory_info() {
        device_said(shim, context, free, total, now);
    }
    // The queries below are made only if the program uses the kind of memory they are about.
    if !shim.registry.keeps_unseen() {
        return;
    }
    let Some(device) = backend.current_device() else { return };
    let keep = |offset, bytes: Option<u64>| bytes.into_iter().for_each(|bytes| set(shim, context, offset, bytes));
    if shim.registry.stream_ordered.load(Relaxed) {
        keep(offset_of!(ContextSlot, pool_bytes), backend.kept_by_pool(device));
    }
    if shim.registry.memory_nodes.load(Relaxed) {
        keep(offset_of!(ContextSlot, graph_bytes), backend.kept_for_graphs(device));
    }
}

/// Looks again after a call that may have changed much, unless the last look was just now.
#[inline]
pub(crate) fn look_again(shim: &'static Shim, vendor: Vendor, context: ContextRef, now: u64) {
    if now.wrapping_sub(shim.registry.contexts.looked_ns.load(Relaxed)) >= LOOK_EVERY_NS {
        look(shim, vendor, context, now);
    }
}

/// Uses the program's own query of free memory as a look, now and then.
#[inline]
pub(crate) fn program_asked(shim: &'static Shim, vendor: Vendor, free: u64, total: u64) {
    let looked = shim.registry.contexts.looked_ns.load(Relaxed);
    // Not even the clock is read each time: a program may ask in a loop.
    if looked != 0 && threads::local(|local| local.records.get()) % 8 != 0 {
        return;
    }
    let now = clock::now_ns();
    if now.wrapping_sub(looked) >= LOOK_EVERY_NS / 4 {
        device_said(shim, current(shim, vendor), free, total, now);
    }
}

/// Returns the handles of the other contexts on the same device.
pub(crate) fn others(shim: &Shim, vendor: Vendor, handle: u64) -> Vec<u64> {
    // The map's own length takes each of the map's locks, which costs as much as the rest of a free that waits for
    // nothing.
    if shim.registry.contexts.count.load(Relaxed) < 2 {
        return Vec::new();
    }
    let here = entry(shim, vendor, handle).map(|known| known.device);
    let other = |&(other, known): &(u64, Known)| other != handle && Some(known.device) == here;
    all(shim, vendor).into_iter().filter(other).map(|(other, _)| other).collect()
}

/// Returns all contexts of a vendor.
pub(crate) fn all(shim: &Shim, vendor: Vendor) -> Vec<(u64, Known)> {
    let of_vendor = shim.registry.contexts.map.iter().filter(|entry| entry.key().0 == vendor);
    of_vendor.map(|entry| (entry.key().1, *entry.value())).collect()
}

/// True if there are at most this many contexts.
pub(crate) fn are_all(shim: &Shim, these: usize) -> bool {
    shim.registry.contexts.count.load(Relaxed) as usize <= these
}

/// Returns the contexts on a device.
pub(crate) fn on(shim: &Shim, vendor: Vendor, device: Device) -> Vec<ContextRef> {
    let all = all(shim, vendor).into_iter().map(|(_, known)| known);
    all.filter(|known| known.device == device).map(|known| known.context).collect()
}

/// Returns a vendor's devices that have contexts.
pub(crate) fn devices(shim: &Shim, vendor: Vendor) -> Vec<Device> {
    let mut devices: Vec<Device> = all(shim, vendor).into_iter().map(|(_, known)| known.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// Returns what the process is known to hold of a device.
pub(crate) fn held(shim: &Shim, vendor: Vendor, device: Device) -> u64 {
    let of = |context| slot(shim, context).unwrap_or_default().held_bytes();
    on(shim, vendor, device).into_iter().map(of).fold(0, u64::wrapping_add)
}

/// Notes how many of the device's `used` bytes the process did not hold, plus one. Returns the note.
pub(crate) fn note_held(shim: &Shim, context: ContextRef, used: u64, held: u64) -> u64 {
    let not_ours = used.saturating_sub(held) + 1;
    set(shim, context, offset_of!(ContextSlot, not_ours), not_ours);
    not_ours
}

/// Removes that note if there was another look since the one of this time.
pub(crate) fn forget_note_if_asked_since(shim: &Shim, context: ContextRef, look_ns: u64) {
    if field(shim, context, offset_of!(ContextSlot, used_ns)).is_some_and(|now| now.load(Relaxed) != look_ns) {
        set(shim, context, offset_of!(ContextSlot, not_ours), 0);
    }
}

/// Uses the pool's own query of a device as a look. The pool has just told its idle bytes.
pub(crate) fn pool_asked(shim: &Shim, vendor: Vendor, context: ContextRef, device: Device, free: u64, total: u64) {
    device_said(shim, context, free, total, clock::now_ns());
    note_held(shim, context, total.saturating_sub(free), held(shim, vendor, device));
}

#[cold]
fn device_said(shim: &Shim, context: ContextRef, free: u64, total: u64, now: u64) {
    shim.registry.contexts.looked_ns.store(now, Relaxed);
    shim.registry.contexts.looked_in.store(context, Relaxed);
    used_is(shim, context, free, total, now);
}

/// Sets the used bytes of a context's device.
pub(crate) fn used_is(shim: &Shim, context: ContextRef, free: u64, total: u64, now: u64) {
    set(shim, context, offset_of!(ContextSlot, used_bytes), total.saturating_sub(free));
    set(shim, context, offset_of!(ContextSlot, used_ns), now);
    set(shim, context, offset_of!(ContextSlot, not_ours), 0);
    let Some(slot) = slot(shim, context) else { return };
    // The pool tells its idle bytes once a second. Without a pool the process holds what is live.
    let no_pool = !shim.settings.pool || !matches!(slot.pool_state(), Some(PoolState::On | PoolState::Unused));
    if let Some(vendor) = Vendor::from_u8(slot.vendor).filter(|_| no_pool) {
        note_held(shim, context, slot.used_bytes, held(shim, vendor, slot.device as Device));
    }
}
