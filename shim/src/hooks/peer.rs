//! What a program does to device memory that its owner must know of: it asks where a block begins and what
//! it is, changes how it behaves, hands it to other devices and drivers.

use crate::call::Call;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Whether a context of this process was ever opened to another device.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// The program opens the memory of a context to the current one.
pub unsafe fn enable(
    _: Call,
    real: unsafe extern "C-unwind" fn(Context, c_uint) -> Status,
    ctx: Context,
    flags: c_uint,
) -> Status {
    // Before: from when the call is made, kernels of another device may use what is in there.
    ENABLED.store(true, Relaxed);
    // SAFETY: the program's own call.
    unsafe { real(ctx, flags) }
}

/// The program closes it again. What was opened may still be in use: that it was is kept.
pub unsafe fn disable(_: Call, real: unsafe extern "C-unwind" fn(Context) -> Status, ctx: Context) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(ctx) }
}

/// The program takes a handle for a range, for another driver to use.
pub unsafe fn range_handle(
    _: Call,
    real: unsafe extern "C-unwind" fn(Opaque, DevicePtr, usize, c_int, u64) -> Status,
    handle: Opaque,
    ptr: DevicePtr,
    bytes: usize,
    kind: c_int,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(handle, ptr, bytes, kind, flags) }
}

/// The program changes an attribute of a block.
pub unsafe fn set_attribute(
    _: Call,
    real: unsafe extern "C-unwind" fn(Opaque, c_int, DevicePtr) -> Status,
    value: Opaque,
    attribute: c_int,
    ptr: DevicePtr,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(value, attribute, ptr) }
}

/// The program asks for an attribute of an address.
pub unsafe fn get_attribute(
    _: Call,
    real: unsafe extern "C-unwind" fn(Opaque, c_int, DevicePtr) -> Status,
    data: Opaque,
    attribute: c_int,
    ptr: DevicePtr,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(data, attribute, ptr) }
}

/// The program asks for several attributes of an address.
pub unsafe fn get_attributes(
    _: Call,
    real: unsafe extern "C-unwind" fn(c_uint, *mut c_int, *mut Opaque, DevicePtr) -> Status,
    len: c_uint,
    attributes: *mut c_int,
    data: *mut Opaque,
    ptr: DevicePtr,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(len, attributes, data, ptr) }
}

/// The program asks which block an address is in.
pub unsafe fn address_range(
    _: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, *mut usize, DevicePtr) -> Status,
    base: *mut DevicePtr,
    bytes: *mut usize,
    ptr: DevicePtr,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(base, bytes, ptr) }
}
