//! Contexts by vendor and handle, and counts over all of them. [`crate::records::contexts`] changes them.

use crate::process::map::{self, Map};
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::ContextRef;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A known context. Facts for the pool and the graph cache are here too, since a record may find no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// 0: its record found no room.
    pub(crate) context: ContextRef,
    pub(crate) device: Device,
    /// True if it is the device's primary context.
    pub(crate) primary: bool,
}

/// Contexts by vendor and handle.
pub(crate) struct Contexts {
    pub(crate) map: Map<(Vendor, u64), Known>,
    /// Changes when a context ends, so that threads forget what they knew of it.
    pub(crate) generation: AtomicU32,
    /// Contexts in the map.
    pub(crate) count: AtomicU32,
    /// Time of the last query of a device's used bytes, and the context. 0: a context that is gone.
    pub(crate) looked_ns: AtomicU64,
    pub(crate) looked_in: AtomicU16,
    pub(crate) cursor: AtomicU32,
    /// Ended green contexts with their devices, kept while something made in them still lives in the primary context.
    pub(crate) left: Mutex<Vec<(Device, u64, ContextRef)>>,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        // Generations differ between shims of one process (before and after a fork).
        let generation = AtomicU32::new(std::process::id().rotate_left(16) | 1);
        Self {
            map: map::new(),
            generation,
            count: AtomicU32::new(0),
            looked_ns: AtomicU64::new(0),
            looked_in: AtomicU16::new(0),
            cursor: AtomicU32::new(0),
            left: Mutex::default(),
        }
    }
}
