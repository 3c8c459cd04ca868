//! Executable graphs: launch, update, destruction. Handles of ours go to the cache ([`crate::graphs`]), the library's
//! own to the library.

use super::graph_memory;
use crate::backend::graphs::StreamArg;
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::graphs::ExecStore;
use crate::graphs::change::{self, InUse, Updated};
use crate::graphs::launch::{self as launches, RealLaunch};
use crate::guard::{self, LaunchKind};
use crate::process::device_calls::DeviceCall;
use crate::progress::activity;
use crate::records;
use crate::records::execs::Update;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{Pinned, Vendor};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering::Relaxed;

/// The answer for a handle of ours in a process without a cache: a child of a fork, where the driver does not work.
pub(super) const NOT_INITIALIZED: Status = 3;
/// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`.
const UPDATE_FAILURE: Status = 910;
/// `CU_GRAPH_EXEC_UPDATE_SUCCESS`, `…_ERROR_TOPOLOGY_CHANGED`, `…_ERROR_NOT_SUPPORTED`.
const UPDATED: c_int = 0;
const TOPOLOGY_CHANGED: c_int = 2;
const NOT_SUPPORTED: c_int = 6;

/// Returns the cache and the index of a handle of ours; `None` for a handle of the library.
///
/// # Errors
/// The answer to a call with a handle of ours if there is no cache.
#[inline(always)]
pub(super) fn ours(call: &Call, exec: GraphExec) -> Result<Option<(&'static ExecStore, u32)>, Status> {
    match graphs::exec_index(call.vendor, exec) {
        Some(index) => graphs::cache(call.vendor).map(|cache| Some((cache, index))).ok_or(NOT_INITIALIZED),
        None => Ok(None),
    }
}

/// Makes the guard note a launch, and report it if its graph refers to freed memory.
#[cold]
fn look_at(call: &Call, exec: GraphExec, to: StreamArg) {
    guard::note_launch(call, to.stream, LaunchKind::Graph, &[]);
    guard::of_launched_graph(call.vendor, exec);
}

#[inline(always)]
unsafe fn launch_on(call: Call, real: RealLaunch, exec: GraphExec, to: StreamArg) -> Status {
    if guard::is_on() {
        look_at(&call, exec, to);
    }
    match ours(&call, exec) {
        Ok(Some((cache, index))) => {
            // SAFETY: rule of the call: `real` is the launch that the program called. Rule of
            // handles: the cache gives it a real exec. The stream is the program's.
            unsafe { launches::launch(cache, real, index, to) }
        }
        // SAFETY: rule of the call: `real` gets the program's exec, which is not one of ours,
        // and its stream.
        Ok(None) => unsafe { launch_of_library(real, exec, to.stream) },
        Err(status) => status,
    }
}

/// The program launches one of the library's own execs.
///
/// # Safety
/// `real` is the launch that the program called, with this library exec and this stream.
#[inline(never)]
unsafe fn launch_of_library(real: RealLaunch, exec: GraphExec, stream: Stream) -> Status {
    // For its memory nodes, and more than they need: 32 MiB at a time.
    let _call = gate::shim().filter(|shim| shim.registry.memory_nodes.load(Relaxed)).map(|_| DeviceCall::begin());
    // SAFETY: our caller vouches for `real`, and that exec and stream are the program's.
    let status = activity::submit(|| unsafe { real(exec, stream) });
    activity::saw(status);
    gate::note(|shim| records::execs::launched(shim, exec as u64, status));
    status
}

/// The program launches a graph.
#[inline(always)]
pub(crate) unsafe fn launch(call: Call, real: Real<(GraphExec, Stream)>) -> Status {
    let (exec, stream) = real.args;
    // SAFETY: rule of the call: the arguments go on as they came, and the default stream is the
    // legacy one.
    unsafe { launch_on(call, real.function, exec, StreamArg::new(stream, false)) }
}

/// As [`launch`], but the default stream is the thread's own.
#[inline(always)]
pub(crate) unsafe fn launch_ptsz(call: Call, real: Real<(GraphExec, Stream)>) -> Status {
    let (exec, stream) = real.args;
    // SAFETY: rule of the call: the arguments go on as they came, and the default stream is the
    // thread's own.
    unsafe { launch_on(call, real.function, exec, StreamArg::new(stream, true)) }
}

/// The program uploads an exec. The upload waits for no launch of the exec, and no launch waits for the upload.
pub(crate) unsafe fn upload(call: Call, real: Real<(GraphExec, Stream)>) -> Status {
    let (exec, stream) = real.args;
    // SAFETY: rule of the call: the arguments go on as they came.
    unsafe { upload_to(call, real.function, exec, StreamArg::new(stream, false)) }
}

/// As [`upload`], but the default stream is the thread's own.
pub(crate) unsafe fn upload_ptsz(call: Call, real: Real<(GraphExec, Stream)>) -> Status {
    let (exec, stream) = real.args;
    // SAFETY: rule of the call: the arguments go on as they came, and the default stream is the
    // thread's own.
    unsafe { upload_to(call, real.function, exec, StreamArg::new(stream, true)) }
}

unsafe fn upload_to(call: Call, real: RealLaunch, exec: GraphExec, to: StreamArg) -> Status {
    // SAFETY: rule of the call: `real` gets the program's stream. Rule of handles: the exec is the library's.
    let real = |exec| activity::submit(|| unsafe { real(exec, to.stream) });
    let status = match ours(&call, exec) {
        Ok(Some((cache, index))) => change::upload(cache, index, to, real).unwrap_or_else(|status| status),
        Ok(None) => real(exec),
        Err(status) => status,
    };
    activity::saw(status);
    status
}

/// The program destroys an executable graph.
pub(crate) unsafe fn destroy(call: Call, real: Real<(GraphExec,)>) -> Status {
    let (exec,) = real.args;
    let entry = gate::note(|shim| records::execs::going(shim, exec as u64)).flatten();
    let status = match ours(&call, exec) {
        Ok(Some((cache, index))) => cache.end_handle(index).err().unwrap_or(SUCCESS),
        Ok(None) => real.call(),
        Err(status) => status,
    };
    if let Some(entry) = entry {
        gate::note(|shim| match status {
            SUCCESS => {
                records::graph_memory::exec_gone(shim, exec as u64, |addr| graph_memory::is_held(&call, addr));
                records::execs::ended(shim, entry);
            }
            _ => records::execs::stays(shim, exec as u64, entry),
        });
    }
    status
}

/// Updates a whole exec. If the library was not asked, `tell` fills the program's out-parameters with the result, and
/// with no node. `refused` is the result for a graph with another number of nodes.
fn whole(
    call: &Call,
    exec: GraphExec,
    graph: Graph,
    refused: c_int,
    real: impl FnOnce(GraphExec, Graph) -> Status,
    tell: impl FnOnce(c_int),
) -> Status {
    let status = match ours(call, exec) {
        Ok(Some((cache, index))) => match InUse::begin(cache, index).and_then(|used| used.update(graph, real)) {
            Ok(Updated::Virtually) => {
                tell(UPDATED);
                SUCCESS
            }
            Ok(Updated::Refused) => {
                tell(refused);
                UPDATE_FAILURE
            }
            Ok(Updated::Really(status)) | Err(status) => status,
        },
        Ok(None) => real(exec, graphs::library_graph(call.vendor, graph)),
        Err(status) => status,
    };
    gate::note(|shim| records::execs::updated(shim, exec as u64, Update::Whole { status }));
    status
}

/// The program updates an exec from a graph, in the form from before CUDA 12 (and HIP's).
pub(crate) unsafe fn update_v1(call: Call, real: Real<(GraphExec, Graph, *mut GraphNode, *mut c_int)>) -> Status {
    let (exec, graph, error_node, result) = real.args;
    // CUDA's answer in this form (measured on an H200, driver 580).
    let refused = if call.vendor == Vendor::Cuda { NOT_SUPPORTED } else { TOPOLOGY_CHANGED };
    // SAFETY: rule of the call: `real` gets the out-parameters as they came. Rule of handles: `whole` gives exec and
    // graph.
    let real = |exec, graph| unsafe { real.with((exec, graph, error_node, result)) };
    whole(&call, exec, graph, refused, real, |answer| {
        // SAFETY: rule of out-parameters: what we write, we write if the pointer is not NULL.
        if let Some(node) = unsafe { error_node.as_mut() } {
            *node = std::ptr::null_mut();
        }
        // SAFETY: as above: the program's out-parameter, unless it is NULL.
        if let Some(result) = unsafe { result.as_mut() } {
            *result = answer;
        }
    })
}

/// The program updates an exec from a graph.
pub(crate) unsafe fn update(call: Call, real: Real<(GraphExec, Graph, Opaque)>) -> Status {
    let (exec, graph, info) = real.args;
    let out = info.cast::<GraphExecUpdateInfo>();
    // SAFETY: rule of the call: `real` gets `info` as it came. Rule of handles: `whole` gives exec and graph.
    let real = |exec, graph| unsafe { real.with((exec, graph, info)) };
    whole(&call, exec, graph, TOPOLOGY_CHANGED, real, |answer| {
        // SAFETY: rule of out-parameters: `info` is NULL or takes the struct; the driver leaves its padding alone as
        // well (measured on an H200, driver 580).
        if let Some(out) = unsafe { out.as_mut() } {
            out.result = answer;
            out.error_node = std::ptr::null_mut();
            out.error_from_node = std::ptr::null_mut();
        }
    })
}

/// The program asks for the flags that an executable graph was instantiated with.
pub(crate) unsafe fn get_flags(call: Call, real: Real<(GraphExec, *mut u64)>) -> Status {
    let (exec, flags) = real.args;
    on_real(&call, exec, None, |exec| {
        // SAFETY: rule of the call: `real` gets the out-parameter as it came. Rule of handles:
        // `on_real` gives the exec.
        unsafe { real.with((exec, flags)) }
    })
}

/// The program asks for the number of an executable graph. From now on the exec stays with its handle.
pub(crate) unsafe fn get_id(call: Call, real: Real<(GraphExec, *mut c_uint)>) -> Status {
    let (exec, id) = real.args;
    on_real(&call, exec, Some(Pinned::IdAsked), |exec| {
        // SAFETY: rule of the call: `real` gets the out-parameter as it came. Rule of handles:
        // `on_real` gives the exec.
        unsafe { real.with((exec, id)) }
    })
}

fn on_real(call: &Call, exec: GraphExec, why: Option<Pinned>, real: impl FnOnce(GraphExec) -> Status) -> Status {
    match ours(call, exec) {
        Ok(Some((cache, index))) => {
            InUse::begin(cache, index).and_then(|used| used.with_real(why, real)).unwrap_or_else(|status| status)
        }
        Ok(None) => real(exec),
        Err(status) => status,
    }
}
