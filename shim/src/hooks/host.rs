//! Host memory that the driver pins.

use super::{get, written};
use crate::call::Call;
use crate::records::registry::live::Class;
use crate::request::{Request, free as freed};
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
    let request = Request::new(AllocKind::HostPinned, bytes as u64);
    // SAFETY: rule of the call: `real` gets both arguments as they came. Rule of out-parameters: `ptr` is read only
    // after success.
    unsafe { get(&call, request, || real(ptr, bytes), |_, status| written(status, ptr)) }
}

/// The program asks for pinned host memory with flags.
pub(crate) unsafe fn alloc_flags(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, c_uint) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Status {
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::HostPinned, bytes as u64) };
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters: `ptr` is read only
    // after success.
    unsafe { get(&call, request, || real(ptr, bytes, flags), |_, status| written(status, ptr)) }
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
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::HostRegistered, bytes as u64) };
    // SAFETY: rule of the call: `real` gets the arguments as they came.
    get(&call, request, || unsafe { real(ptr, bytes, flags) }, |_, _| Some(ptr))
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
