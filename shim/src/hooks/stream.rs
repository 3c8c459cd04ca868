//! Streams.

use super::{attributes, code, written};
use crate::backend::green;
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::records::{self, driver_memory};
use gpumem_abi::types::*;
use gpumem_wire::kinds::Taken;
use std::ffi::{c_int, c_uint};

/// # Safety
/// `stream` is the program's out-parameter of a call that answered `status`.
pub(super) unsafe fn created(call: &Call, status: Status, stream: *mut Stream, flags: u32, priority: i32) -> Status {
    // SAFETY: rule of out-parameters: our caller passes the program's `stream` and the status of
    // its call.
    if let Some(stream) = unsafe { written(status, stream) } {
        gate::note(|shim| records::streams::created(shim, call, stream as u64, flags, priority));
    }
    status
}

/// The program makes a stream, in the runtime's shortest form.
pub(crate) unsafe fn create_plain(call: Call, real: Real<(*mut Stream,)>) -> Status {
    // SAFETY: rule of out-parameters: `stream` is that of the call.
    unsafe { created(&call, code::around_often(&call, Taken::Stream, || real.call()), real.args.0, 0, 0) }
}

/// The program makes a stream.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut Stream, c_uint)>) -> Status {
    let (stream, flags) = real.args;
    // SAFETY: rule of out-parameters: `stream` is that of the call.
    unsafe { created(&call, code::around_often(&call, Taken::Stream, || real.call()), stream, flags, 0) }
}

/// The program makes a stream with a priority.
pub(crate) unsafe fn create_with_priority(call: Call, real: Real<(*mut Stream, c_uint, c_int)>) -> Status {
    let (stream, flags, priority) = real.args;
    // SAFETY: rule of out-parameters: `stream` is that of the call.
    unsafe { created(&call, code::around_often(&call, Taken::Stream, || real.call()), stream, flags, priority) }
}

/// The program destroys a stream.
pub(crate) unsafe fn destroy(call: Call, real: Real<(Stream,)>) -> Status {
    let (stream,) = real.args;
    let entry = gate::note(|shim| records::streams::going(shim, call.vendor, stream as u64)).flatten();
    let cache = graphs::cache(call.vendor).filter(|_| !stream.is_null());
    let no_looks = cache.map(|cache| cache.stream_going(stream));
    let before = gate::record_if_started(|shim| driver_memory::look_in_share(shim, call.vendor)).flatten();
    let status = real.call();
    drop(no_looks);
    if let Some(before) = before {
        gate::note(|shim| driver_memory::given_back(shim, &call, &before, &[Taken::Stream]));
    }
    if status == SUCCESS {
        gate::note(|_| green::stream_gone(stream));
    }
    if let Some(entry) = entry {
        gate::note(|shim| records::streams::destroyed(shim, call.vendor, stream as u64, entry, status));
    }
    status
}

/// The program makes a stream for some of the device's compute units (HIP).
pub(crate) unsafe fn create_masked(call: Call, real: Real<(*mut Stream, c_uint, *const c_uint)>) -> Status {
    let (stream, ..) = real.args;
    // SAFETY: rule of out-parameters: `stream` is that of the call.
    unsafe { created(&call, real.call(), stream, 0, 0) }
}

/// The program sets an attribute of a stream. Kernels that are captured from the stream may have it.
pub(crate) unsafe fn set_attribute(_: Call, real: Real<(Stream, c_int, Opaque)>) -> Status {
    let (_, attribute, _) = real.args;
    attributes::to_stream(attribute as u32);
    real.call()
}
