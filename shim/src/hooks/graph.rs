//! Graphs: creation, cloning, destruction, instantiation.

use super::exec::NOT_INITIALIZED;
use super::{attributes, graph_memory, parameter, written};
use crate::backend::{self, attributes_set, graphs::StreamArg};
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::graphs::instantiate::instantiate_handle;
use crate::ledger::table::NO_SLOT;
use crate::process::clock;
use crate::process::device_calls::DeviceCall;
use crate::progress::activity;
use crate::records;
use crate::request::for_driver;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{GraphOrigin, Pinned, Vendor};
use gpumem_wire::location::Location;
use std::ffi::{c_char, c_uint};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

/// The program makes an empty graph.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut Graph, c_uint)>) -> Status {
    let (graph, _) = real.args;
    // SAFETY: rule of out-parameters: `graph` is that of the call.
    unsafe {
        let status = real.call();
        if let Some(graph) = written(status, graph) {
            start::record(|shim| records::graphs::made(shim, &call, graph, 0, GraphOrigin::Created));
        }
        status
    }
}

/// The program clones a graph.
pub(crate) unsafe fn clone(call: Call, real: Real<(*mut Graph, Graph)>) -> Status {
    let (clone, original) = real.args;
    // With a clone the program can look up the nodes of the original, and vice versa.
    let original = graphs::seen_graph(call.vendor, original);
    // SAFETY: rule of the call: `real` gets the out-parameter `clone` as it came. Rule of handles:
    // `original` is the library's.
    unsafe {
        let status = real.with((clone, original));
        if let Some(clone) = written(status, clone) {
            if let Some(cache) = graphs::cache(call.vendor) {
                cache.sources().inherits(original, clone);
            }
            attributes::if_kept(|| attributes_set::inherits(original, clone));
            let nodes = backend::of(call.vendor).node_count(clone).unwrap_or(0) as u64;
            gate::note(|shim| records::graphs::made(shim, &call, clone, nodes, GraphOrigin::Cloned));
        }
        status
    }
}

/// The program destroys a graph.
pub(crate) unsafe fn destroy(call: Call, real: Real<(Graph,)>) -> Status {
    let (graph,) = real.args;
    let going = gate::note(|shim| {
        (records::graphs::going(shim, graph), records::graph_memory::graph_going(shim, graph as u64))
    });
    let library = match (graphs::is_graph(call.vendor, graph), graphs::cache(call.vendor)) {
        (false, cache) => {
            if let Some(cache) = cache {
                cache.sources().forget_graph(graph);
            }
            Ok(Some(graph))
        }
        (true, Some(cache)) => cache.sources().end_graph(graph),
        (true, None) => Err(NOT_INITIALIZED),
    };
    let status = match library {
        Ok(Some(library)) => {
            attributes::if_kept(|| attributes_set::forget(library));
            // SAFETY: rule of the call: we are in the program's destruction of the graph. Rule of
            // handles: `library` is the library's graph, and nothing else of ours refers to it.
            unsafe { real.with((library,)) }
        }
        Ok(None) => SUCCESS,
        Err(status) => status,
    };
    let (entry, nodes) = going.unwrap_or_default();
    if entry.is_some() || nodes.is_some() {
        gate::note(|shim| {
            if let Some(nodes) = nodes {
                let is_held = |addr| graph_memory::is_held(&call, addr);
                records::graph_memory::graph_gone(shim, graph as u64, nodes, status == SUCCESS, is_held);
            }
            match entry {
                Some(entry) if status == SUCCESS => records::graphs::ended(shim, entry),
                Some(entry) => records::graphs::stays(shim, graph, entry),
                None => {}
            }
        });
    }
    status
}

/// Instantiates: makes a handle of ours if possible, or else the library's exec by `real`. `Ok(exec)`: the handle is
/// ours, and the other out-parameters are not written yet.
///
/// # Safety
/// `exec` is the program's out-parameter of the call that `real` makes.
unsafe fn instantiated(
    call: &Call,
    exec: *mut GraphExec,
    graph: Graph,
    flags: u64,
    mut real: impl FnMut(Graph) -> Status,
) -> Result<GraphExec, Status> {
    let start = clock::precise_ns();
    let _call = DeviceCall::begin();
    let why = match graphs::open(call.vendor) {
        Ok(cache) if !exec.is_null() && !graph.is_null() => {
            if let Err(status) = cache.library().allowed() {
                gate::note(|shim| records::execs::instantiate_failed(shim, call, graph, status));
                return Err(status);
            }
            let serial = gate::note(|shim| records::graphs::serial(shim, graph as u64)).flatten();
            match instantiate_handle(cache, graph, flags, serial) {
                Ok(made) => {
                    let took = clock::precise_ns() - start;
                    let slot = gate::note(|shim| records::handles::made(shim, call, &made, graph, flags, took));
                    cache.handles().listed(made.index, slot.unwrap_or(NO_SLOT));
                    // SAFETY: our caller vouches for the program's out-parameter, which is not NULL
                    // here. The program gets the handle in place of what the driver would have
                    // written.
                    unsafe { *exec = made.handle };
                    return Ok(made.handle);
                }
                Err(why) => why,
            }
        }
        Ok(_) => Pinned::None,
        Err(why) => why,
    };
    if !matches!(why, Pinned::Off | Pinned::RecordOnly) {
        // It is unknown what the work of this exec waits for.
        activity::outside(true);
    }
    // The program may change the driver's own exec by this graph's nodes. So no other graph may stand in for the graph
    // later.
    let library = graphs::seen_graph(call.vendor, graph);
    let status = for_driver(call, Location::OwnDevice, || real(library));
    let took = clock::precise_ns() - start;
    // SAFETY: rule of out-parameters: our caller vouches for `exec`, and `status` is that of its
    // call.
    match unsafe { written(status, exec) } {
        Some(exec) => gate::note(|shim| {
            let nodes = backend::count_nodes(backend::of(call.vendor), library);
            records::execs::instantiated(shim, call, exec as u64, graph, nodes, flags, took);
            records::handles::native(shim, exec as u64, why);
        }),
        None => gate::note(|shim| records::execs::instantiate_failed(shim, call, graph, status)),
    };
    Err(status)
}

/// The program instantiates a graph, in the form from before CUDA 12.
pub(crate) unsafe fn instantiate_log(
    call: Call,
    real: Real<(*mut GraphExec, Graph, *mut GraphNode, *mut c_char, usize)>,
) -> Status {
    let (exec, graph, error_node, log, log_bytes) = real.args;
    // SAFETY: rule of the call: `real` gets the out-parameters as they came. Rule of handles:
    // `instantiated` gives the graph. Rule of out-parameters: what we write, we write if the
    // pointer is not NULL.
    unsafe {
        let made = instantiated(&call, exec, graph, 0, |graph| real.with((exec, graph, error_node, log, log_bytes)));
        // HIP writes neither of the two.
        if made.is_ok() && call.vendor == Vendor::Cuda {
            if let Some(node) = error_node.as_mut() {
                *node = std::ptr::null_mut();
            }
            if let Some(log) = log.as_mut().filter(|_| log_bytes > 0) {
                *log = 0;
            }
        }
        made.err().unwrap_or(SUCCESS)
    }
}

/// The program instantiates a graph.
#[inline(always)]
pub(crate) unsafe fn instantiate(call: Call, real: Real<(*mut GraphExec, Graph, u64)>) -> Status {
    let (exec, graph, flags) = real.args;
    // SAFETY: rule of the call: `real` and its arguments go on as they came.
    unsafe { instantiate_by(call, real.function, exec, graph, flags) }
}

/// As [`instantiate`], with the arguments in registers.
#[inline(never)]
unsafe fn instantiate_by(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphExec, Graph, u64) -> Status,
    exec: *mut GraphExec,
    graph: Graph,
    flags: u64,
) -> Status {
    // If the driver would refuse this, the driver itself must refuse it.
    let upload = flags & UPLOAD != 0;
    // SAFETY: rule of the call: `real` gets the out-parameter `exec` and the flags as they came.
    // Rule of handles: the graph is the library's.
    unsafe {
        let real = |graph| real(exec, graph, flags);
        if upload {
            return activity::submit(|| real(graphs::library_graph(call.vendor, graph)));
        }
        instantiated(&call, exec, graph, flags, real).err().unwrap_or(SUCCESS)
    }
}

/// The two forms of the parameters differ in the order of their fields.
macro_rules! instantiate_with_params {
    ($(#[$doc:meta])* $name:ident, $params:ty, $per_thread:literal) => {
        $(#[$doc])*
        pub(crate) unsafe fn $name(call: Call, real: Real<(*mut GraphExec, Graph, *mut $params)>) -> Status {
            let (exec, graph, params) = real.args;
            // SAFETY: rule of the call: `real` gets `exec` and `params` as they came. Rule of
            // handles: the graph is the library's. Rule of out-parameters: the struct, which is there, takes what
            // the library would have written.
            unsafe {
                let Some(given) = parameter(params) else {
                    return real.with((exec, graphs::library_graph(call.vendor, graph), params));
                };
                let (flags, stream) = (given.flags, given.upload_stream);
                // An upload gives the device work.
                let real = |graph| activity::submit(|| real.with((exec, graph, params)));
                let made = match instantiated(&call, exec, graph, flags, real) {
                    Ok(made) => made,
                    Err(status) => return status,
                };
                (&raw mut (*params).error_node_out).write_unaligned(std::ptr::null_mut());
                (&raw mut (*params).result_out).write_unaligned(0);
                if flags & UPLOAD == 0 {
                    return SUCCESS;
                }
                activity::submit(|| graphs::upload(call.vendor, made, StreamArg::new(stream, $per_thread)))
            }
        }
    };
}

instantiate_with_params!(
    /// The program instantiates a graph and may upload it.
    instantiate_params, GraphInstantiateParams, false
);
instantiate_with_params!(
    /// As [`instantiate_params`], but the default stream is the thread's own.
    instantiate_params_ptsz, GraphInstantiateParams, true
);
instantiate_with_params!(
    /// As [`instantiate_params`], with HIP's order of fields.
    instantiate_hip_params, HipGraphInstantiateParams, false
);
