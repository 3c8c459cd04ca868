//! Launch of a handle: with its resident exec, or with one that is made to hold the handle's content.

use super::ExecStore;
use super::handle::{Body, Handle, INVALID, Pending, context_of};
use super::real::{Lease, RealExec, StreamKey, key_by_handle, key_of};
use crate::backend;
use crate::backend::graphs::StreamArg;
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::process::threads;
use crate::progress::activity;
use crate::progress::queries::capturing;
use gpumem_abi::types::{GraphExec, OUT_OF_MEMORY, SUCCESS, Status, Stream};
use gpumem_wire::counters;
use gpumem_wire::kinds::Vendor;
use std::sync::atomic::Ordering::*;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`: a graph cannot be launched on a stream that captures.
const CAPTURE_UNSUPPORTED: Status = 900;

/// The library's launch.
pub(crate) type RealLaunch = unsafe extern "C-unwind" fn(GraphExec, Stream) -> Status;

/// Launches a handle, and counts the launch as a submission and in the records.
///
/// After the work since the last launch no data of the shim is in the processor's caches. So the cost is the number of
/// cache lines of code and data that the launch touches, and of their pages. Code that a launch with a resident exec
/// does not need is in separate functions.
///
/// # Safety
/// `real` is the library's launch, `to` the stream of the program's call.
#[inline(always)]
pub(crate) unsafe fn launch(cache: &'static ExecStore, real: RealLaunch, index: u32, to: StreamArg) -> Status {
    // SAFETY: the reference is used in this function alone, which runs on the thread that it belongs to. Our caller
    // vouches for `real` and the stream.
    unsafe {
        match threads::here() {
            Some(local) => launch_here(local, cache, real, index, to),
            None => launch_without_memory(cache, real, index, to),
        }
    }
}

/// As [`launch`], on a thread without memory for its state.
///
/// # Safety
/// As for [`launch`].
#[cold]
#[inline(never)]
unsafe fn launch_without_memory(cache: &'static ExecStore, real: RealLaunch, index: u32, to: StreamArg) -> Status {
    // SAFETY: our caller vouches for `real` and the stream.
    threads::local(|local| unsafe { launch_here(local, cache, real, index, to) })
}

/// As [`launch`], for a caller that has looked up its thread.
///
/// # Safety
/// As for [`launch`].
#[inline(always)]
unsafe fn launch_here(
    local: &threads::Local,
    cache: &'static ExecStore,
    real: RealLaunch,
    index: u32,
    to: StreamArg,
) -> Status {
    local.recorded();
    let Some(handle) = cache.handles().execs().get(index) else { return never_given() };
    let slot = handle.slot.load(Relaxed);
    let shim = gate::shim();
    if let Some(shim) = shim {
        shim.launches.begins(slot);
    }
    let stream_key = key_by_handle(to.stream).unwrap_or_else(|| key_of_default(cache.handles().vendor(), to));
    let submission = activity::begin_here(local);
    let (status, at_ns) = match shared(cache, handle, stream_key) {
        Some(exec) => {
            exec.marked.store(false, Relaxed);
            // SAFETY: while the lease is shared the exec stays this handle's, so it is alive. Our caller vouches for
            // `real` and the stream.
            let status = unsafe { real(exec.exec(), to.stream) };
            let at_ns = local.recent.now_ns();
            exec.used_ns.store(at_ns, Relaxed);
            exec.unshare();
            (status, at_ns)
        }
        // SAFETY: our caller vouches for `real` and the stream, and `launch_leased` asks for the
        // same.
        None => unsafe { launch_leased(cache, real, index, handle, to) },
    };
    drop(submission);
    if status != SUCCESS {
        return failed(status);
    }
    if let Some(shim) = shim.filter(|_| !local.busy.get()) {
        shim.launches.done(local.shard(), slot, at_ns);
    }
    status
}

/// Returns the exec of a handle with its lease shared, if a launch needs no more than that.
#[inline(always)]
fn shared(cache: &'static ExecStore, handle: &Handle, stream_key: StreamKey) -> Option<&'static RealExec> {
    let exec = handle.resident()?;
    // On another stream than that of the last launch, the exec's stream has to be changed, which one thread at a time
    // may do.
    let same_stream = || exec.stream_key.load(Relaxed) == stream_key;
    (!cache.is_pressed() && handle.real.share(exec, same_stream)).then_some(exec)
}

/// Returns the key of a default stream.
#[cold]
#[inline(never)]
fn key_of_default(vendor: Vendor, to: StreamArg) -> StreamKey {
    key_of(backend::named(vendor, to))
}

/// Returns the status for an index that no handle was ever made for.
#[cold]
#[inline(never)]
fn never_given() -> Status {
    failed(INVALID)
}

#[cold]
#[inline(never)]
fn failed(status: Status) -> Status {
    activity::saw(status);
    gate::record_if_started(|shim| shim.count(counters::LAUNCH_FAILURES, 1));
    status
}

/// Launches while the calls are allowed that a capture of this thread would forbid, because this does more than the
/// launch.
///
/// # Safety
/// As for [`launch`].
#[cold]
#[inline(never)]
unsafe fn launch_leased(
    cache: &'static ExecStore,
    real: RealLaunch,
    index: u32,
    handle: &Handle,
    to: StreamArg,
) -> (Status, u64) {
    let to = backend::named(cache.library().vendor, to);
    let _relaxed = cache.library().relax();
    // SAFETY: our caller vouches for `real` and the stream, and `launch_relaxed` asks for the
    // same.
    let status = unsafe { launch_relaxed(cache, real, index, handle, to) };
    (status, clock::now_ns())
}

/// # Safety
/// As for [`launch`].
unsafe fn launch_relaxed(
    cache: &'static ExecStore,
    real: RealLaunch,
    index: u32,
    handle: &Handle,
    to: StreamArg,
) -> Status {
    let body = lock(&handle.body);
    if let Some(status) = body.apart().ended {
        return status;
    }
    if body.class.is_none() {
        return INVALID;
    }
    let stream_key = key_of(to);
    let mut lease = match handle.lease() {
        Some(lease) => lease,
        None => match cache.missed(handle, &body, stream_key) {
            Ok(lease) => lease,
            // The program's own instantiate succeeded long ago, so an error of the shim must not be the answer to a
            // launch.
            Err(status) => {
                return match one_by_one(cache, handle, &body, to, stream_key) {
                    done @ (SUCCESS | CAPTURE_UNSUPPORTED) => done,
                    _ => status,
                };
            }
        },
    };
    let pending = cache.handles().wait_for_pending(handle, to, stream_key);
    // SAFETY: this thread holds the lease of the exec, so it is alive. Our caller vouches for `real` and the stream.
    let call = || match unsafe { real(lease.real().exec(), to.stream) } {
        SUCCESS => Ok(()),
        status => Err(status),
    };
    let done = match call() {
        Err(OUT_OF_MEMORY) => cache.again(context_of(&body), call),
        done => done,
    };
    let mut status = done.err().unwrap_or(SUCCESS);
    if status == OUT_OF_MEMORY && !body.apart().owned {
        status = one_by_one(cache, handle, &body, to, stream_key);
    }
    lease.real().used(clock::now_ns(), std::mem::take(&mut lease.body().stays));
    if status == SUCCESS {
        launched(cache, &mut lease, to, context_of(&body));
    }
    let waits = cache.handles().waited(handle, pending, status);
    match handle.resident() {
        // The launch that had to wait for the pending one was refused. If the handle kept this exec, its next launch
        // would not know that it has to wait.
        None if waits => drop(lease),
        _ => cache.handles().publish(lease, index, handle),
    }
    drop(body);
    // After a failed launch nothing may be queried, because the launch's error is the thread's last error.
    if status == SUCCESS && cache.is_over_bound() {
        cache.back_under_bounds_at_once();
    }
    status
}

/// Notes a launch of an exec on a stream.
fn launched(cache: &'static ExecStore, lease: &mut Lease, to: StreamArg, context: u64) {
    let (exec, stream_key) = (lease.real(), key_of(to));
    cache.completion().leave_stream(lease, stream_key);
    exec.stream_key.store(stream_key, Relaxed);
    let marked = cache.is_pressed() && cache.completion().mark_launch(lease, to, context);
    exec.marked.store(marked, Relaxed);
    if marked {
        exec.launched_ns.store(clock::precise_ns(), Relaxed);
    }
    lease.body().launched = true;
}

/// Submits the work of the nodes one by one, in the order of their edges, since there is no memory for an exec.
fn one_by_one(cache: &'static ExecStore, handle: &Handle, body: &Body, to: StreamArg, stream_key: StreamKey) -> Status {
    if capturing() && cache.library().calls.captures(to) {
        return CAPTURE_UNSUPPORTED;
    }
    let pending = cache.handles().wait_for_pending(handle, to, stream_key);
    let status = cache.sources().with_work(|work| {
        if !work.unfold(body) {
            return OUT_OF_MEMORY;
        }
        let target = std::mem::take(&mut work.target);
        let shape = body.class.as_ref().and_then(|class| class.shape.key.unpacked(&mut work.scratch));
        let status =
            shape.map_or(OUT_OF_MEMORY, |shape| cache.library().calls.run(shape, &target, &body.edits().disabled, to));
        work.target = target;
        status
    });
    cache.handles().waited(handle, pending, status);
    if status == SUCCESS {
        gate::record_if_started(|shim| shim.count(counters::ONE_BY_ONE, 1));
        // The handle's next launch has to wait for this one, with any exec. That matters more than the context that the
        // event belongs to.
        let completion = cache.completion();
        let mark = || completion.mark_in(context_of(body), None, to).or_else(|| cache.library().calls.mark(None, to));
        if let Some(event) = completion.query_stream(to, || true, mark).flatten() {
            cache.handles().set_pending(handle, Pending { event, stream_key });
        }
    }
    status
}
