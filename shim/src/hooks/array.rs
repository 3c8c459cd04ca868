//! Arrays: memory in the device's own layout, identified by handles. Bytes are those of the elements, also for
//! `GPUMEM_LIMIT`, because no call tells the device's padding.

use super::{parameter, written};
use crate::call::{Call, Real};
use crate::process::peek::Plain;
use crate::records::registry::live::Class;
use crate::request::{self, Request, free as freed};
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use std::ffi::c_uint;

/// Returns the bytes of one channel, by `CUarray_format` (`hipArray_Format` has the same numbers). Block-compressed and
/// video formats count as one byte.
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

/// Returns the bytes of an element with these channels.
fn element(channels: &ChannelDesc) -> usize {
    [channels.x, channels.y, channels.z, channels.w].iter().map(|&bits| bits.max(0) as usize).sum::<usize>() / 8
}

/// Returns the bytes of an element of a described array.
fn element_3d(array: &Array3dDescriptor) -> usize {
    channel_bytes(array.format) * array.channels as usize
}

/// Returns the bytes of all levels of a mipmapped array: at most a third more than the first level in two dimensions, a
/// seventh more in three.
fn all_levels(width: usize, height: usize, depth: usize, element: usize, levels: c_uint) -> usize {
    (0..levels.min(usize::BITS - 1))
        .map(|level| bytes_of((width >> level).max(1), height >> level, depth >> level, element))
        .sum()
}

/// Gets an array by `real`. `bytes` returns its bytes from the program's description, which is read before the call only
/// if there is a limit. Without one, the library is the first to read it.
///
/// # Safety
/// `array` is the program's out-parameter of `real`.
unsafe fn get<D: Plain>(
    call: &Call,
    kind: AllocKind,
    array: *mut Array,
    desc: *const D,
    bytes: impl Fn(D) -> usize,
    real: impl FnMut() -> Status,
) -> Status {
    let bytes = || parameter(desc).map_or(0, &bytes) as u64;
    let request = Request::new(kind, if request::has_limit(call.vendor) { bytes() } else { 0 });
    super::get(call, request, real, |request, status| {
        request.bytes = bytes();
        // SAFETY: rule of out-parameters: our caller passes the program's `array`, and `status` is that of its call. An
        // Array has the size of an address.
        unsafe { written(status, array.cast()) }
    })
}

/// The program asks for an array of one or two dimensions.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut Array, *const ArrayDescriptor)>) -> Status {
    let (array, desc) = real.args;
    let bytes = |d: ArrayDescriptor| bytes_of(d.width, d.height, 1, channel_bytes(d.format) * d.channels as usize);
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::Array, array, desc, bytes, || real.call()) }
}

/// The program asks for an array of up to three dimensions.
pub(crate) unsafe fn create_3d(call: Call, real: Real<(*mut Array, *const Array3dDescriptor)>) -> Status {
    let (array, desc) = real.args;
    let bytes = |d: Array3dDescriptor| bytes_of(d.width, d.height, d.depth, element_3d(&d));
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::Array, array, desc, bytes, || real.call()) }
}

/// The program asks for a mipmapped array.
pub(crate) unsafe fn create_mipmapped(
    call: Call,
    real: Real<(*mut Array, *const Array3dDescriptor, c_uint)>,
) -> Status {
    let (array, desc, levels) = real.args;
    let bytes = |d: Array3dDescriptor| all_levels(d.width, d.height, d.depth, element_3d(&d), levels);
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::MipmappedArray, array, desc, bytes, || real.call()) }
}

/// As [`create`], with the runtime's parameters.
pub(crate) unsafe fn create_channels(
    call: Call,
    real: Real<(*mut Array, *const ChannelDesc, usize, usize, c_uint)>,
) -> Status {
    let (array, desc, width, height, _) = real.args;
    let bytes = |d: ChannelDesc| bytes_of(width, height, 1, element(&d));
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::Array, array, desc, bytes, || real.call()) }
}

/// As [`create_3d`], with the runtime's parameters.
pub(crate) unsafe fn create_channels_3d(
    call: Call,
    real: Real<(*mut Array, *const ChannelDesc, Extent, c_uint)>,
) -> Status {
    let (array, desc, extent, _) = real.args;
    let bytes = |d: ChannelDesc| bytes_of(extent.width, extent.height, extent.depth, element(&d));
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::Array, array, desc, bytes, || real.call()) }
}

/// As [`create_mipmapped`], with the runtime's parameters.
pub(crate) unsafe fn create_channels_mipmapped(
    call: Call,
    real: Real<(*mut Array, *const ChannelDesc, Extent, c_uint, c_uint)>,
) -> Status {
    let (array, desc, extent, levels, _) = real.args;
    let bytes = |d: ChannelDesc| all_levels(extent.width, extent.height, extent.depth, element(&d), levels);
    // SAFETY: rule of out-parameters: `array` is that of the call.
    unsafe { get(&call, AllocKind::MipmappedArray, array, desc, bytes, || real.call()) }
}

/// The program destroys an array, mipmapped or not.
pub(crate) unsafe fn destroy(_: Call, real: Real<(Array,)>) -> Status {
    freed(Class::Array, real.args.0 as u64, || real.call())
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
