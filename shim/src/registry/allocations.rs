//! Live allocations.

use super::live::Class;
use super::sites::Made;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::shim::Shim;
use crate::trace;
use gpumem_abi::types::{OUT_OF_MEMORY, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, EventKind, Space};
use gpumem_wire::layout::*;
use gpumem_wire::trace::Action;

/// What a free needs to know of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    slot: u32,
    pub kind: AllocKind,
    pub context: ContextRef,
    pub bytes: u64,
}

impl Entry {
    /// Whether it ends with a context. Virtual memory and what is mapped there belong to the device.
    fn ends_with(&self, context: ContextRef) -> bool {
        use AllocKind::*;
        let stays = matches!(self.kind, VmmPhysical | VmmMapping | VmmReservation | VmmImport | Multicast | Reported);
        self.context == context && !stays
    }
}

impl Shim {
    /// Records an allocation that succeeded. `addr` is its pointer or handle.
    pub fn allocated(
        &'static self,
        call: &Call,
        class: Class,
        kind: AllocKind,
        addr: u64,
        bytes: u64,
        stream: u32,
        extra: u64,
    ) {
        if addr == 0 {
            return;
        }
        let context = self.current_context(call.vendor);
        let time_ns = clock::now_ns();
        self.add(
            call,
            class,
            AllocSlot { addr, bytes, time_ns, extra, stream, context, kind: kind as u8, ..Default::default() },
            kind,
        );
        if kind.space() == Space::Device {
            self.charge(call.vendor, context, bytes, time_ns);
        }
    }

    /// Records a part that the program reported.
    pub fn reported(&self, call: &Call, pool: StrRef, addr: u64, bytes: u64) {
        let kind = AllocKind::Reported;
        let slot = AllocSlot {
            addr,
            bytes,
            time_ns: clock::now_ns(),
            extra: pool.into(),
            kind: kind as u8,
            ..Default::default()
        };
        self.add(call, Class::Reported(pool), slot, kind);
    }

    #[inline]
    fn add(&self, call: &Call, class: Class, slot: AllocSlot, kind: AllocKind) {
        let AllocSlot { addr, bytes, context, stream, .. } = slot;
        let stack = self.site(call.site(), Made::Memory(bytes));
        let flags = if self.registry.streams.capturing() > 0 { ALLOC_IN_CAPTURE } else { 0 };
        let (serial, tid, tag) = (self.registry.serial(), self.tid(), self.tag());
        let place = self.place(&self.ledger.allocs, AllocSlot { stack, serial, tid, tag, flags, ..slot });
        self.count(counters::allocs(kind), 1);
        self.count(counters::alloc_bytes(kind), bytes);
        let entry = Entry { slot: place, kind, context, bytes };
        if let Some(old) = self.registry.allocations.insert(class, addr, entry) {
            // The address was given out again without a free that we saw: the old one is over.
            self.count(counters::UNKNOWN_FREES, 1);
            if trace::on() {
                self.trace(Action::Free, old.kind, addr, old.bytes, 0, 0);
            }
            self.ended(old);
        }
        if trace::on() {
            self.trace(Action::Alloc, kind, addr, bytes, stream, stack);
        }
    }

    /// Notes an allocation or a free in the trace, unless it takes no memory of its own. `stream` is a
    /// reference to the stream's record.
    #[cold]
    pub fn trace(&self, action: Action, kind: AllocKind, addr: u64, bytes: u64, stream: u32, stack: StackRef) {
        if kind.space() != Space::None {
            let stream = stream.checked_sub(1).and_then(|slot| self.ledger.streams.read(slot));
            trace::note(action, kind, addr, bytes, stream.map_or(0, |stream| stream.handle), self.tid(), stack);
        }
    }

    /// An allocation failed with an error of the driver.
    pub fn allocation_failed(&'static self, call: &Call, kind: AllocKind, bytes: u64, status: Status) {
        self.count(counters::alloc_failures(kind), 1);
        let stack = self.site(call.site(), Made::Stream);
        if trace::on() {
            self.trace(Action::Failed, kind, 0, bytes, 0, stack);
        }
        self.event(EventKind::AllocFailed, |event| {
            event.a = bytes;
            event.b = kind as u64;
            event.code = status as i32;
            event.stack = stack;
        });
        if status == OUT_OF_MEMORY && kind.space() == Space::Device {
            self.above.ran_out(self, call, kind, bytes, stack);
        }
    }

    /// Takes an allocation out before its real free: another thread may get the address at once.
    #[inline]
    pub fn freeing(&self, class: Class, addr: u64) -> Option<Entry> {
        let entry = self.registry.allocations.remove(class, addr);
        if class == Class::Address {
            // What this free gives back is the driver's at once, whatever the answer.
            self.stranded_freed(addr);
            if self.settings.freed_in_graph
                && let Some(entry) = entry
            {
                self.above.look_for_memory_in_graphs(self, addr, entry.bytes, entry.slot);
            }
        }
        if trace::on()
            && let Some(entry) = entry
        {
            self.trace(Action::Free, entry.kind, addr, entry.bytes, 0, 0);
        }
        entry
    }

    /// The real free succeeded.
    #[inline]
    pub fn freed(&self, entry: Option<Entry>, addr: u64) {
        match entry {
            Some(entry) => self.ended(entry),
            None if addr != 0 => self.count(counters::UNKNOWN_FREES, 1),
            None => {}
        }
    }

    /// The real free failed: the allocation is as live as before.
    pub fn free_failed(&self, class: Class, addr: u64, entry: Option<Entry>, status: Status) {
        self.count(counters::FREE_FAILURES, 1);
        if let Some(entry) = entry {
            if trace::on() {
                self.trace(Action::Unfreed, entry.kind, addr, entry.bytes, 0, 0);
            }
            self.restore(class, addr, entry);
        }
        self.event(EventKind::FreeFailed, |event| {
            event.a = addr;
            event.code = status as i32;
        });
    }

    /// Puts back what was taken out for a free that failed. If the address was given out meanwhile,
    /// another thread's free of it has succeeded, and the entry is over.
    pub fn restore(&self, class: Class, addr: u64, entry: Entry) {
        if self.registry.allocations.insert_if_absent(class, addr, entry).is_err() {
            self.ended(entry);
        }
    }

    /// Notes the end of what no call frees by its address: the record still has it.
    #[cold]
    fn trace_end(&self, entry: Entry) {
        if entry.slot != NO_SLOT
            && let Some(slot) = self.ledger.allocs.read(entry.slot)
        {
            self.trace(Action::Free, entry.kind, slot.addr, entry.bytes, 0, 0);
        }
    }

    /// An allocation is over.
    pub fn ended(&self, entry: Entry) {
        if trace::on() && entry.kind == AllocKind::VmmPhysical {
            self.trace_end(entry);
        }
        self.ledger.allocs.clear_if_any(entry.slot);
        self.count(counters::frees(entry.kind), 1);
        self.count(counters::free_bytes(entry.kind), entry.bytes);
        if entry.kind.space() == Space::Device {
            self.discharge(entry.context, entry.bytes);
        }
    }

    /// Marks an allocation as exported to other processes.
    pub fn exported(&self, addr: u64) {
        if let Some(entry) = self.registry.allocations.get(Class::Address, addr).filter(|entry| entry.slot != NO_SLOT)
            && let Some(slot) = self.ledger.allocs.read(entry.slot).filter(|slot| slot.addr == addr)
        {
            self.ledger.allocs.write(entry.slot, AllocSlot { flags: slot.flags | ALLOC_EXPORTED, ..slot });
        }
    }

    /// What belongs to a context ends with it.
    pub fn end_allocations_of(&self, context: ContextRef) {
        for entry in self.registry.allocations.drain(|entry| entry.ends_with(context)) {
            self.count(counters::ENDED_WITH_CONTEXT, 1);
            if trace::on() && entry.kind != AllocKind::VmmPhysical {
                self.trace_end(entry);
            }
            self.ended(entry);
        }
        self.stranded_context_ended(context);
    }

    /// Whether there are any.
    pub fn has_allocations_of(&self, context: ContextRef) -> bool {
        self.registry.allocations.any(|entry| entry.ends_with(context))
    }
}
