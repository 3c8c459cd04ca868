//! The driver's own pools for stream-ordered memory: each pool's location, and the pool that each device allocates
//! from. [`crate::records::driver_pools`] changes them.

use crate::process::map::{self, Map};
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::location::Location;
use std::sync::atomic::AtomicBool;

/// Pools by vendor and handle.
pub(crate) struct DriverPools {
    pub(crate) map: Map<(Vendor, u64), Location>,
    /// Pools that the program made current, by device.
    pub(crate) current: Map<(Vendor, Device), u64>,
    /// True once the program has made one current.
    pub(crate) chosen: AtomicBool,
}

impl DriverPools {
    pub(crate) fn new() -> Self {
        Self { map: map::with_parts(4), current: map::with_parts(2), chosen: AtomicBool::new(false) }
    }
}
