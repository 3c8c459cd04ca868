//! Green contexts. Each gives the device's primary context a share of the device's units, and holds the primary
//! context.
//!
//! Memory and execs that are made in a green context belong to the primary context and stay when the green one ends.
//! Its streams answer 709 from then on, and their captures have ended. The primary context ends with its last holder.
//! (NVIDIA, CUDA driver API, cuGreenCtxDestroy; streams and execs as measured on an H200, driver 580.)

use super::{context, stream, written};
use crate::backend::green::{GREENS, Green, stands_for, with};
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs::ExecStore;
use crate::pool;
use crate::process::threads;
use crate::progress::device;
use crate::records;
use crate::start;
use crate::{backend, graphs};
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`
const DESTROYED: Status = 709;

/// The program makes a green context, which holds the device's primary context.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut Context, Opaque, Device, c_uint)>) -> Status {
    let (green, _, device, _) = real.args;
    // Another thread may be releasing the last hold just now.
    let _stay =
        device::stay(gate::note(|shim| records::contexts::primaries(shim, call.vendor, device)).unwrap_or_default());
    // SAFETY: rule of out-parameters: `green` is read only after success.
    unsafe {
        let status = real.call();
        if let Some(green) = written(status, green) {
            let made = Green { handle: green as u64, device, context: None, streams: Vec::new() };
            start::record(|_| GREENS.locked().push(made));
        }
        status
    }
}

/// The program asks for the context that stands for a green one. The primary context and its other green ones may use
/// memory that the program allocates there. But an event behind this green context's work covers no other context's
/// work. Source: NVIDIA, CUDA driver API, cuCtxRecordEvent.
pub(crate) unsafe fn to_context(call: Call, real: Real<(*mut Context, Context)>) -> Status {
    let (ctx, green) = real.args;
    // SAFETY: rule of out-parameters: `ctx` is read only after success.
    unsafe {
        let status = real.call();
        if let Some(ctx) = written(status, ctx) {
            pool::peer_access_enabled();
            let device = stands_for(ctx as u64, green);
            // This context also ends when the primary one ends.
            start::record(|shim| records::contexts::of_handle(shim, call.vendor, ctx as u64, device, true));
        }
        status
    }
}

/// The program makes a stream of a green context.
pub(crate) unsafe fn create_stream(call: Call, real: Real<(*mut Stream, Context, c_uint, c_int)>) -> Status {
    let (out, green, flags, priority) = real.args;
    // SAFETY: rule of out-parameters: `out` is read only after success.
    unsafe {
        let status = stream::created(&call, real.call(), out, flags, priority);
        if let Some(made) = written(status, out) {
            with(green, |green| green.streams.push(made as u64));
        }
        status
    }
}

/// The program destroys a green context.
pub(crate) unsafe fn destroy(call: Call, real: Real<(Context,)>) -> Status {
    let known = gate::note(|_| {
        let mut greens = GREENS.locked();
        let at = greens.iter().position(|its| its.handle == real.args.0 as u64)?;
        Some(greens.swap_remove(at))
    });
    let Some(known) = known.flatten() else {
        return real.call();
    };
    threads::context_changes();
    let own = known.context;
    let _closed = context::close_primary(&call, known.device);
    let mut streams = known.streams.clone();
    let going = own.and_then(|own| {
        gate::note(|shim| {
            streams.extend(records::streams::of(shim, call.vendor, own));
            records::contexts::going(shim, call.vendor, own)
        })
        .flatten()
    });
    // Neither the pool nor the cache keeps anything in a green context: both leave it to the driver.
    let cache = graphs::cache(call.vendor);
    // From now on events tell when the launches on these streams complete.
    let left =
        |cache: &'static ExecStore| streams.iter().map(|&its| cache.stream_going(its as Stream)).collect::<Vec<_>>();
    let no_looks = cache.map(left);
    let status = real.call();
    drop(no_looks);
    if status != SUCCESS {
        gate::note(|shim| {
            if let (Some(own), Some(going)) = (own, going) {
                records::contexts::stays(shim, call.vendor, own, going);
            }
            GREENS.locked().push(known);
        });
        return status;
    }
    gate::note(|shim| {
        streams.iter().for_each(|&its| records::streams::capture_ended(shim, call.vendor, its, 0, DESTROYED));
        if let (Some(own), Some(going)) = (own, going) {
            super::context_end::green_ended(shim, known.device, own, going.context);
        }
    });
    if gate::note(|_| backend::of(call.vendor).primary_active(known.device) == Some(false)) == Some(true) {
        context::primary_gone(&call, known.device);
    }
    status
}
