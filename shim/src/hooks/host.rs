//! Host memory that the driver pins.

use super::{get, written};
use crate::call::{Call, Real};
use crate::records::registry::live::Class;
use crate::request::{Request, free as freed};
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use std::ffi::c_uint;

/// The program asks for pinned host memory.
pub(crate) unsafe fn alloc(call: Call, real: Real<(*mut DevicePtr, usize)>) -> Status {
    let (ptr, bytes) = real.args;
    let request = Request::new(AllocKind::HostPinned, bytes as u64);
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, ptr)) }
}

/// The program asks for pinned host memory with flags.
pub(crate) unsafe fn alloc_flags(call: Call, real: Real<(*mut DevicePtr, usize, c_uint)>) -> Status {
    let (ptr, bytes, flags) = real.args;
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::HostPinned, bytes as u64) };
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, ptr)) }
}

/// The program frees pinned host memory.
pub(crate) unsafe fn free(_: Call, real: Real<(DevicePtr,)>) -> Status {
    freed(Class::Address, real.args.0, || real.call())
}

/// The program pins memory of its own.
pub(crate) unsafe fn register(call: Call, real: Real<(DevicePtr, usize, c_uint)>) -> Status {
    let (ptr, bytes, flags) = real.args;
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::HostRegistered, bytes as u64) };
    get(&call, request, || real.call(), |_, _| Some(ptr))
}

/// The program unpins memory of its own.
pub(crate) unsafe fn unregister(_: Call, real: Real<(DevicePtr,)>) -> Status {
    freed(Class::Registered, real.args.0, || real.call())
}
