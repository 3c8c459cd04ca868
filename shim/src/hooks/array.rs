//! Arrays: memory in the device's own layout, known by handles. Bytes are those of the elements, for `GPUMEM_LIMIT`
//! too, because no call tells the device's padding.

use super::{freed, made, parameter};
use crate::call::Call;
use crate::pool::quota::Reserved;
use crate::reclaim::{self, bounded};
use crate::registry::live::Class;
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use std::ffi::c_uint;

/// Bytes of one channel, by `CUarray_format` (`hipArray_Format` has the same numbers). Block-compressed
/// and video formats count as one byte.
fn channel_bytes(format: u32) -> usize {
    match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    }
}

fn bytes_of(width: usize, height: usize, depth: usize, element: usize) -> usize {
    width.saturating_mul(height.max(1)).saturating_mul(depth.max(1)).saturating_mul(element)
}

/// Bytes of an element with these channels.
fn element(channels: &ChannelDesc) -> usize {
    [channels.x, channels.y, channels.z, channels.w].iter().map(|&bits| bits.max(0) as usize).sum::<usize>() / 8
}

/// Bytes of all levels of a mipmapped array: at most a third more than the first level in two dimensions, a seventh
/// more in three.
fn all_levels(width: usize, height: usize, depth: usize, element: usize, levels: c_uint) -> usize {
    (0..levels.min(usize::BITS - 1))
        .map(|level| bytes_of((width >> level).max(1), height >> level, depth >> level, element))
        .sum()
}

/// Runs a call that makes an array, if the limit of this process has room for it. The program's description is read
/// here only if there is a limit. Without one, the library is the first to read it.
fn limited(call: &Call, bytes: impl FnOnce() -> usize, real: impl FnMut() -> Status) -> (Status, Reserved) {
    let bytes = if reclaim::has_limit(call.vendor) { bytes() } else { 0 };
    bounded(call, bytes, real)
}

/// # Safety
/// `array` is the program's out-parameter of a call that answered `status`.
unsafe fn array_made(call: &Call, status: Status, kind: AllocKind, array: *mut Array, bytes: usize) -> Status {
    // SAFETY: rule of out-parameters: our caller passes the program's `array` and the status of its
    // call. An Array has the size of an address.
    unsafe { made(call, status, kind, Class::Array, array.cast(), bytes, 0, 0) };
    status
}

/// The program asks for an array of one or two dimensions.
pub(crate) unsafe fn create(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const ArrayDescriptor) -> Status,
    array: *mut Array,
    desc: *const ArrayDescriptor,
) -> Status {
    // SAFETY: rule of the call: `real` gets `array` and `desc` as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || {
            parameter(desc).map_or(0, |d| bytes_of(d.width, d.height, 1, channel_bytes(d.format) * d.channels as usize))
        };
        let (status, _room) = limited(&call, bytes, || real(array, desc));
        array_made(&call, status, AllocKind::Array, array, bytes())
    }
}

/// The program asks for an array of up to three dimensions.
pub(crate) unsafe fn create_3d(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const Array3dDescriptor) -> Status,
    array: *mut Array,
    desc: *const Array3dDescriptor,
) -> Status {
    // SAFETY: rule of the call: `real` gets `array` and `desc` as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || {
            let element = |d: &Array3dDescriptor| channel_bytes(d.format) * d.channels as usize;
            parameter(desc).map_or(0, |d| bytes_of(d.width, d.height, d.depth, element(&d)))
        };
        let (status, _room) = limited(&call, bytes, || real(array, desc));
        array_made(&call, status, AllocKind::Array, array, bytes())
    }
}

/// The program asks for a mipmapped array.
pub(crate) unsafe fn create_mipmapped(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const Array3dDescriptor, c_uint) -> Status,
    array: *mut Array,
    desc: *const Array3dDescriptor,
    levels: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || {
            let element = |d: &Array3dDescriptor| channel_bytes(d.format) * d.channels as usize;
            parameter(desc).map_or(0, |d| all_levels(d.width, d.height, d.depth, element(&d), levels))
        };
        let (status, _room) = limited(&call, bytes, || real(array, desc, levels));
        array_made(&call, status, AllocKind::MipmappedArray, array, bytes())
    }
}

/// As [`create`], in the runtime's shape.
pub(crate) unsafe fn create_channels(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const ChannelDesc, usize, usize, c_uint) -> Status,
    array: *mut Array,
    desc: *const ChannelDesc,
    width: usize,
    height: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || parameter(desc).map_or(0, |d| bytes_of(width, height, 1, element(&d)));
        let (status, _room) = limited(&call, bytes, || real(array, desc, width, height, flags));
        array_made(&call, status, AllocKind::Array, array, bytes())
    }
}

/// As [`create_3d`], in the runtime's shape.
pub(crate) unsafe fn create_channels_3d(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const ChannelDesc, Extent, c_uint) -> Status,
    array: *mut Array,
    desc: *const ChannelDesc,
    extent: Extent,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || parameter(desc).map_or(0, |d| bytes_of(extent.width, extent.height, extent.depth, element(&d)));
        let (status, _room) = limited(&call, bytes, || real(array, desc, extent, flags));
        array_made(&call, status, AllocKind::Array, array, bytes())
    }
}

/// As [`create_mipmapped`], in the runtime's shape.
pub(crate) unsafe fn create_channels_mipmapped(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Array, *const ChannelDesc, Extent, c_uint, c_uint) -> Status,
    array: *mut Array,
    desc: *const ChannelDesc,
    extent: Extent,
    levels: c_uint,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came. `array` is the out-parameter.
    unsafe {
        let bytes = || {
            parameter(desc).map_or(0, |d| all_levels(extent.width, extent.height, extent.depth, element(&d), levels))
        };
        let (status, _room) = limited(&call, bytes, || real(array, desc, extent, levels, flags));
        array_made(&call, status, AllocKind::MipmappedArray, array, bytes())
    }
}

/// The program destroys an array.
pub(crate) unsafe fn destroy(_: Call, real: unsafe extern "C-unwind" fn(Array) -> Status, array: Array) -> Status {
    // SAFETY: rule of the call: `real` gets the array that the program destroys.
    freed(Class::Array, array as u64, || unsafe { real(array) })
}

/// The program destroys a mipmapped array.
pub(crate) unsafe fn destroy_mipmapped(
    _: Call,
    real: unsafe extern "C-unwind" fn(Array) -> Status,
    array: Array,
) -> Status {
    // SAFETY: rule of the call: `real` gets the mipmapped array that the program destroys.
    freed(Class::Array, array as u64, || unsafe { real(array) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_halved_down_to_one_element() {
        assert_eq!(all_levels(4, 4, 0, 1, 3), 16 + 4 + 1);
        assert_eq!(all_levels(8, 0, 0, 4, 4), (8 + 4 + 2 + 1) * 4);
        assert_eq!(bytes_of(usize::MAX, 2, 2, 4), usize::MAX);
    }

    #[test]
    fn an_element_has_the_bits_of_its_channels() {
        assert_eq!(element(&ChannelDesc { x: 32, y: 32, z: 0, w: 0, kind: 2 }), 8);
        assert_eq!(channel_bytes(0x20), 4);
        assert_eq!(channel_bytes(0x10), 2);
    }
}
