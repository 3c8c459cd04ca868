//! Device memory: plain, pitched, managed, stream-ordered.

use super::{freed, made, written};
use crate::call::Call;
use crate::gate;
use crate::pool;
use crate::pool::quota::Reserved;
use crate::progress::activity;
use crate::progress::queries;
use crate::reclaim::{self, again, bounded, room_for};
use crate::records;
use crate::registry::live::Class;
use crate::stranded;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{AllocKind, Vendor};
use std::ffi::c_uint;

/// The program asks for device memory.
#[inline(always)]
pub(crate) unsafe fn alloc(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
) -> Status {
    // SAFETY: rule of the call: the arguments go on as they came. Rule of out-parameters: `ptr` is
    // NULL or takes an address, also from the pool.
    unsafe { if serve(&call, ptr, bytes) { SUCCESS } else { alloc_slow(call, real, ptr, bytes) } }
}

/// Serves a request from an idle block of the thread's own. False: nothing was done.
///
/// # Safety
/// Rule of out-parameters: `ptr` is NULL or takes an address.
#[inline(always)]
pub(super) unsafe fn serve(call: &Call, ptr: *mut DevicePtr, bytes: usize) -> bool {
    // SAFETY: our caller vouches for the program's out-parameter.
    let (Some(pool), Some(out)) = (pool::of(call.vendor), unsafe { ptr.as_mut() }) else { return false };
    let Some(addr) = pool.hit(call, bytes as u64) else { return false };
    *out = addr;
    true
}

/// Takes a block of the thread's own back. False: nothing was done.
#[inline(always)]
pub(super) fn take_back(vendor: Vendor, ptr: DevicePtr) -> bool {
    pool::of(vendor).is_some_and(|pool| pool.take_back(ptr))
}

/// A function of its own, so that the fast path needs few registers.
#[inline(never)]
unsafe fn alloc_slow(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
) -> Status {
    // SAFETY: rule of the call: our caller is the hook and passes the program's arguments. Rule of
    // out-parameters: `ptr` is NULL or takes an address.
    unsafe {
        if let Some(status) = pool::open(call.vendor).and_then(|pool| reclaim::alloc(pool, &call, real, ptr, bytes)) {
            return status;
        }
        // The pool steps aside, but the quota still holds. Idle blocks make way for the request.
        let mut room = None;
        let limited = || {
            room = room_in_limit(&call, ptr, bytes);
            if room.is_some() { again(&call, bytes, || real(ptr, bytes)) } else { OUT_OF_MEMORY }
        };
        let status = stranded::watched(&call, bytes as u64, ptr, limited);
        made(&call, status, AllocKind::Device, Class::Address, ptr, bytes, 0, 0);
        status
    }
}

/// Room in the quota for a request, which is held until the request is counted. `None` if there is no room. Where the
/// driver may refuse the request for another reason (as while something captures), it is left to the driver.
fn room_in_limit(call: &Call, ptr: *const DevicePtr, bytes: usize) -> Option<Reserved> {
    let asks = !ptr.is_null() && bytes != 0 && !queries::capturing();
    if asks { room_for(call, bytes as u64) } else { Some(Reserved::none()) }
}

/// The program asks for device memory with HIP's flags (fine-grained, uncached, signals).
pub(crate) unsafe fn alloc_with_flags(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, c_uint) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let (status, _room) = bounded(&call, bytes, || real(ptr, bytes, flags));
        made(&call, status, AllocKind::Device, Class::Address, ptr, bytes, 0, u64::from(flags));
        status
    }
}

/// Bytes of pitched memory, computed before the library says how long its rows are. At least as many as it will be.
fn rows(width: usize, height: usize) -> usize {
    /// All known devices pad rows to a multiple of at most so many bytes.
    const PITCH: usize = 512;
    width.checked_next_multiple_of(PITCH).unwrap_or(width).saturating_mul(height)
}

/// The program asks for rows of device memory. They take pitch × height bytes.
pub(crate) unsafe fn alloc_pitch(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, *mut usize, usize, usize, c_uint) -> Status,
    ptr: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came, `ptr` and `pitch` among
    // them, which are the out-parameters.
    unsafe {
        let (status, _room) = bounded(&call, rows(width, height), || real(ptr, pitch, width, height, element));
        pitched(&call, status, ptr, pitch, width, height)
    }
}

/// As [`alloc_pitch`], in the runtime's shape.
pub(crate) unsafe fn alloc_pitch_4(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, *mut usize, usize, usize) -> Status,
    ptr: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came, `ptr` and `pitch` among
    // them, which are the out-parameters.
    unsafe {
        let (status, _room) = bounded(&call, rows(width, height), || real(ptr, pitch, width, height));
        pitched(&call, status, ptr, pitch, width, height)
    }
}

/// # Safety
/// `ptr` and `pitch` are the program's out-parameters of a call that answered `status`.
unsafe fn pitched(
    call: &Call,
    status: Status,
    ptr: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Status {
    // SAFETY: rule of out-parameters: our caller passes the program's `ptr` and `pitch` and the
    // status of its call.
    unsafe {
        let pitch = written(status, pitch).unwrap_or(width);
        made(call, status, AllocKind::Pitch, Class::Address, ptr, pitch.saturating_mul(height), 0, pitch as u64);
    }
    status
}

/// The program asks for a pitched volume.
pub(crate) unsafe fn alloc_3d(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut PitchedPtr, Extent) -> Status,
    ptr: *mut PitchedPtr,
    extent: Extent,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came. Rule of out-parameters:
    // `ptr` is read only after success.
    unsafe {
        let bytes = rows(extent.width, extent.height.saturating_mul(extent.depth));
        let (status, _room) = bounded(&call, bytes, || real(ptr, extent));
        let rows = extent.height.saturating_mul(extent.depth);
        match written(status, ptr) {
            Some(made_at) => {
                let bytes = made_at.pitch.saturating_mul(rows);
                made(&call, status, AllocKind::Pitch, Class::Address, &made_at.ptr, bytes, 0, made_at.pitch as u64);
            }
            None => made(
                &call,
                status,
                AllocKind::Pitch,
                Class::Address,
                std::ptr::null(),
                extent.width.saturating_mul(rows),
                0,
                0,
            ),
        }
        status
    }
}

/// The program asks for managed memory.
pub(crate) unsafe fn alloc_managed(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, c_uint) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let status = again(&call, bytes, || real(ptr, bytes, flags));
        made(&call, status, AllocKind::Managed, Class::Address, ptr, bytes, 0, u64::from(flags));
        status
    }
}

/// The program asks for memory in stream order.
pub(crate) unsafe fn alloc_async(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, Stream) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    stream: Stream,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let (status, _room) = bounded(&call, bytes, || activity::submit(|| real(ptr, bytes, stream)));
        made(&call, status, AllocKind::Async, Class::Address, ptr, bytes, stream as u64, 0);
        status
    }
}

/// The program asks for memory of one of its pools, in stream order.
pub(crate) unsafe fn alloc_from_pool(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, MemPool, Stream) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    pool: MemPool,
    stream: Stream,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let (status, _room) = bounded(&call, bytes, || activity::submit(|| real(ptr, bytes, pool, stream)));
        made(&call, status, AllocKind::Async, Class::Address, ptr, bytes, stream as u64, pool as u64);
        status
    }
}

/// The program frees memory. This also serves stream-ordered, managed and externally mapped memory. The real function
/// answers for pointers that are none of these.
#[inline(always)]
pub(crate) unsafe fn free(
    call: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr) -> Status,
    ptr: DevicePtr,
) -> Status {
    if take_back(call.vendor, ptr) {
        return SUCCESS;
    }
    // SAFETY: rule of the call: `real` and `ptr` go on as they came.
    unsafe { free_slow(call, real, ptr) }
}

/// A function of its own, so that the fast path needs few registers.
#[inline(never)]
unsafe fn free_slow(call: Call, real: unsafe extern "C-unwind" fn(DevicePtr) -> Status, ptr: DevicePtr) -> Status {
    // SAFETY: rule of the call: `real` gets the address that the program frees, or the block's own
    // that stands behind it.
    let real = |ptr| unsafe { real(ptr) };
    let pooled = pool::of(call.vendor).and_then(|pool| pool.free(&call, ptr, real));
    pooled.unwrap_or_else(|| freed(Class::Address, ptr, || real(ptr)))
}

/// The program frees memory in stream order.
pub(crate) unsafe fn free_async(
    call: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr, Stream) -> Status,
    ptr: DevicePtr,
    stream: Stream,
) -> Status {
    // SAFETY: rule of the call: `real` gets the address that the program frees, or the block's own
    // that stands behind it, and the program's stream.
    let real = |ptr| activity::submit(|| unsafe { real(ptr, stream) });
    let pooled = pool::of(call.vendor).and_then(|pool| pool.free_async(ptr, real));
    pooled.unwrap_or_else(|| freed(Class::Address, ptr, || real(ptr)))
}

/// The program asks how much is free. The answer is kept, so that we need not ask ourselves.
pub(crate) unsafe fn get_info(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut usize, *mut usize) -> Status,
    free: *mut usize,
    total: *mut usize,
) -> Status {
    // SAFETY: rule of the call: `real` gets both out-parameters as they came. Rule of
    // out-parameters: they are read and written only after success.
    unsafe {
        let status = real(free, total);
        if let (SUCCESS, Some(free), Some(total)) = (status, free.as_mut(), total.as_mut()) {
            gate::note(|shim| records::contexts::program_asked(shim, call.vendor, *free as u64, *total as u64));
            pool::answers::memory_info(&call, free, total);
        }
        status
    }
}
