//! Properties of copies and memsets that no setter can change: the location of their memory.

use super::layout::*;
use crate::backend::driver;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Pinned;
use std::hash::Hasher;
use zerocopy::IntoBytes;

/// `CU_MEMORYTYPE_ARRAY` and `…_UNIFIED`.
const ARRAY: u32 = 3;

/// Returns the properties of a copy that no setter can change: the kinds of memory and their devices. For copies that
/// are not one-dimensional, or that touch arrays, it is everything.
///
/// # Errors
/// [`Pinned::Contexts`] if the memory is another device's.
pub(super) fn tag_of_copy(params: &CopyParams, device: Device) -> Result<u64, Pinned> {
    let sides = [&params.src, &params.dst];
    let flat = params.height == 1
        && params.depth <= 1
        && sides.iter().all(|side| {
            let [x, y, z, lod] = [side.x, side.y, side.z, side.lod];
            side.kind != ARRAY && (x, y, z, lod) == (0, 0, 0, 0)
        });
    let places = sides.map(|side| place_of(if side.host != 0 && side.device == 0 { side.host } else { side.device }));
    let plain = |place: u16| place == HOST || place & !APART == place_on(device);
    if places.into_iter().any(|place| is_elsewhere(place, device)) {
        return Err(Pinned::Contexts);
    }
    let settable = flat && places.into_iter().all(plain);
    if settable {
        let kinds = u64::from(params.src.kind) << 8 | u64::from(params.dst.kind);
        return Ok(u64::from(places[0]) << 48 | u64::from(places[1]) << 32 | kinds << 1);
    }
    Ok(hash(params.as_bytes()) | 1)
}

/// As [`tag_of_copy`], for a memset. Of a 2D memset a setter changes only address and value (measured on an H200,
/// driver 580), so the rest counts as fixed.
///
/// # Errors
/// As for [`tag_of_copy`].
pub(super) fn tag_of_memset(params: &SetParams, device: Device) -> Result<u64, Pinned> {
    let place = place_of(params.dst);
    if is_elsewhere(place, device) {
        return Err(Pinned::Contexts);
    }
    if params.height <= 1 && place & !APART == place_on(device) {
        return Ok(u64::from(params.element_bytes) << 32 | u64::from(place) << 1);
    }
    Ok(hash(params.as_bytes()) | 1)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// Memory without a context.
const APART: u16 = 1 << 13;
/// Memory of the host.
const HOST: u16 = 0x7fff;

/// True for plain memory of another device. Its node may belong to another context, which no call tells.
fn is_elsewhere(place: u16, device: Device) -> bool {
    place != HOST && place & !APART & 0xff00 == place_on(device) & 0xff00 && place & 0xff != place_on(device) & 0xff
}

fn place_on(device: Device) -> u16 {
    // Plain device memory: type 2, not managed.
    2 << 8 | (device as u16 & 0xff)
}

/// Returns kind and device of the memory at an address. Memory of pools and of the virtual memory calls has no context,
/// and the driver treats it differently in copies.
fn place_of(address: u64) -> u16 {
    let (mut kind, mut device, mut managed, mut context) = (0_u32, 0_i32, 0_u32, 0_u64);
    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, …_DEVICE_ORDINAL, …_IS_MANAGED, …_CONTEXT.
    let mut ids = [2, 9, 8, 1];
    let mut out = [opaque(&mut kind), opaque(&mut device), opaque(&mut managed), opaque(&mut context)];
    // SAFETY: rule of answers: `ids` and `out` have four elements, and each of `out` leads to a
    // local of its attribute's type. The driver gives zeroes for addresses that it does not know.
    let status = unsafe { driver::cuPointerGetAttributes(4, ids.as_mut_ptr(), out.as_mut_ptr(), address) };
    match (status, kind) {
        // For a setter, registered and unregistered memory are the same (measured on an H200, driver 580).
        (Some(SUCCESS), 0 | 1) if managed == 0 => HOST,
        (Some(SUCCESS), kind) => {
            let apart = u16::from(context == 0) << 13 | (managed as u16 & 1) << 12;
            apart | (kind as u16 & 0xf) << 8 | (device as u16 & 0xff)
        }
        _ => HOST,
    }
}
