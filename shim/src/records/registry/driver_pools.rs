//! The driver's own pools for stream-ordered memory: where the memory of each lies, and which one a device allocates
//! from. What happens to them is in [`crate::records::driver_pools`].

use crate::process::map::{self, Map};
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::location::Location;
use std::sync::atomic::AtomicBool;

/// Pools by vendor and handle.
pub(crate) struct DriverPools {
    pub(crate) map: Map<(Vendor, u64), Location>,
    /// The pools that the program has made current, by device.
    pub(crate) current: Map<(Vendor, Device), u64>,
    /// The program has made any current.
    pub(crate) chosen: AtomicBool,
}

impl DriverPools {
    pub(crate) fn new() -> Self {
        Self { map: map::with_parts(4), current: map::with_parts(2), chosen: AtomicBool::new(false) }
    }
}
