//! Streams.

use super::{attributes, green, written};
use crate::call::Call;
use crate::graphs;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

/// # Safety
/// `stream` is the program's out-parameter of a call that answered `status`.
pub(super) unsafe fn created(call: &Call, status: Status, stream: *mut Stream, flags: u32, priority: i32) -> Status {
    // SAFETY: the program's out-parameter, written if the call succeeded.
    if let Some(stream) = unsafe { written(stream) }.filter(|_| status == SUCCESS) {
        call.note(|shim| shim.stream_created(call, stream as u64, flags, priority));
    }
    status
}

/// The program makes a stream, in the runtime's shortest form.
pub unsafe fn create_plain(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Stream) -> Status,
    stream: *mut Stream,
) -> Status {
    // SAFETY: the program's own call; `stream` is its out-parameter.
    unsafe { created(&call, real(stream), stream, 0, 0) }
}

/// The program makes a stream.
pub unsafe fn create(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Stream, c_uint) -> Status,
    stream: *mut Stream,
    flags: c_uint,
) -> Status {
    // SAFETY: as above.
    unsafe { created(&call, real(stream, flags), stream, flags, 0) }
}

/// The program makes a stream with a priority.
pub unsafe fn create_with_priority(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Stream, c_uint, c_int) -> Status,
    stream: *mut Stream,
    flags: c_uint,
    priority: c_int,
) -> Status {
    // SAFETY: as above.
    unsafe { created(&call, real(stream, flags, priority), stream, flags, priority) }
}

/// The program destroys a stream.
pub unsafe fn destroy(call: Call, real: unsafe extern "C-unwind" fn(Stream) -> Status, stream: Stream) -> Status {
    let entry = call.note(|shim| shim.stream_going(call.vendor, stream as u64)).flatten();
    let cache = graphs::cache(call.vendor).filter(|_| !stream.is_null());
    let no_looks = cache.map(|cache| cache.stream_going(stream));
    // SAFETY: the program's own call.
    let status = unsafe { real(stream) };
    drop(no_looks);
    if status == SUCCESS {
        call.note(|_| green::stream_gone(stream));
    }
    if let Some(entry) = entry {
        call.note(|shim| shim.stream_destroyed(call.vendor, stream as u64, entry, status));
    }
    status
}

/// The program makes a stream for some of the device's compute units (HIP).
pub unsafe fn create_masked(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Stream, c_uint, *const c_uint) -> Status,
    stream: *mut Stream,
    words: c_uint,
    mask: *const c_uint,
) -> Status {
    // SAFETY: the program's own call; `stream` is its out-parameter.
    unsafe { created(&call, real(stream, words, mask), stream, 0, 0) }
}

/// The program sets an attribute of a stream: kernels that are captured from it may have it.
pub unsafe fn set_attribute(
    _: Call,
    real: unsafe extern "C-unwind" fn(Stream, c_int, Opaque) -> Status,
    stream: Stream,
    attribute: c_int,
    value: Opaque,
) -> Status {
    attributes::to_stream(attribute as u32);
    // SAFETY: the program's own call.
    unsafe { real(stream, attribute, value) }
}
