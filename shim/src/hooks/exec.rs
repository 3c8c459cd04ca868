//! Executable graphs: launched, updated, destroyed.

use crate::call::Call;
use crate::registry::graphs::Update;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

/// The program launches a graph.
#[inline]
pub unsafe fn launch(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, Stream) -> Status,
    exec: GraphExec,
    stream: Stream,
) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(exec, stream) };
    call.note(|shim| shim.launched(exec as u64, status));
    status
}

/// The program destroys an executable graph.
pub unsafe fn destroy(call: Call, real: unsafe extern "C-unwind" fn(GraphExec) -> Status, exec: GraphExec) -> Status {
    let entry = call.note(|shim| shim.exec_going(exec as u64)).flatten();
    // SAFETY: the program's own call.
    let status = unsafe { real(exec) };
    if let Some(entry) = entry {
        call.note(|shim| match status {
            SUCCESS => shim.exec_ended(entry),
            _ => shim.exec_stays(exec as u64, entry),
        });
    }
    status
}

fn whole(call: &Call, status: Status, exec: GraphExec) -> Status {
    call.note(|shim| shim.updated(exec as u64, Update::Whole { status }));
    status
}

fn node(call: &Call, status: Status, exec: GraphExec) -> Status {
    if status == SUCCESS {
        call.note(|shim| shim.updated(exec as u64, Update::Node));
    }
    status
}

/// The program updates an exec from a graph, in the form from before CUDA 12 (and HIP's).
pub unsafe fn update_v1(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, Graph, *mut GraphNode, *mut c_int) -> Status,
    exec: GraphExec,
    graph: Graph,
    error_node: *mut GraphNode,
    result: *mut c_int,
) -> Status {
    // SAFETY: the program's own call.
    whole(&call, unsafe { real(exec, graph, error_node, result) }, exec)
}

/// The program updates an exec from a graph.
pub unsafe fn update(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, Graph, Opaque) -> Status,
    exec: GraphExec,
    graph: Graph,
    info: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    whole(&call, unsafe { real(exec, graph, info) }, exec)
}

/// The program switches a node on or off.
pub unsafe fn set_enabled(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, c_uint) -> Status,
    exec: GraphExec,
    graph_node: GraphNode,
    enabled: c_uint,
) -> Status {
    // SAFETY: the program's own call.
    node(&call, unsafe { real(exec, graph_node, enabled) }, exec)
}

/// The program changes a node's parameters, child graph or event.
pub unsafe fn set_params(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, Opaque) -> Status,
    exec: GraphExec,
    graph_node: GraphNode,
    params: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    node(&call, unsafe { real(exec, graph_node, params) }, exec)
}

/// The program changes the parameters of a node that belongs to a context.
pub unsafe fn set_params_ctx(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, Opaque, Context) -> Status,
    exec: GraphExec,
    graph_node: GraphNode,
    params: Opaque,
    ctx: Context,
) -> Status {
    // SAFETY: the program's own call.
    node(&call, unsafe { real(exec, graph_node, params, ctx) }, exec)
}

/// The program changes what a copy node copies (HIP).
pub unsafe fn set_copy(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, Opaque, Opaque, usize, c_int) -> Status,
    exec: GraphExec,
    graph_node: GraphNode,
    dst: Opaque,
    src: Opaque,
    bytes: usize,
    kind: c_int,
) -> Status {
    // SAFETY: the program's own call.
    node(&call, unsafe { real(exec, graph_node, dst, src, bytes, kind) }, exec)
}

/// The program changes what a node copies from or to a symbol (HIP).
pub unsafe fn set_symbol_copy(
    call: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, Opaque, Opaque, usize, usize, c_int) -> Status,
    exec: GraphExec,
    graph_node: GraphNode,
    first: Opaque,
    second: Opaque,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Status {
    // SAFETY: the program's own call.
    node(&call, unsafe { real(exec, graph_node, first, second, bytes, offset, kind) }, exec)
}
