//! Graphs: made, cloned, destroyed, instantiated.

use super::written;
use crate::call::Call;
use crate::clock;
use gpumem_abi::types::*;
use gpumem_wire::kinds::GraphOrigin;
use std::ffi::{c_char, c_uint};

/// The program makes an empty graph.
pub unsafe fn create(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Graph, c_uint) -> Status,
    graph: *mut Graph,
    flags: c_uint,
) -> Status {
    // SAFETY: the program's own call; `graph` is its out-parameter.
    unsafe {
        let status = real(graph, flags);
        if let Some(graph) = written(graph).filter(|_| status == SUCCESS) {
            call.record(|shim| shim.graph_made(&call, graph, GraphOrigin::Created));
        }
        status
    }
}

/// The program clones a graph.
pub unsafe fn clone(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Graph, Graph) -> Status,
    clone: *mut Graph,
    original: Graph,
) -> Status {
    // SAFETY: the program's own call; `clone` is its out-parameter.
    unsafe {
        let status = real(clone, original);
        if let Some(clone) = written(clone).filter(|_| status == SUCCESS) {
            call.note(|shim| shim.graph_made(&call, clone, GraphOrigin::Cloned));
        }
        status
    }
}

/// The program destroys a graph.
pub unsafe fn destroy(call: Call, real: unsafe extern "C-unwind" fn(Graph) -> Status, graph: Graph) -> Status {
    let entry = call.note(|shim| shim.graph_going(graph)).flatten();
    // SAFETY: the program's own call.
    let status = unsafe { real(graph) };
    if let Some(entry) = entry {
        call.note(|shim| match status {
            SUCCESS => shim.graph_ended(entry),
            _ => shim.graph_stays(graph, entry),
        });
    }
    status
}

/// Runs an instantiate and records what came of it.
///
/// # Safety
/// `exec` is the program's out-parameter of the call that `real` makes.
unsafe fn instantiated(
    call: &Call,
    exec: *mut GraphExec,
    graph: Graph,
    flags: u64,
    real: impl FnOnce() -> Status,
) -> Status {
    let start = clock::precise_ns();
    let status = real();
    let took = clock::precise_ns() - start;
    // SAFETY: as the caller promises.
    match unsafe { written(exec) }.filter(|_| status == SUCCESS) {
        Some(exec) => call.note(|shim| shim.instantiated(call, exec as u64, graph, flags, took)),
        None => call.note(|shim| shim.instantiate_failed(call, graph, status)),
    };
    status
}

/// The program instantiates a graph, in the form from before CUDA 12.
pub unsafe fn instantiate_log(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphExec, Graph, *mut GraphNode, *mut c_char, usize) -> Status,
    exec: *mut GraphExec,
    graph: Graph,
    error_node: *mut GraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> Status {
    // SAFETY: the program's own call; `exec` is its out-parameter.
    unsafe { instantiated(&call, exec, graph, 0, || real(exec, graph, error_node, log, log_bytes)) }
}

/// The program instantiates a graph.
pub unsafe fn instantiate(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphExec, Graph, u64) -> Status,
    exec: *mut GraphExec,
    graph: Graph,
    flags: u64,
) -> Status {
    // SAFETY: the program's own call; `exec` is its out-parameter.
    unsafe { instantiated(&call, exec, graph, flags, || real(exec, graph, flags)) }
}

/// The program instantiates a graph and may upload it.
pub unsafe fn instantiate_params(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphExec, Graph, *mut GraphInstantiateParams) -> Status,
    exec: *mut GraphExec,
    graph: Graph,
    params: *mut GraphInstantiateParams,
) -> Status {
    // SAFETY: the program's own call; `exec` is its out-parameter, `params` its parameter.
    unsafe {
        let flags = if params.is_null() { 0 } else { (&raw const (*params).flags).read() };
        instantiated(&call, exec, graph, flags, || real(exec, graph, params))
    }
}

/// As [`instantiate_params`], with HIP's order of fields.
pub unsafe fn instantiate_hip_params(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphExec, Graph, *mut HipGraphInstantiateParams) -> Status,
    exec: *mut GraphExec,
    graph: Graph,
    params: *mut HipGraphInstantiateParams,
) -> Status {
    // SAFETY: as in `instantiate_params`.
    unsafe {
        let flags = if params.is_null() { 0 } else { (&raw const (*params).flags).read() };
        instantiated(&call, exec, graph, flags, || real(exec, graph, params))
    }
}
