//! Other uses of graphs, and of the code that they refer to.

use super::code::around_unload;
use super::{attributes, graph_memory, parameter, written};
use crate::backend::attributes_set;
use crate::backend::graphs::Code;
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned, Vendor};
use std::ffi::{c_int, c_uint};

/// The program asks for the nodes of a graph.
pub(crate) unsafe fn get_nodes(call: Call, real: Real<(Graph, *mut GraphNode, *mut usize)>) -> Status {
    let (graph, nodes, len) = real.args;
    // The program asks only for the number and gets no node.
    let graph = match nodes.is_null() {
        true => graphs::library_graph(call.vendor, graph),
        false => graphs::seen_graph(call.vendor, graph),
    };
    // SAFETY: rule of the call: `real` gets the out-parameters as they came. Rule of handles: the
    // graph is the library's.
    unsafe { real.with((graph, nodes, len)) }
}

/// The program gives a graph references to an object of its own.
pub(crate) unsafe fn retain_user_object(call: Call, real: Real<(Graph, Opaque, c_uint, c_uint)>) -> Status {
    let (graph, object, count, flags) = real.args;
    let graph = graphs::seen_graph(call.vendor, graph);
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of handles: the
    // graph is the library's.
    let status = unsafe { real.with((graph, object, count, flags)) };
    if let Some(cache) = graphs::cache_to_be(call.vendor).filter(|_| status == SUCCESS) {
        cache.sources().note_user_objects(graph);
    }
    status
}

/// The program adds a graph as a node of another.
pub(crate) unsafe fn add_child(
    call: Call,
    real: Real<(*mut GraphNode, Graph, *const GraphNode, usize, Graph)>,
) -> Status {
    let (node, graph, deps, len, child) = real.args;
    let (graph, child) = (graphs::seen_graph(call.vendor, graph), graphs::seen_graph(call.vendor, child));
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of handles: both
    // graphs are the library's.
    let status = unsafe { real.with((node, graph, deps, len, child)) };
    if let Some(cache) = graphs::cache(call.vendor).filter(|_| status == SUCCESS) {
        cache.sources().inherits(child, graph);
        attributes::if_kept(|| attributes_set::inherits(child, graph));
    }
    status
}

/// `CUgraphNodeParams`: its kind, then a gap, then the kind's own data, such as the handle of a child graph.
type NodeParams = [u64; 32];
const CHILD: usize = 2;

/// A node's parameters for the library, with the library's handles in place of ours.
pub(super) struct LibraryParams {
    program: *mut NodeParams,
    /// The parameters for the library, and a copy of them from before the call. `None`: the program's own parameters
    /// serve.
    copy: Option<[NodeParams; 2]>,
}

impl LibraryParams {
    /// Reads the program's `params`, which may be invalid.
    pub(super) fn of(vendor: Vendor, params: Opaque) -> Self {
        let program = params.cast::<NodeParams>();
        let plain = Self { program, copy: None };
        // The struct of every kind begins with this.
        let Some(kind) = parameter(program.cast::<u32>()) else { return plain };
        let kind = u8::try_from(kind).ok().and_then(NodeKind::from_u8).unwrap_or(NodeKind::Other);
        let places = match kind {
            NodeKind::Child => CHILD..CHILD + 1,
            // For these kinds the position of a handle is unknown.
            NodeKind::Other => CHILD..size_of::<NodeParams>() / 8,
            _ => return plain,
        };
        let Some(given) = parameter(program) else { return plain };
        let mut copy = given;
        for word in &mut copy[places] {
            // The child graph may be moved into the parent and then belongs to it.
            *word = graphs::seen_word(vendor, *word as usize) as u64;
        }
        Self { copy: (copy != given).then_some([copy, copy]), ..plain }
    }

    /// Returns the parameters for the library.
    pub(super) fn get(&mut self) -> Opaque {
        self.copy.as_mut().map_or(self.program.cast(), |[now, _]| std::ptr::from_mut(now).cast())
    }

    /// Gives the program what the library wrote, after its answer.
    ///
    /// # Safety
    /// `params` of [`LibraryParams::of`] was the program's `CUgraphNodeParams`, or not readable, and this is the same
    /// call.
    pub(super) unsafe fn write_back(self) {
        let [now, before] = self.copy.unwrap_or_default();
        for (at, (now, before)) in now.iter().zip(before).enumerate() {
            if *now == before {
                continue;
            }
            // SAFETY: there is a copy, so the struct of `of` is there, and our caller vouches that it may be written.
            // `at` is below its number of words.
            unsafe { (&raw mut (*self.program)[at]).write_unaligned(*now) };
        }
    }
}

/// # Safety
/// `params` is NULL or the program's `CUgraphNodeParams`.
unsafe fn added(call: &Call, graph: Graph, params: Opaque, real: impl Fn(Graph, Opaque) -> Status) -> Status {
    graph_memory::added(call, graph, params, || {
        let graph = graphs::seen_graph(call.vendor, graph);
        // SAFETY: our caller vouches for `params`, which outlives `library`: that ends with this block.
        unsafe {
            let mut library = LibraryParams::of(call.vendor, params);
            let status = real(graph, library.get());
            library.write_back();
            status
        }
    })
}

/// The program adds a node of any kind.
pub(crate) unsafe fn add_node(
    call: Call,
    real: Real<(*mut GraphNode, Graph, *const GraphNode, usize, Opaque)>,
) -> Status {
    let (node, graph, deps, len, params) = real.args;
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of parameters:
    // `params` is NULL or the program's CUgraphNodeParams.
    unsafe { added(&call, graph, params, |graph, params| real.with((node, graph, deps, len, params))) }
}

/// As [`add_node`], with data for each edge.
pub(crate) unsafe fn add_node_v2(
    call: Call,
    real: Real<(*mut GraphNode, Graph, *const GraphNode, Opaque, usize, Opaque)>,
) -> Status {
    let (node, graph, deps, data, len, params) = real.args;
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of parameters:
    // `params` is NULL or the program's CUgraphNodeParams.
    unsafe { added(&call, graph, params, |graph, params| real.with((node, graph, deps, data, len, params))) }
}

/// The program destroys a node.
pub(crate) unsafe fn destroy_node(_: Call, real: Real<(GraphNode,)>) -> Status {
    let (node,) = real.args;
    graphs::nodes::destroyed(node);
    let status = real.call();
    if status != SUCCESS {
        graphs::nodes::stays(node);
    }
    status
}

/// The program sets an attribute of a kernel node.
pub(crate) unsafe fn set_attribute(call: Call, real: Real<(GraphNode, c_int, Opaque)>) -> Status {
    let (node, attribute, _) = real.args;
    attributes_set::attribute(attribute as u32);
    let status = real.call();
    if let Some(cache) = graphs::cache_to_be(call.vendor).filter(|_| status == SUCCESS) {
        match attributes_set::is_known(attribute as u32) {
            true => cache.attribute_set(node, attribute as u32),
            false if attributes::to_node(node, attribute as u32) => {}
            false => cache.handles().close(Pinned::UnknownAttribute),
        }
    }
    status
}

/// The program gives a kernel node the attributes of another.
pub(crate) unsafe fn copy_attributes(call: Call, real: Real<(GraphNode, GraphNode)>) -> Status {
    let (to, from) = real.args;
    let status = real.call();
    if status == SUCCESS && !attributes::copied(to, from) {
        graphs::cache_to_be(call.vendor).into_iter().for_each(|cache| cache.handles().close(Pinned::UnknownAttribute));
    }
    status
}

/// The program sets an attribute of a function.
pub(crate) unsafe fn set_function_attribute(_: Call, real: Real<(Opaque, c_int, c_int)>) -> Status {
    let (function, attribute, _) = real.args;
    // SAFETY: once the call has succeeded, `function` is alive.
    unsafe { attributes::to_function(real.call(), function, attribute) }
}

/// The program sets an attribute of a kernel on a device.
pub(crate) unsafe fn set_kernel_attribute(_: Call, real: Real<(c_int, c_int, Opaque, Device)>) -> Status {
    let (attribute, _, kernel, _) = real.args;
    // SAFETY: once the call has succeeded, `kernel` is alive.
    unsafe { attributes::to_function(real.call(), kernel, attribute) }
}

/// The program changes a node of any kind.
pub(crate) unsafe fn node_set_params(call: Call, real: Real<(GraphNode, Opaque)>) -> Status {
    let (node, params) = real.args;
    // SAFETY: rule of the call: `real` gets the node as it came. Rule of parameters: `params` is
    // NULL or the program's CUgraphNodeParams, which outlives `library`.
    unsafe {
        let mut library = LibraryParams::of(call.vendor, params);
        let status = real.with((node, library.get()));
        library.write_back();
        status
    }
}

/// The program asks if a stream captures.
pub(crate) unsafe fn capture_info(_: Call, real: Real<(Stream, *mut c_int, *mut u64)>) -> Status {
    real.call()
}

/// Asks about a capture. From then on the program has, or may have, nodes of the capture's graph.
///
/// # Safety
/// `graph` is NULL or the program's out-parameter of the call that `real` makes.
unsafe fn ask_of_capture(call: &Call, graph: *mut Graph, real: impl FnOnce(*mut Graph) -> Status) -> Status {
    let mut ours = std::ptr::null_mut();
    let graph = if graph.is_null() { &mut ours } else { graph };
    let status = real(graph);
    // SAFETY: rule of out-parameters: `graph` is the program's, or ours if that is NULL, and
    // `status` is the call's.
    let captured = unsafe { written(status, graph) }.filter(|graph| !graph.is_null());
    if let (Some(captured), Some(cache)) = (captured, graphs::cache_to_be(call.vendor)) {
        cache.sources().given_out(captured);
        // The program's own handle, if it captures into a graph of ours.
        // SAFETY: the call has just written `graph`, so it may be written. The program gets its own
        // handle there.
        unsafe { *graph = cache.sources().handle_of(captured) };
    }
    status
}

/// As [`capture_info`]; also gives the graph that the capture makes, and its last nodes.
pub(crate) unsafe fn capture_info_v2(
    call: Call,
    real: Real<(Stream, *mut c_int, *mut u64, *mut Graph, *mut *const GraphNode, *mut usize)>,
) -> Status {
    let (stream, status, id, graph, deps, len) = real.args;
    // SAFETY: rule of the call: `real` gets the other out-parameters as they came. Rule of
    // out-parameters: `graph` is NULL or the program's.
    unsafe { ask_of_capture(&call, graph, |graph| real.with((stream, status, id, graph, deps, len))) }
}

/// As [`capture_info_v2`]; also gives the data of the edges.
pub(crate) unsafe fn capture_info_v3(
    call: Call,
    real: Real<(Stream, *mut c_int, *mut u64, *mut Graph, *mut *const GraphNode, *mut Opaque, *mut usize)>,
) -> Status {
    let (stream, status, id, graph, deps, data, len) = real.args;
    // SAFETY: rule of the call: `real` gets the other out-parameters as they came. Rule of
    // out-parameters: `graph` is NULL or the program's.
    unsafe { ask_of_capture(&call, graph, |graph| real.with((stream, status, id, graph, deps, data, len))) }
}

fn unload(call: &Call, code: Code, real: impl FnOnce() -> Status) -> Status {
    let going = graphs::cache(call.vendor).map(|cache| (cache, cache.code_going(code)));
    gate::note(|_| crate::backend::params::forget());
    let status = around_unload(call, code, real);
    if let Some((cache, functions)) = going {
        cache.code_went(&functions, status == SUCCESS);
    }
    status
}

/// The program unloads a module.
pub(crate) unsafe fn module_unload(call: Call, real: Real<(Opaque,)>) -> Status {
    unload(&call, Code::Module(real.args.0), || real.call())
}

/// The program unloads a library.
pub(crate) unsafe fn library_unload(call: Call, real: Real<(Opaque,)>) -> Status {
    unload(&call, Code::Library(real.args.0), || real.call())
}
