//! Records the driver's pools for stream-ordered memory: where their memory lies.

use super::contexts;
use crate::process::map;
use crate::shim::Shim;
use gpumem_abi::types::Device;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::location::Location;
use std::sync::atomic::Ordering::Relaxed;

/// Records the location of a pool's memory. If there is no memory for that, the location stays unknown.
pub(crate) fn known(shim: &Shim, vendor: Vendor, pool: u64, location: Location) {
    let _ = map::put(&shim.registry.driver_pools.map, (vendor, pool), location, true);
}

/// Known facts of a pool.
pub(crate) struct Known {
    location: Option<Location>,
    /// Devices that allocate from it.
    devices: Vec<Device>,
}

/// Removes a pool before its real end. Allocations from it have their own location.
pub(crate) fn destroying(shim: &Shim, vendor: Vendor, pool: u64) -> Known {
    let mut devices = Vec::new();
    shim.registry.driver_pools.current.retain(|&(of, device), current| {
        let stays = of != vendor || *current != pool;
        if !stays {
            devices.push(device);
        }
        stays
    });
    let location = shim.registry.driver_pools.map.remove(&(vendor, pool)).map(|(_, location)| location);
    Known { location, devices }
}

/// Restores a pool whose real end failed.
pub(crate) fn stays(shim: &Shim, vendor: Vendor, pool: u64, was: Known) {
    if let Some(location) = was.location {
        known(shim, vendor, pool, location);
    }
    was.devices.into_iter().for_each(|device| chosen(shim, vendor, device, pool));
}

/// Records that a device allocates from this pool now.
pub(crate) fn chosen(shim: &Shim, vendor: Vendor, device: Device, pool: u64) {
    let _ = map::put(&shim.registry.driver_pools.current, (vendor, device), pool, true);
    shim.registry.driver_pools.chosen.store(true, Relaxed);
}

/// Returns the location of a pool's memory; unknown if the pool's creation was not seen.
pub(crate) fn location(shim: &Shim, vendor: Vendor, pool: u64) -> Location {
    shim.registry.driver_pools.map.get(&(vendor, pool)).map_or(Location::Unknown, |location| *location)
}

/// Returns the pool that a device allocates from, if the program chose it.
pub(crate) fn current(shim: &Shim, vendor: Vendor, device: Device) -> Option<u64> {
    if !shim.registry.driver_pools.chosen.load(Relaxed) {
        return None;
    }
    shim.registry.driver_pools.current.get(&(vendor, device)).map(|pool| *pool)
}

/// True if stream-ordered memory may lie elsewhere than on the device of the calling thread's context.
#[inline(always)]
pub(crate) fn may_lie_elsewhere(shim: &Shim) -> bool {
    shim.registry.driver_pools.chosen.load(Relaxed) || shim.registry.contexts.count.load(Relaxed) > 1
}

/// Returns the location of stream-ordered memory that names no pool. It comes from the current pool of the stream's
/// device, which is the device's own memory unless the program chose another pool.
pub(crate) fn location_of_stream(shim: &'static Shim, vendor: Vendor, stream: u64) -> Location {
    let listed = shim.registry.streams.map.get(&(vendor, stream)).map(|entry| entry.context);
    let context = listed.unwrap_or_else(|| contexts::current(shim, vendor));
    let Some(device) = contexts::slot(shim, context).map(|slot| slot.device) else { return Location::OwnDevice };
    match current(shim, vendor, device as Device) {
        Some(pool) => location(shim, vendor, pool),
        None => u16::try_from(device).map_or(Location::Unknown, Location::Device),
    }
}
