//! Streams by vendor and handle, and the number of captures in progress. [`crate::records::streams`] changes them.

use crate::process::map::{self, Map};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::{ContextRef, StreamRef};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Data to find a stream's record.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) context: ContextRef,
    pub(crate) capturing: bool,
}

/// Streams by vendor and handle.
pub(crate) struct Streams {
    pub(crate) map: Map<(Vendor, u64), Entry>,
    pub(crate) capturing: AtomicU32,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self { map: map::new(), capturing: AtomicU32::new(0) }
    }

    /// Returns the number of captures in progress in the process.
    #[inline]
    pub(crate) fn capturing(&self) -> u32 {
        self.capturing.load(Relaxed)
    }

    /// Returns a stream's reference for [`gpumem_wire::layout::AllocSlot::stream`]; 0 for default streams.
    pub(crate) fn reference(&self, vendor: Vendor, handle: u64) -> StreamRef {
        let of = self.map.get(&(vendor, handle)).map(|entry| entry.slot.wrapping_add(1));
        of.and_then(|reference| reference.try_into().ok()).unwrap_or(0)
    }

    /// Ends the capture of an entry, if there is one.
    pub(crate) fn end_capture(&self, entry: &Entry) {
        if entry.capturing {
            let _ = self.capturing.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        }
    }
}
