//! Records allocations and frees.

use super::blocks::{count_ended, count_made};
use super::{contexts, grouped};
use crate::backend::memory::UNIT;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::{clock, threads};
use crate::records::registry::allocations::Entry;
use crate::records::registry::live::Class;
use crate::records::registry::sites::Made;
use crate::shim::Shim;
use crate::trace;
use gpumem_abi::types::{OUT_OF_MEMORY, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Space, Vendor};
use gpumem_wire::layout::*;
use gpumem_wire::location::{Location, Tally};
use gpumem_wire::trace::Action;
use std::sync::atomic::Ordering::Relaxed;

/// An allocation as the program requested it, and where its memory lies. Limits, sums and views read this, and the
/// record is made from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub kind: AllocKind,
    /// The class under which its address or handle is looked up.
    pub class: Class,
    pub location: Location,
    pub bytes: u64,
    /// The stream in whose order it is made, else 0.
    pub stream: u64,
    /// A further value that depends on the kind: pool, physical handle, pitch, flags, handle of the graph.
    pub extra: u64,
}

impl Request {
    /// Creates a request for memory of a kind, at its usual location.
    pub(crate) const fn new(kind: AllocKind, bytes: u64) -> Self {
        use AllocKind::*;
        let class = match kind {
            Device | Pitch | Managed | HostPinned | Async | ExternalMapping => Class::Address,
            HostRegistered => Class::Registered,
            VmmPhysical | VmmImport | Multicast => Class::Vmm,
            VmmMapping => Class::Mapping,
            VmmReservation => Class::Reservation,
            Array | MipmappedArray => Class::Array,
            IpcImport => Class::Import,
            ExternalMemory => Class::External,
            GraphNode | GraphLeft => Class::Node,
            Code => Class::Module,
            Event => Class::Event,
            Reported => Class::Reported(0),
        };
        Self { kind, class, location: Location::usual(kind), bytes, stream: 0, extra: 0 }
    }

    /// Returns the sum that its bytes belong to. A node's bytes are device memory only while the graph runs, and the
    /// driver counts them.
    pub(crate) const fn space(&self) -> Space {
        match self.kind {
            AllocKind::GraphNode | AllocKind::Code | AllocKind::Event => Space::None,
            _ => self.location.space(),
        }
    }

    /// Returns the counters for it.
    fn tally(&self) -> Tally {
        Tally::of(self.kind, self.space())
    }
}

/// Records an allocation that succeeded. `addr` is its pointer or handle.
pub(crate) fn made(shim: &'static Shim, call: &Call, request: &Request, addr: u64) {
    let Request { kind, class, location, bytes, stream, extra } = *request;
    if addr == 0 {
        return;
    }
    let (context, location) = match class {
        Class::Library => (0, location),
        _ => belongs_to(shim, call.vendor, location),
    };
    let stream = if stream == 0 { 0 } else { shim.registry.streams.reference(call.vendor, stream) };
    let time_ns = clock::now_ns();
    let slot = AllocSlot { addr, bytes, time_ns, extra, stream, context, ..Default::default() };
    add(shim, call, class, AllocSlot { kind: kind as u8, location: location.word(), ..slot }, kind);
    if location.is_device() {
        // The driver keeps a pool for stream-ordered memory.
        let ordered = kind == AllocKind::Async;
        if ordered && !shim.registry.stream_ordered.load(Relaxed) {
            shim.registry.stream_ordered.store(true, Relaxed);
        }
        let taken = match bytes {
            _ if ordered => 0,
            ..=UNIT => bytes,
            _ => bytes.checked_next_multiple_of(UNIT).unwrap_or(bytes),
        };
        contexts::charge(shim, call.vendor, context, bytes, taken, time_ns);
        grouped::took(shim, context, bytes);
    }
}

/// Returns the context that memory belongs to, and the location as seen from there. Memory of another device belongs to
/// a context of that device; to none if the process has none there.
#[inline]
pub(super) fn belongs_to(shim: &'static Shim, vendor: Vendor, location: Location) -> (ContextRef, Location) {
    let context = contexts::current(shim, vendor);
    match location {
        Location::Device(device) => {
            let here = contexts::slot(shim, context).is_some_and(|slot| slot.device == device.into());
            let there = if here { Some(context) } else { contexts::on(shim, vendor, device.into()).first().copied() };
            there.map_or((0, location), |context| (context, Location::OwnDevice))
        }
        _ => (context, location),
    }
}

/// Records a part that the program reported.
pub(crate) fn reported(shim: &Shim, call: &Call, pool: StrRef, addr: u64, bytes: u64) {
    let kind = AllocKind::Reported;
    let slot = AllocSlot {
        addr,
        bytes,
        time_ns: clock::now_ns(),
        extra: pool.into(),
        location: Location::usual(kind).word(),
        kind: kind as u8,
        ..Default::default()
    };
    add(shim, call, Class::Reported(pool), slot, kind);
}

#[inline]
fn add(shim: &Shim, call: &Call, class: Class, slot: AllocSlot, kind: AllocKind) {
    let (entry, stack) = list(shim, call, slot, kind);
    let AllocSlot { addr, bytes, stream, .. } = slot;
    if let Some(old) = shim.registry.allocations.insert(class, addr, entry) {
        // The address was given out again without a free that we saw, so the old allocation has ended.
        shim.count(counters::UNKNOWN_FREES, 1);
        if trace::on() {
            trace(shim, Action::Free, old.tally(), addr, old.bytes, 0, 0);
        }
        ended(shim, old);
    }
    if trace::on() {
        trace(shim, Action::Alloc, entry.tally(), addr, bytes, stream, stack);
    }
}

/// Writes and counts a record; returns its entry for lookups, and its call stack.
#[inline]
pub(super) fn list(shim: &Shim, call: &Call, slot: AllocSlot, kind: AllocKind) -> (Entry, StackRef) {
    let AllocSlot { bytes, context, .. } = slot;
    let space = slot.space();
    // Bytes count once: those of addresses, mappings and parts are counted with the memory behind them.
    let stack = shim.site(call.site(), if space == Space::None { Made::Stream } else { Made::Memory(bytes) });
    let flags = if shim.registry.streams.capturing() > 0 { ALLOC_IN_CAPTURE } else { 0 };
    let (serial, tid, tag) = (shim.registry.serial(), shim.tid(), shim.tag());
    let place = shim.place(&shim.ledger.allocs, AllocSlot { stack, serial, tid, tag, flags, ..slot });
    let entry = Entry { slot: place, kind, space, context, bytes };
    count_made(shim, entry.tally(), bytes);
    (entry, stack)
}

/// Writes an allocation or a free to the trace, unless it takes no memory of its own. `stream` is a reference to the
/// stream's record.
#[cold]
pub(crate) fn trace(
    shim: &Shim,
    action: Action,
    tally: Tally,
    addr: u64,
    bytes: u64,
    stream: StreamRef,
    stack: StackRef,
) {
    if tally.space != Space::None {
        let stream = stream.checked_sub(1).and_then(|slot| shim.ledger.streams.read(slot.into()));
        shim.trace(action, tally.kind, addr, bytes, stream.map_or(0, |stream| stream.handle), stack);
    }
}

/// Records an allocation that failed with a driver error. Returns its stack.
pub(crate) fn failed(shim: &'static Shim, call: &Call, request: &Request, status: Status) -> StackRef {
    let Request { kind, bytes, .. } = *request;
    shim.count(request.tally().alloc_failures(), 1);
    if status == OUT_OF_MEMORY {
        shim.count(counters::OUT_OF_MEMORY, 1);
    }
    let stack = shim.site(call.site(), Made::Stream);
    if trace::on() {
        trace(shim, Action::Failed, request.tally(), 0, bytes, 0, stack);
    }
    let failure = EventSlot { a: bytes, b: kind as u64, code: status as i32, stack, ..Default::default() };
    shim.event(EventKind::AllocFailed, failure);
    stack
}

/// Removes an allocation before its real free: another thread may get the address at once.
#[inline]
pub(crate) fn freeing(shim: &Shim, class: Class, addr: u64) -> Option<Entry> {
    let entry = shim.registry.allocations.remove(class, addr);
    if trace::on()
        && let Some(entry) = entry
    {
        trace(shim, Action::Free, entry.tally(), addr, entry.bytes, 0, 0);
    }
    entry
}

/// Records a real free that succeeded.
#[inline]
pub(crate) fn freed(shim: &Shim, entry: Option<Entry>, addr: u64) {
    match entry {
        Some(entry) => ended(shim, entry),
        None if addr != 0 => shim.count(counters::UNKNOWN_FREES, 1),
        None => {}
    }
}

/// Records a real free that failed: the allocation is still live.
pub(crate) fn free_failed(shim: &Shim, class: Class, addr: u64, entry: Option<Entry>, status: Status) {
    shim.count(counters::FREE_FAILURES, 1);
    if let Some(entry) = entry {
        if trace::on() {
            trace(shim, Action::Unfreed, entry.tally(), addr, entry.bytes, 0, 0);
        }
        restore(shim, class, addr, entry);
    }
    shim.event(EventKind::FreeFailed, EventSlot { a: addr, code: status as i32, ..Default::default() });
}

/// Puts back the entry that was removed for a failed free. If the address was given out meanwhile, another thread's
/// free of it has succeeded, and the entry has ended.
pub(crate) fn restore(shim: &Shim, class: Class, addr: u64, entry: Entry) {
    if shim.registry.allocations.insert_if_absent(class, addr, entry).is_err() {
        ended(shim, entry);
    }
}

/// Writes to the trace the end of an allocation that no call frees by its address. The record still has the address.
#[cold]
fn trace_end(shim: &Shim, entry: Entry) {
    if let Some(slot) = shim.ledger.allocs.read(entry.slot) {
        trace(shim, Action::Free, entry.tally(), slot.addr, entry.bytes, 0, 0);
    }
}

/// Ends an allocation's records.
pub(crate) fn ended(shim: &Shim, entry: Entry) {
    if trace::on() && matches!(entry.kind, AllocKind::VmmPhysical | AllocKind::GraphLeft) {
        trace_end(shim, entry);
    }
    shim.ledger.allocs.clear_if_any(entry.slot);
    count_ended(shim, entry.tally(), entry.bytes);
    if entry.space == Space::Device {
        // The group is told first. The record of an ended context without live memory may soon serve another context.
        grouped::gave(shim, entry.context, entry.bytes);
        contexts::add_live(shim, entry.context, -(entry.bytes as i64));
    }
}

/// Changes an allocation's bytes and further value.
pub(super) fn changed(shim: &Shim, class: Class, addr: u64, change: impl FnOnce(&mut AllocSlot)) {
    let Some(entry) = shim.registry.allocations.remove(class, addr) else { return };
    let mut bytes = entry.bytes;
    if let Some(mut slot) = shim.ledger.allocs.read(entry.slot) {
        change(&mut slot);
        bytes = slot.bytes;
        shim.count(entry.tally().alloc_bytes(), bytes.wrapping_sub(entry.bytes));
        shim.ledger.allocs.write(entry.slot, slot);
    }
    restore(shim, class, addr, Entry { bytes, ..entry });
}

/// Marks an allocation as shown to other processes: the one that begins at `addr`, or at the address that `begins`
/// returns. Returns the index of its record, [`NO_SLOT`] if it has none.
pub(crate) fn exported(shim: &Shim, addr: u64, begins: impl FnOnce() -> Option<u64>) -> u32 {
    let at = |addr| shim.registry.allocations.get(Class::Address, addr).map(|entry| (addr, entry));
    at(addr).or_else(|| at(begins()?)).map_or(NO_SLOT, |(base, entry)| {
        shown_at(shim, entry.slot, base);
        entry.slot
    })
}

/// As [`exported`], by the index of its record.
pub(crate) fn shown_at(shim: &Shim, slot: u32, addr: u64) {
    mark(shim, slot, addr, ALLOC_EXPORTED);
}

/// Sets a flag in an allocation's record.
pub(super) fn mark(shim: &Shim, slot: u32, addr: u64, flag: u8) {
    if let Some(of) = shim.ledger.allocs.read(slot).filter(|of| of.addr == addr) {
        shim.ledger.allocs.write(slot, AllocSlot { flags: of.flags | flag, ..of });
    }
}

/// Turns the record of a graph's node into one of the memory that a launch left: it is device memory from now on, like
/// any other.
pub(super) fn leave(shim: &Shim, entry: Entry) -> Entry {
    let left = Entry { kind: AllocKind::GraphLeft, space: Space::Device, ..entry };
    let Entry { slot, context, bytes, .. } = left;
    count_ended(shim, entry.tally(), bytes);
    count_made(shim, left.tally(), bytes);
    contexts::add_live(shim, context, bytes as i64);
    grouped::took(shim, context, bytes);
    if let Some(of) = shim.ledger.allocs.read(slot) {
        let location = Location::usual(left.kind).word();
        shim.ledger.allocs.write(slot, AllocSlot { kind: left.kind as u8, location, ..of });
        shim.ledger.allocated_at(threads::shard(), of.stack, bytes);
        if trace::on() {
            trace(shim, Action::Alloc, left.tally(), of.addr, bytes, of.stream, of.stack);
        }
    }
    left
}

/// Changes a node's graph to another handle of the program.
pub(super) fn set_graph(shim: &Shim, slot: u32, graph: u64) {
    if let Some(of) = shim.ledger.allocs.read(slot) {
        shim.ledger.allocs.write(slot, AllocSlot { extra: graph, ..of });
    }
}

/// Ends everything that belongs to a context.
pub(crate) fn end_with(shim: &Shim, context: ContextRef) {
    for entry in shim.registry.allocations.drain(|entry| entry.ends_with(context)) {
        shim.count(counters::ENDED_WITH_CONTEXT, 1);
        if trace::on() && entry.kind != AllocKind::VmmPhysical {
            trace_end(shim, entry);
        }
        ended(shim, entry);
    }
}

/// True if anything belongs to the context.
pub(crate) fn any_of(shim: &Shim, context: ContextRef) -> bool {
    shim.registry.allocations.any(|entry| entry.ends_with(context))
}
