//! Reports device memory to the group that shares a limit (`GPUMEM_LIMIT_GROUP`). Without a group it does nothing.

use super::contexts;
use crate::group::{Group, Place};
use crate::shim::Shim;
use gpumem_wire::kinds::{Severity, Vendor};
use gpumem_wire::layout::ContextRef;

/// Returns a context's device.
pub(crate) fn place(shim: &Shim, context: ContextRef) -> Option<Place> {
    let slot = contexts::slot(shim, context)?;
    let (vendor, device) = (Vendor::from_u8(slot.vendor)?, slot.device as i32);
    Some(Place { vendor, device, uuid: named(slot.uuid, vendor, device) })
}

/// Returns a device's name in the group. If the driver gives no UUID, the name is made from the device's number, so
/// that devices do not share a name.
fn named(uuid: [u8; 16], vendor: Vendor, device: i32) -> [u8; 16] {
    if uuid != [0; 16] {
        return uuid;
    }
    let mut name = *b"no UUID\0\0\0\0\0\0\0\0\0";
    name[8] = vendor as u8;
    name[12..].copy_from_slice(&device.to_ne_bytes());
    name
}

/// Reports bytes that the driver has given.
#[inline(always)]
pub(crate) fn took(shim: &Shim, context: ContextRef, bytes: u64) {
    if let Some(group) = &shim.group {
        took_in(group, shim, context, bytes);
    }
}

#[cold]
fn took_in(group: &Group, shim: &Shim, context: ContextRef, bytes: u64) {
    if let Some(place) = place(shim, context) {
        group.took(&place, bytes);
    }
}

/// Reports bytes that the driver has back.
pub(crate) fn gave(shim: &Shim, context: ContextRef, bytes: u64) {
    if let Some(group) = shim.group.as_ref().filter(|_| bytes != 0)
        && let Some(place) = place(shim, context)
    {
        group.gave(&place, bytes);
    }
}

/// Checks the seat in the group, once a second.
pub(crate) fn look_after(shim: &Shim) {
    if let Some(line) = shim.group.as_ref().and_then(|group| group.look_after()) {
        shim.message(Severity::Warning, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_a_uuid_are_told_apart() {
        let of = |uuid, vendor, device| named(uuid, vendor, device);
        assert_eq!(of([7; 16], Vendor::Cuda, 0), [7; 16]);
        let names = [(Vendor::Cuda, 0), (Vendor::Cuda, 1), (Vendor::Hip, 0)]
            .map(|(vendor, device)| of([0; 16], vendor, device));
        assert!(names[0] != names[1] && names[0] != names[2] && names[1] != names[2] && names[0] != [0; 16]);
    }
}
