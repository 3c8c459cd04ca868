//! Host memory that the driver pins.

use super::{freed, made};
use crate::call::Call;
use crate::registry::live::Class;
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use std::ffi::c_uint;

/// The program asks for pinned host memory.
pub(crate) unsafe fn alloc(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let status = real(ptr, bytes);
        made(&call, status, AllocKind::HostPinned, Class::Address, ptr, bytes, 0, 0);
        status
    }
}

/// The program asks for pinned host memory with flags.
pub(crate) unsafe fn alloc_flags(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, c_uint) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let status = real(ptr, bytes, flags);
        made(&call, status, AllocKind::HostPinned, Class::Address, ptr, bytes, 0, u64::from(flags));
        status
    }
}

/// The program frees pinned host memory.
pub(crate) unsafe fn free(_: Call, real: unsafe extern "C-unwind" fn(DevicePtr) -> Status, ptr: DevicePtr) -> Status {
    // SAFETY: rule of the call: `real` gets the address that the program frees.
    freed(Class::Address, ptr, || unsafe { real(ptr) })
}

/// The program pins memory of its own.
pub(crate) unsafe fn register(
    call: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr, usize, c_uint) -> Status,
    ptr: DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. `made` reads `ptr` itself,
    // which is a number in a local of ours.
    unsafe {
        let status = real(ptr, bytes, flags);
        made(&call, status, AllocKind::HostRegistered, Class::Registered, &ptr, bytes, 0, u64::from(flags));
        status
    }
}

/// The program unpins memory of its own.
pub(crate) unsafe fn unregister(
    _: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr) -> Status,
    ptr: DevicePtr,
) -> Status {
    // SAFETY: rule of the call: `real` gets the address that the program unpins.
    freed(Class::Registered, ptr, || unsafe { real(ptr) })
}
