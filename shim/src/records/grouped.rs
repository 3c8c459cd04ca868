//! Device memory, told to the group that shares a limit (`GPUMEM_LIMIT_GROUP`). Nothing happens where there is none.

use super::contexts;
use crate::group::Place;
use crate::shim::Shim;
use gpumem_wire::kinds::{Severity, Vendor};
use gpumem_wire::layout::ContextRef;

/// The device of a context.
pub fn place(shim: &Shim, context: ContextRef) -> Option<Place> {
    let slot = contexts::slot(shim, context)?;
    let (vendor, device) = (Vendor::from_u8(slot.vendor)?, slot.device as i32);
    Some(Place { vendor, device, uuid: slot.uuid })
}

/// The driver has given so many bytes.
pub fn took(shim: &Shim, context: ContextRef, bytes: u64) {
    if let Some(group) = &shim.group
        && let Some(place) = place(shim, context)
    {
        group.took(&place, bytes);
    }
}

/// The driver has them back.
pub fn gave(shim: &Shim, context: ContextRef, bytes: u64) {
    if let Some(group) = shim.group.as_ref().filter(|_| bytes != 0)
        && let Some(place) = place(shim, context)
    {
        group.gave(&place, bytes);
    }
}

/// Looks after the seat in the group, once a second.
pub fn look_after(shim: &Shim) {
    if let Some(line) = shim.group.as_ref().and_then(|group| group.look_after()) {
        shim.message(Severity::Warning, &line);
    }
}
