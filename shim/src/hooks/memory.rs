//! Device memory: plain, pitched, managed, stream-ordered.

use super::graph_memory::in_capture;
use super::{get, written};
use crate::call::{Call, Real};
use crate::gate;
use crate::guard;
use crate::pool;
use crate::process::device_calls::DeviceCall;
use crate::progress::activity;
use crate::records;
use crate::records::registry::live::Class;
use crate::request::{self, Request, free as freed, place};
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{AllocKind, Vendor};
use std::ffi::c_uint;

/// The program asks for device memory.
#[inline(always)]
pub(crate) unsafe fn alloc(call: Call, real: Real<(*mut DevicePtr, usize)>) -> Status {
    let (ptr, bytes) = real.args;
    // SAFETY: rule of the call: the arguments go on as they came. Rule of out-parameters: `ptr` is
    // NULL or takes an address, also from the pool.
    unsafe { if serve(&call, ptr, bytes) { SUCCESS } else { alloc_slow(call, real.function, ptr, bytes) } }
}

/// Serves a request from an idle block in the thread's own cache. Returns false if nothing was done.
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

/// Takes back a block into the thread's own cache. Returns false if nothing was done.
#[inline(always)]
pub(super) fn take_back(vendor: Vendor, ptr: DevicePtr) -> bool {
    pool::of(vendor).is_some_and(|pool| pool.take_back(ptr))
}

/// A separate function, so that the fast path needs few registers.
#[inline(never)]
unsafe fn alloc_slow(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
) -> Status {
    // SAFETY: rule of the call: our caller is the hook and passes the program's arguments; `real` may also be asked for
    // more bytes. Rule of out-parameters: `ptr` is NULL or takes an address.
    unsafe { request::get_block(&start::Rooms, &call, bytes, ptr, |bytes| real(ptr, bytes)) }
}

/// The program asks for device memory with HIP's flags (fine-grained, uncached, signals).
pub(crate) unsafe fn alloc_with_flags(call: Call, real: Real<(*mut DevicePtr, usize, c_uint)>) -> Status {
    let (ptr, bytes, flags) = real.args;
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::Device, bytes as u64) };
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, ptr)) }
}

/// Returns the bytes of pitched memory before the library tells the length of its rows: at least as many as it will be.
fn rows(width: usize, height: usize) -> usize {
    /// All known devices pad rows to a multiple of at most this many bytes.
    const PITCH: usize = 512;
    width.checked_next_multiple_of(PITCH).unwrap_or(width).saturating_mul(height)
}

/// The program asks for rows of device memory. They take pitch × height bytes.
pub(crate) unsafe fn alloc_pitch(call: Call, real: Real<(*mut DevicePtr, *mut usize, usize, usize, c_uint)>) -> Status {
    let (ptr, pitch, width, height, _) = real.args;
    // SAFETY: rule of out-parameters: `ptr` and `pitch` are those of the call.
    unsafe { pitched(&call, ptr, pitch, width, height, || real.call()) }
}

/// As [`alloc_pitch`], with the runtime's parameters.
pub(crate) unsafe fn alloc_pitch_4(call: Call, real: Real<(*mut DevicePtr, *mut usize, usize, usize)>) -> Status {
    let (ptr, pitch, width, height) = real.args;
    // SAFETY: rule of out-parameters: `ptr` and `pitch` are those of the call.
    unsafe { pitched(&call, ptr, pitch, width, height, || real.call()) }
}

/// # Safety
/// `ptr` and `pitch` are the program's out-parameters of `real`.
unsafe fn pitched(
    call: &Call,
    ptr: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    real: impl FnMut() -> Status,
) -> Status {
    get(call, Request::new(AllocKind::Pitch, rows(width, height) as u64), real, |request, status| {
        // SAFETY: rule of out-parameters: our caller passes the program's `ptr` and `pitch`, and `status` is that of
        // their call.
        let (addr, pitch) = unsafe { (written(status, ptr), written(status, pitch).unwrap_or(width)) };
        (request.bytes, request.extra) = (pitch.saturating_mul(height) as u64, pitch as u64);
        addr
    })
}

/// The program asks for a pitched volume.
pub(crate) unsafe fn alloc_3d(call: Call, real: Real<(*mut PitchedPtr, Extent)>) -> Status {
    let (ptr, extent) = real.args;
    let height = extent.height.saturating_mul(extent.depth);
    let request = Request::new(AllocKind::Pitch, rows(extent.width, height) as u64);
    let real = || real.call();
    get(&call, request, real, |request, status| {
        // SAFETY: rule of out-parameters: `ptr` is read only after success.
        let made = unsafe { written(status, ptr) };
        let pitch = made.map_or(0, |made| made.pitch);
        let row = made.map_or(extent.width, |made| made.pitch);
        (request.bytes, request.extra) = (row.saturating_mul(height) as u64, pitch as u64);
        made.map(|made| made.ptr)
    })
}

/// The program asks for managed memory.
pub(crate) unsafe fn alloc_managed(call: Call, real: Real<(*mut DevicePtr, usize, c_uint)>) -> Status {
    let (ptr, bytes, flags) = real.args;
    let request = Request { extra: flags.into(), ..Request::new(AllocKind::Managed, bytes as u64) };
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, ptr)) }
}

/// The program asks for memory in stream order.
pub(crate) unsafe fn alloc_async(call: Call, real: Real<(*mut DevicePtr, usize, Stream)>) -> Status {
    let (ptr, bytes, stream) = real.args;
    let location = place::of_stream(&call, stream as u64);
    let request = Request { location, stream: stream as u64, ..Request::new(AllocKind::Async, bytes as u64) };
    let request = in_capture(&call, request);
    let real = || activity::submit(|| real.call());
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    get(&call, request, real, |_, status| unsafe { written(status, ptr) })
}

/// The program asks for memory of one of its pools, in stream order.
pub(crate) unsafe fn alloc_from_pool(call: Call, real: Real<(*mut DevicePtr, usize, MemPool, Stream)>) -> Status {
    let (ptr, bytes, pool, stream) = real.args;
    let (location, extra) = (place::of_pool(&call, pool as u64), pool as u64);
    let request = Request { location, extra, stream: stream as u64, ..Request::new(AllocKind::Async, bytes as u64) };
    let request = in_capture(&call, request);
    let real = || activity::submit(|| real.call());
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    get(&call, request, real, |_, status| unsafe { written(status, ptr) })
}

/// The program frees memory. This also serves stream-ordered, managed and externally mapped memory. For other pointers
/// the real function answers.
#[inline(always)]
pub(crate) unsafe fn free(call: Call, real: Real<(DevicePtr,)>) -> Status {
    let (ptr,) = real.args;
    if take_back(call.vendor, ptr) {
        return SUCCESS;
    }
    // SAFETY: rule of the call: `real` and `ptr` go on as they came.
    unsafe { free_slow(call, real.function, ptr) }
}

/// A separate function, so that the fast path needs few registers.
#[inline(never)]
unsafe fn free_slow(call: Call, real: unsafe extern "C-unwind" fn(DevicePtr) -> Status, ptr: DevicePtr) -> Status {
    let real = |ptr| {
        let _call = DeviceCall::begin();
        // SAFETY: rule of the call: `real` gets the address that the program frees, or the block's own
        // that stands behind it.
        unsafe { real(ptr) }
    };
    let pooled = pool::of(call.vendor).and_then(|pool| pool.free(&call, ptr, real));
    pooled.unwrap_or_else(|| freed(Class::Address, ptr, || real(ptr)))
}

/// The program frees memory in stream order.
pub(crate) unsafe fn free_async(call: Call, real: Real<(DevicePtr, Stream)>) -> Status {
    let (ptr, stream) = real.args;
    // SAFETY: rule of the call: `real` gets the address that the program frees, or the block's own
    // that stands behind it, and the program's stream.
    let real = |ptr| activity::submit(|| unsafe { real.with((ptr, stream)) });
    let pooled = pool::of(call.vendor).and_then(|pool| pool.free_async(ptr, real));
    pooled.unwrap_or_else(|| freed(Class::Address, ptr, || real(ptr)))
}

/// The program asks how much memory is free. The answer is kept, so that we need not ask ourselves.
pub(crate) unsafe fn get_info(call: Call, real: Real<(*mut usize, *mut usize)>) -> Status {
    let (free, total) = real.args;
    // SAFETY: rule of out-parameters: they are read and written only after success.
    unsafe {
        let status = real.call();
        if let (SUCCESS, Some(free), Some(total)) = (status, free.as_mut(), total.as_mut()) {
            gate::note(|shim| records::contexts::program_asked(shim, call.vendor, *free as u64, *total as u64));
            pool::answers::memory_info(&call, guard::new, free, total);
        }
        status
    }
}
