//! Streams, and the captures in progress on them.

use super::sites::Made;
use crate::call::Call;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::shim::Shim;
use dashmap::DashMap;
use gpumem_abi::types::Status;
use gpumem_wire::counters;
use gpumem_wire::kinds::{EventKind, Vendor};
use gpumem_wire::layout::{ContextRef, StreamSlot};
use rustc_hash::FxBuildHasher;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// What is needed to find a stream's record.
#[derive(Clone, Copy)]
pub struct Entry {
    slot: u32,
    context: ContextRef,
    capturing: bool,
}

/// Streams by vendor and handle.
pub struct Streams {
    map: DashMap<(Vendor, u64), Entry, FxBuildHasher>,
    capturing: AtomicU32,
}

impl Streams {
    pub fn new() -> Self {
        Self { map: DashMap::with_hasher(FxBuildHasher), capturing: AtomicU32::new(0) }
    }

    /// Captures in progress in the process.
    #[inline]
    pub fn capturing(&self) -> u32 {
        self.capturing.load(Relaxed)
    }

    /// Reference of a stream for [`gpumem_wire::layout::AllocSlot::stream`]; 0 for default streams.
    pub fn reference(&self, vendor: Vendor, handle: u64) -> u32 {
        self.map.get(&(vendor, handle)).map_or(0, |entry| entry.slot.wrapping_add(1))
    }

    /// Ends the capture of an entry, if there is one.
    fn end_capture(&self, entry: &Entry) {
        if entry.capturing {
            let _ = self.capturing.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        }
    }
}

impl Shim {
    /// A stream came to be.
    pub fn stream_created(&'static self, call: &Call, handle: u64, flags: u32, priority: i32) {
        let context = self.current_context(call.vendor);
        let stack = self.site(call.site(), Made::Stream);
        let stream = StreamSlot {
            stack,
            handle,
            time_ns: clock::now_ns(),
            flags,
            priority,
            tid: self.tid(),
            context,
            ..Default::default()
        };
        let slot = self.place(&self.ledger.streams, stream);
        let old = self.registry.streams.map.insert((call.vendor, handle), Entry { slot, context, capturing: false });
        if let Some(old) = old {
            self.end_stream(old);
        }
    }

    /// Whether a stream is known to be of a context; `None` if that is not known itself.
    pub fn is_stream_of(&self, vendor: Vendor, stream: u64, context: u64) -> Option<bool> {
        let context = self.known_context(vendor, context)?;
        Some(self.registry.streams.map.get(&(vendor, stream)).is_some_and(|entry| entry.context == context))
    }

    /// Takes a stream out before its real destroy: another thread may get the handle at once.
    pub fn stream_going(&self, vendor: Vendor, handle: u64) -> Option<Entry> {
        self.registry.streams.map.remove(&(vendor, handle)).map(|(_, entry)| entry)
    }

    /// The real destroy returned.
    pub fn stream_destroyed(&self, vendor: Vendor, handle: u64, entry: Entry, status: Status) {
        if status != 0
            && let dashmap::Entry::Vacant(place) = self.registry.streams.map.entry((vendor, handle))
        {
            place.insert(entry);
            return;
        }
        self.end_stream(entry);
    }

    fn end_stream(&self, entry: Entry) {
        self.registry.streams.end_capture(&entry);
        self.ledger.streams.clear_if_any(entry.slot);
    }

    /// Handles of the streams of a context, as far as it is known.
    pub fn streams_of(&self, vendor: Vendor, context: u64) -> Vec<u64> {
        let context = self.known_context(vendor, context);
        let streams = self.registry.streams.map.iter();
        streams.filter(|its| context == Some(its.context)).map(|its| its.key().1).collect()
    }

    /// Whether a context has streams.
    pub fn has_streams_of(&self, context: ContextRef) -> bool {
        self.registry.streams.map.iter().any(|its| its.context == context)
    }

    /// All streams of a context are gone with it.
    pub fn end_streams_of(&self, context: ContextRef) {
        self.registry.streams.map.retain(|_, entry| {
            if entry.context == context {
                self.end_stream(*entry);
            }
            entry.context != context
        });
    }

    /// What a capturing stream is known by: per-thread default streams have one name in all threads,
    /// and no other default stream can capture.
    fn capture_key(&self, stream: u64) -> u64 {
        const PER_THREAD: u64 = 2;
        match stream {
            0 | PER_THREAD => PER_THREAD | u64::from(self.tid()) << 32,
            stream => stream,
        }
    }

    /// A capture began.
    pub fn capture_begun(&self, vendor: Vendor, stream: u64, mode: i32) {
        let stream = self.capture_key(stream);
        self.count(counters::CAPTURES_BEGUN, 1);
        self.registry.streams.capturing.fetch_add(1, Relaxed);
        // Default streams, and those from before the shim, are known while they capture only.
        let unlisted = Entry { slot: NO_SLOT, context: 0, capturing: true };
        let mut entry = self.registry.streams.map.entry((vendor, stream)).or_insert(unlisted);
        entry.capturing = true;
        if entry.slot != NO_SLOT {
            let field = |offset| self.ledger.streams.field(entry.slot, offset);
            field(offset_of!(StreamSlot, capture_mode)).store(u64::from(mode as u32), Relaxed);
            field(offset_of!(StreamSlot, captures)).fetch_add(1, Relaxed);
            field(offset_of!(StreamSlot, capturing_ns)).store(clock::now_ns(), Relaxed);
        }
    }

    /// The program ended a capture: with a graph, or with an error. An error without a capture in
    /// progress is the program's mistake and no capture.
    pub fn capture_ended(&self, vendor: Vendor, stream: u64, graph: u64, status: Status) {
        let stream = self.capture_key(stream);
        let streams = &self.registry.streams;
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
            self.ledger.streams.field(entry.slot, offset_of!(StreamSlot, capturing_ns)).store(0, Relaxed);
        }
        if graph != 0 {
            return self.count(counters::CAPTURES_ENDED, 1);
        }
        self.count(counters::CAPTURES_FAILED, 1);
        self.event(EventKind::CaptureFailed, |event| {
            event.context = entry.context;
            event.a = stream;
            event.code = status as i32;
        });
    }
}
