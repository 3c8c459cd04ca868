//! What else programs do with graphs and executable graphs, and with the code that they refer to.

use crate::call::Call;
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

/// The program uploads an executable graph before its first launch.
pub unsafe fn upload(
    _: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, Stream) -> Status,
    exec: GraphExec,
    stream: Stream,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(exec, stream) }
}

/// The program asks for the flags that an executable graph was instantiated with.
pub unsafe fn get_flags(
    _: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, *mut u64) -> Status,
    exec: GraphExec,
    flags: *mut u64,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(exec, flags) }
}

/// The program asks for the number of an executable graph.
pub unsafe fn get_id(
    _: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, *mut c_uint) -> Status,
    exec: GraphExec,
    id: *mut c_uint,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(exec, id) }
}

/// The program asks whether a node is switched on.
pub unsafe fn get_enabled(
    _: Call,
    real: unsafe extern "C-unwind" fn(GraphExec, GraphNode, *mut c_uint) -> Status,
    exec: GraphExec,
    node: GraphNode,
    enabled: *mut c_uint,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(exec, node, enabled) }
}

/// The program asks for the nodes of a graph.
pub unsafe fn get_nodes(
    _: Call,
    real: unsafe extern "C-unwind" fn(Graph, *mut GraphNode, *mut usize) -> Status,
    graph: Graph,
    nodes: *mut GraphNode,
    len: *mut usize,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(graph, nodes, len) }
}

/// The program gives a graph references to an object of its own.
pub unsafe fn retain_user_object(
    _: Call,
    real: unsafe extern "C-unwind" fn(Graph, Opaque, c_uint, c_uint) -> Status,
    graph: Graph,
    object: Opaque,
    count: c_uint,
    flags: c_uint,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(graph, object, count, flags) }
}

/// The program adds a graph as a node of another.
pub unsafe fn add_child(
    _: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphNode, Graph, *const GraphNode, usize, Graph) -> Status,
    node: *mut GraphNode,
    graph: Graph,
    deps: *const GraphNode,
    len: usize,
    child: Graph,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(node, graph, deps, len, child) }
}

/// The program adds a node of any kind.
pub unsafe fn add_node(
    _: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphNode, Graph, *const GraphNode, usize, Opaque) -> Status,
    node: *mut GraphNode,
    graph: Graph,
    deps: *const GraphNode,
    len: usize,
    params: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(node, graph, deps, len, params) }
}

/// As [`add_node`], with data for each edge.
pub unsafe fn add_node_v2(
    _: Call,
    real: unsafe extern "C-unwind" fn(*mut GraphNode, Graph, *const GraphNode, Opaque, usize, Opaque) -> Status,
    node: *mut GraphNode,
    graph: Graph,
    deps: *const GraphNode,
    data: Opaque,
    len: usize,
    params: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(node, graph, deps, data, len, params) }
}

/// The program changes a node of any kind.
pub unsafe fn node_set_params(
    _: Call,
    real: unsafe extern "C-unwind" fn(GraphNode, Opaque) -> Status,
    node: GraphNode,
    params: Opaque,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(node, params) }
}

/// The program asks whether a stream captures.
pub unsafe fn capture_info(
    _: Call,
    real: unsafe extern "C-unwind" fn(Stream, *mut c_int, *mut u64) -> Status,
    stream: Stream,
    status: *mut c_int,
    id: *mut u64,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(stream, status, id) }
}

/// As [`capture_info`]; also gives the graph that the capture makes, and its last nodes.
pub unsafe fn capture_info_v2(
    _: Call,
    real: unsafe extern "C-unwind" fn(
        Stream,
        *mut c_int,
        *mut u64,
        *mut Graph,
        *mut *const GraphNode,
        *mut usize,
    ) -> Status,
    stream: Stream,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Graph,
    deps: *mut *const GraphNode,
    len: *mut usize,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(stream, status, id, graph, deps, len) }
}

/// As [`capture_info_v2`]; also gives the data of the edges.
pub unsafe fn capture_info_v3(
    _: Call,
    real: unsafe extern "C-unwind" fn(
        Stream,
        *mut c_int,
        *mut u64,
        *mut Graph,
        *mut *const GraphNode,
        *mut Opaque,
        *mut usize,
    ) -> Status,
    stream: Stream,
    status: *mut c_int,
    id: *mut u64,
    graph: *mut Graph,
    deps: *mut *const GraphNode,
    data: *mut Opaque,
    len: *mut usize,
) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(stream, status, id, graph, deps, data, len) }
}

/// The program unloads a module.
pub unsafe fn module_unload(_: Call, real: unsafe extern "C-unwind" fn(Opaque) -> Status, module: Opaque) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(module) }
}

/// The program unloads a library.
pub unsafe fn library_unload(_: Call, real: unsafe extern "C-unwind" fn(Opaque) -> Status, library: Opaque) -> Status {
    // SAFETY: the program's own call.
    unsafe { real(library) }
}
