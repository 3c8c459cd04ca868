//! Contexts: made, and gone with all that belongs to them.

use super::written;
use crate::backend;
use crate::call::Call;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

unsafe fn created(call: &Call, status: Status, ctx: *mut Context, device: Device, primary: bool) -> Status {
    // SAFETY: the program's out-parameter, written if the call succeeded.
    if let Some(ctx) = unsafe { written(ctx) }.filter(|_| status == SUCCESS) {
        call.record(|shim| shim.context(call.vendor, ctx as u64, Some(device), primary));
    }
    status
}

/// The program makes a context.
pub unsafe fn create_v2(
    call: Call,
    real: unsafe extern "C" fn(*mut Context, c_uint, Device) -> Status,
    ctx: *mut Context,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the program's own call; `ctx` is its out-parameter.
    unsafe { created(&call, real(ctx, flags, device), ctx, device, false) }
}

/// The program makes a context with execution affinity.
pub unsafe fn create_v3(
    call: Call,
    real: unsafe extern "C" fn(*mut Context, Opaque, c_int, c_uint, Device) -> Status,
    ctx: *mut Context,
    params: Opaque,
    len: c_int,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: as above.
    unsafe { created(&call, real(ctx, params, len, flags, device), ctx, device, false) }
}

/// The program makes a context with parameters.
pub unsafe fn create_v4(
    call: Call,
    real: unsafe extern "C" fn(*mut Context, Opaque, c_uint, Device) -> Status,
    ctx: *mut Context,
    params: Opaque,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: as above.
    unsafe { created(&call, real(ctx, params, flags, device), ctx, device, false) }
}

/// The program holds a device's primary context.
pub unsafe fn retain_primary(
    call: Call,
    real: unsafe extern "C" fn(*mut Context, Device) -> Status,
    ctx: *mut Context,
    device: Device,
) -> Status {
    // SAFETY: as above.
    unsafe { created(&call, real(ctx, device), ctx, device, true) }
}

/// The program destroys a context.
pub unsafe fn destroy(call: Call, real: unsafe extern "C" fn(Context) -> Status, ctx: Context) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(ctx) };
    if status == SUCCESS {
        call.note(|shim| shim.context_gone(call.vendor, ctx as u64));
    }
    status
}

/// The program lets go of a primary context; it goes with its last holder.
pub unsafe fn release_primary(call: Call, real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(device) };
    if status == SUCCESS {
        call.note(|shim| {
            if backend::of(call.vendor).primary_active(device) == Some(false) {
                shim.primary_gone(call.vendor, device);
            }
        });
    }
    status
}

/// The program resets a primary context, whoever holds it.
pub unsafe fn reset_primary(call: Call, real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(device) };
    if status == SUCCESS {
        call.note(|shim| shim.primary_gone(call.vendor, device));
    }
    status
}
