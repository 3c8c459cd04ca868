//! Contexts: creation, and the end of a context with all that belongs to it.

use super::{code, written};
use crate::backend;
use crate::backend::gates;
use crate::call::{Arguments, Call, Real};
use crate::gate;
use crate::graphs;
use crate::pool;
use crate::pool::context_end::{self, Leaving};
use crate::process::threads;
use crate::process::wiped::{Place, Word};
use crate::progress::{activity, device};
use crate::records::registry::contexts::Known;
use crate::records::registry::sites::Made;
use crate::records::{self, driver_memory};
use crate::request::for_driver;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{Severity, Taken};
use gpumem_wire::location::Location;
use gpumem_wire::units::bytes;
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Makes a call that gives the program a context.
///
/// # Safety
/// `ctx` is the program's out-parameter of that call.
unsafe fn created(
    call: &Call,
    real: impl FnMut() -> Status,
    ctx: *mut Context,
    device: Device,
    primary: bool,
) -> Status {
    // A context's memory is measured only if the process has another context on the device. Without one the device
    // cannot be asked.
    let before = gate::note(|shim| {
        let is_there = primary && !records::contexts::primaries(shim, call.vendor, device).is_empty();
        if is_there { None } else { driver_memory::look_on(shim, call.vendor, device as u32) }
    });
    if gates::is_member() {
        // The first context may find no memory, and what asks for some needs the ledger.
        start::record(|_| ());
    }
    let place = u16::try_from(device).map_or(Location::OwnDevice, Location::Device);
    let status = for_driver(call, place, real);
    // After the look, which remembers the context that was current then.
    threads::context_changes();
    // SAFETY: rule of out-parameters: our caller passes the program's `ctx`, and `status` is its call's.
    if let Some(ctx) = unsafe { written(status, ctx) } {
        start::record(|shim| {
            let context = records::contexts::of_handle(shim, call.vendor, ctx as u64, Some(device), primary);
            if !primary {
                records::contexts::made_at(shim, context, shim.site(call.site(), Made::Stream));
            }
            if let Some(before) = before.flatten() {
                driver_memory::since(shim, call, &before, Taken::Context, Some(context));
            }
        });
    }
    status
}

/// The program makes another context current, or goes back to the one before.
pub(crate) unsafe fn set_current<A: Arguments>(_: Call, real: Real<A>) -> Status {
    threads::context_changes();
    real.call()
}

/// Limits of a context for which the driver takes device memory that no allocation shows, in the order of `CUlimit`
/// (NVIDIA's reference of cuCtxSetLimit).
const LIMITS: [&str; 3] = ["stack of a GPU thread", "buffer of printf", "heap of malloc in kernels"];

/// The last reported value of each of [`LIMITS`]. A program that sets the same value again and again is reported once.
static TOLD: [AtomicU64; LIMITS.len()] = [const { AtomicU64::new(0) }; LIMITS.len()];

/// The program sets a limit of the current context. `value` is in bytes for all of [`LIMITS`].
pub(crate) unsafe fn set_limit(call: Call, real: Real<(c_uint, usize)>) -> Status {
    let (limit, value) = real.args;
    let status = code::around(&call, Taken::Limit, || real.call());
    if status == SUCCESS
        && let (Some(what), Some(told)) = (LIMITS.get(limit as usize), TOLD.get(limit as usize))
        && told.swap(value as u64, Relaxed) != value as u64
    {
        let line = format!("cuCtxSetLimit: {what}: {}", bytes(value as u64));
        gate::note(|shim| shim.message(Severity::Info, &line));
    }
    status
}

/// Contexts that the program has attached to since it made them, one entry for each time.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const ATTACHED: Place<Mutex<Vec<u64>>> = unsafe { Place::new(Word::AttachedContexts) };

/// The program attaches to a context once more.
pub(crate) unsafe fn attach(_call: Call, real: Real<(*mut Context, c_uint)>) -> Status {
    let (ctx, _) = real.args;
    threads::context_changes();
    let status = real.call();
    // SAFETY: rule of out-parameters: `ctx` is the program's, and `status` its call's.
    if let Some(ctx) = unsafe { written(status, ctx) } {
        gate::note(|_| ATTACHED.locked().push(ctx as u64));
    }
    status
}

/// The program ends one use of a context. The context ends with its last use (NVIDIA's reference of cuCtxDetach).
pub(crate) unsafe fn detach(call: Call, real: Real<(Context,)>) -> Status {
    let used_more = gate::note(|_| {
        let mut attached = ATTACHED.locked();
        let at = attached.iter().position(|&known| known == real.args.0 as u64)?;
        Some(attached.swap_remove(at))
    });
    let Some(used_more) = used_more.flatten() else {
        // SAFETY: rule of the call: we are still in it. `destroy` takes the same argument, and
        // cuCtxDestroy has the same signature as cuCtxDetach.
        return unsafe { destroy(call, real) };
    };
    threads::context_changes();
    let status = real.call();
    if status != SUCCESS {
        gate::note(|_| ATTACHED.locked().push(used_more));
    }
    status
}

/// The program makes a context.
pub(crate) unsafe fn create_v2(call: Call, real: Real<(*mut Context, c_uint, Device)>) -> Status {
    let (ctx, _, device) = real.args;
    // SAFETY: rule of out-parameters: `ctx` is that of the call.
    unsafe { created(&call, || real.call(), ctx, device, false) }
}

/// The program makes a context with execution affinity.
pub(crate) unsafe fn create_v3(call: Call, real: Real<(*mut Context, Opaque, c_int, c_uint, Device)>) -> Status {
    let (ctx, .., device) = real.args;
    // SAFETY: rule of out-parameters: `ctx` is that of the call.
    unsafe { created(&call, || real.call(), ctx, device, false) }
}

/// The program makes a context with parameters.
pub(crate) unsafe fn create_v4(call: Call, real: Real<(*mut Context, Opaque, c_uint, Device)>) -> Status {
    let (ctx, .., device) = real.args;
    // SAFETY: rule of out-parameters: `ctx` is that of the call.
    unsafe { created(&call, || real.call(), ctx, device, false) }
}

/// The program holds a device's primary context.
pub(crate) unsafe fn retain_primary(call: Call, real: Real<(*mut Context, Device)>) -> Status {
    let (ctx, device) = real.args;
    // Another thread may be releasing the last hold just now.
    let _stay = device::stay(primary_of(&call, device));
    // SAFETY: rule of out-parameters: `ctx` is that of the call.
    unsafe { created(&call, || real.call(), ctx, device, true) }
}

/// The program destroys a context.
pub(crate) unsafe fn destroy(call: Call, real: Real<(Context,)>) -> Status {
    let handle = real.args.0 as u64;
    threads::context_changes();
    let _closed = device::close([handle]);
    let going = || gate::note(|shim| records::contexts::going(shim, call.vendor, handle)).flatten();
    // The driver refuses to destroy a primary context, so everything in it stays.
    if gate::note(|shim| records::contexts::is_primary(shim, call.vendor, handle)) == Some(true) {
        let status = real.call();
        if status == SUCCESS {
            gone(&call, going().map(|context| (handle, context)).into_iter().collect());
        }
        return status;
    }
    let going = going();
    let leaving = all_goes(&call, handle, false);
    let status = real.call();
    ended(&call, status, going.map(|context| (handle, context)), leaving);
    status
}

/// Releases what the graph cache and the pool keep in a context. Returns the blocks, for [`ended`].
fn all_goes(call: &Call, context: u64, gone: bool) -> Option<Leaving<'static>> {
    let leaving = pool::of(call.vendor).map(|pool| context_end::begin(&pool.releaser, context));
    gate::note(|_| backend::params::forget());
    if let Some(cache) = graphs::cache(call.vendor) {
        cache.context_going(context, gone);
    }
    leaving
}

/// Ends the records of contexts that the library has ended.
fn gone(call: &Call, contexts: Vec<(u64, Known)>) {
    let leaving: Vec<_> = contexts.iter().filter_map(|&(context, _)| all_goes(call, context, true)).collect();
    ended(call, SUCCESS, contexts, leaving);
}

/// Keeps our own threads from looking at a device's primary context while the result lives.
pub(super) fn close_primary(call: &Call, device: Device) -> device::NoHolds {
    device::close(primary_of(call, device))
}

/// Returns the names of a device's primary context: its handle, if that was met, and a name for the device. A release
/// removes the context from the records before its contents. In between, another thread may bring it back, under the
/// same handle.
fn primary_of(call: &Call, device: Device) -> Vec<u64> {
    let mut names = gate::note(|shim| records::contexts::primaries(shim, call.vendor, device)).unwrap_or_default();
    names.push(device::primary_of(device));
    names
}

/// Records the end of contexts that were removed before it, or puts them back if it failed.
fn ended(
    call: &Call,
    status: Status,
    going: impl IntoIterator<Item = (u64, Known)>,
    leaving: impl IntoIterator<Item = Leaving<'static>>,
) {
    leaving.into_iter().for_each(if status == SUCCESS { Leaving::gone } else { Leaving::stay });
    for (handle, known) in going {
        gate::note(|shim| match status {
            SUCCESS => {
                ATTACHED.locked().retain(|&attached| attached != handle);
                super::context_end::ended(shim, handle, known.context);
            }
            _ => records::contexts::stays(shim, call.vendor, handle, known),
        });
    }
    // It is unknown which context the error belonged to. Another context may still report it.
    if status == SUCCESS && activity::broken() && !device::is_any_broken(call.vendor) {
        activity::context_ended();
    }
}

/// The program releases a primary context. The context ends with its last holder.
pub(crate) unsafe fn release_primary(call: Call, real: Real<(Device,)>) -> Status {
    let (device,) = real.args;
    let _closed = close_primary(&call, device);
    let status = real.call();
    let is_gone = status == SUCCESS
        && gate::note(|_| backend::of(call.vendor).primary_active(device) == Some(false)).unwrap_or(false);
    if is_gone {
        primary_gone(&call, device);
    }
    status
}

/// Ends the records of a device's primary context, which its last holder has released.
pub(super) fn primary_gone(call: &Call, device: Device) {
    gone(call, gate::note(|shim| records::contexts::primary_going(shim, call.vendor, device)).unwrap_or_default());
    gate::note(|shim| super::context_end::greens_ended(shim, device));
}

/// The program resets a primary context, regardless of other holders.
pub(crate) unsafe fn reset_primary(call: Call, real: Real<(Device,)>) -> Status {
    let (device,) = real.args;
    let _closed = close_primary(&call, device);
    let going = gate::note(|shim| records::contexts::primary_going(shim, call.vendor, device)).unwrap_or_default();
    let leaving: Vec<_> = going.iter().filter_map(|&(context, _)| all_goes(&call, context, false)).collect();
    let status = real.call();
    ended(&call, status, going, leaving);
    if status == SUCCESS {
        gate::note(|shim| super::context_end::greens_ended(shim, device));
    }
    status
}

/// The program resets HIP's current device.
pub(crate) unsafe fn hip_reset(call: Call, real: Real<()>) -> Status {
    let device = gate::note(|_| backend::of(call.vendor).current_device()).flatten();
    hip_resets(&call, device, || real.call())
}

/// The program resets one of HIP's devices.
pub(crate) unsafe fn hip_reset_device(call: Call, real: Real<(Device,)>) -> Status {
    hip_resets(&call, Some(real.args.0), || real.call())
}

fn hip_resets(call: &Call, device: Option<Device>, real: impl FnOnce() -> Status) -> Status {
    let handle = device.map(backend::hip_context);
    let leaving = handle.and_then(|handle| all_goes(call, handle, false));
    let going = |handle| gate::note(|shim| records::contexts::going(shim, call.vendor, handle)).flatten();
    let going = handle.and_then(|handle| Some((handle, going(handle)?)));
    let status = real();
    ended(call, status, going, leaving);
    status
}
