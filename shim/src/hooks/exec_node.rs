//! Single nodes of executable graphs: parameters, and switching on or off.

use super::exec::ours;
use super::graph_use::LibraryParams;
use crate::backend::graphs::Setter;
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::graphs::change::{InUse, NodeChange};
use crate::records;
use crate::records::execs::Update;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Vendor};
use std::ffi::{c_int, c_uint};

/// Runs a change or query of one node of an exec.
pub(super) fn node(
    call: &Call,
    exec: GraphExec,
    graph_node: GraphNode,
    change: NodeChange,
    real: impl FnOnce(GraphExec, GraphNode) -> Status,
) -> Status {
    let changes = change.changes();
    let status = match ours(call, exec) {
        Ok(Some((cache, index))) => InUse::begin(cache, index)
            .and_then(|used| used.change_node(graph_node, change, real))
            .unwrap_or_else(|status| status),
        Ok(None) => real(exec, graph_node),
        Err(status) => status,
    };
    if status == SUCCESS && changes {
        gate::note(|shim| records::execs::updated(shim, exec as u64, Update::Node));
    }
    status
}

/// The program switches a node on or off.
pub(crate) unsafe fn set_enabled(call: Call, real: Real<(GraphExec, GraphNode, c_uint)>) -> Status {
    let (exec, graph_node, enabled) = real.args;
    // SAFETY: rule of the call: `real` gets `enabled` as it came. Rule of handles: `node` gives
    // exec and node.
    node(&call, exec, graph_node, NodeChange::Enabled(enabled != 0), |exec, node| unsafe {
        real.with((exec, node, enabled))
    })
}

/// The program asks if a node is switched on.
pub(crate) unsafe fn get_enabled(call: Call, real: Real<(GraphExec, GraphNode, *mut c_uint)>) -> Status {
    let (exec, graph_node, enabled) = real.args;
    // SAFETY: rule of the call: `real` gets the out-parameter as it came. Rule of handles: `node`
    // gives exec and node.
    node(&call, exec, graph_node, NodeChange::IsEnabled(enabled), |exec, node| unsafe {
        real.with((exec, node, enabled))
    })
}

/// Sets a node's parameters.
fn set_kind(
    call: &Call,
    real: &Real<(GraphExec, GraphNode, Opaque)>,
    params: Opaque,
    kind: Option<(NodeKind, bool)>,
) -> Status {
    let change = match kind {
        // Only the driver's structs are known. HIP's handles stand for clones.
        Some((kind, v2)) if call.vendor == Vendor::Cuda => NodeChange::Set(kind, Setter { params, context: 0, v2 }),
        _ => NodeChange::Other,
    };
    let (exec, graph_node, _) = real.args;
    // SAFETY: rule of the call: our callers are hooks, and `real` gets their `params`. Rule of
    // handles: `node` gives exec and node.
    node(call, exec, graph_node, change, |exec, node| unsafe { real.with((exec, node, params)) })
}

/// The program changes a kernel node, in the form from before CUDA 12.
pub(crate) unsafe fn set_kernel(call: Call, real: Real<(GraphExec, GraphNode, Opaque)>) -> Status {
    set_kind(&call, &real, real.args.2, Some((NodeKind::Kernel, false)))
}

/// The program changes a kernel node.
pub(crate) unsafe fn set_kernel_v2(call: Call, real: Real<(GraphExec, GraphNode, Opaque)>) -> Status {
    set_kind(&call, &real, real.args.2, Some((NodeKind::Kernel, true)))
}

/// The program changes a host node.
pub(crate) unsafe fn set_host(call: Call, real: Real<(GraphExec, GraphNode, Opaque)>) -> Status {
    set_kind(&call, &real, real.args.2, Some((NodeKind::Host, false)))
}

/// The program changes a node's parameters or event.
pub(crate) unsafe fn set_params(call: Call, real: Real<(GraphExec, GraphNode, Opaque)>) -> Status {
    set_kind(&call, &real, real.args.2, None)
}

/// The program changes a node's child graph.
pub(crate) unsafe fn set_child(call: Call, real: Real<(GraphExec, GraphNode, Graph)>) -> Status {
    set_kind(&call, &real, graphs::library_graph(call.vendor, real.args.2), None)
}

/// The program changes a node of any kind.
pub(crate) unsafe fn set_any(call: Call, real: Real<(GraphExec, GraphNode, Opaque)>) -> Status {
    // SAFETY: rule of parameters: the last argument is NULL or the program's CUgraphNodeParams. It outlives
    // `library`, which ends with this block.
    unsafe {
        let mut library = LibraryParams::of(call.vendor, real.args.2);
        let status = set_kind(&call, &real, library.get(), None);
        library.write_back();
        status
    }
}

/// Sets a node's parameters, which belong to a context.
fn set_in_context(call: &Call, real: &Real<(GraphExec, GraphNode, Opaque, Context)>, kind: Option<NodeKind>) -> Status {
    let (exec, graph_node, params, ctx) = real.args;
    let setter = Setter { params, context: ctx as u64, v2: false };
    let change = kind.map_or(NodeChange::Other, |kind| NodeChange::Set(kind, setter));
    // SAFETY: rule of the call: our callers are hooks, and `real` gets their `params` and `ctx`.
    // Rule of handles: `node` gives exec and node.
    node(call, exec, graph_node, change, |exec, node| unsafe { real.with((exec, node, params, ctx)) })
}

/// The program changes the parameters of a copy node.
pub(crate) unsafe fn set_memcpy(call: Call, real: Real<(GraphExec, GraphNode, Opaque, Context)>) -> Status {
    set_in_context(&call, &real, Some(NodeKind::Memcpy))
}

/// The program changes the parameters of a memset node.
pub(crate) unsafe fn set_memset(call: Call, real: Real<(GraphExec, GraphNode, Opaque, Context)>) -> Status {
    set_in_context(&call, &real, Some(NodeKind::Memset))
}

/// The program changes the parameters of a node that belongs to a context (HIP).
pub(crate) unsafe fn set_params_ctx(call: Call, real: Real<(GraphExec, GraphNode, Opaque, Context)>) -> Status {
    set_in_context(&call, &real, None)
}

/// The program changes source, target or size of a copy node (HIP).
pub(crate) unsafe fn set_copy(call: Call, real: Real<(GraphExec, GraphNode, Opaque, Opaque, usize, c_int)>) -> Status {
    let (exec, graph_node, dst, src, bytes, kind) = real.args;
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of handles:
    // `node` gives exec and node.
    node(&call, exec, graph_node, NodeChange::Other, |exec, node| unsafe {
        real.with((exec, node, dst, src, bytes, kind))
    })
}

/// The program changes a node's copy from or to a symbol (HIP).
pub(crate) unsafe fn set_symbol_copy(
    call: Call,
    real: Real<(GraphExec, GraphNode, Opaque, Opaque, usize, usize, c_int)>,
) -> Status {
    let (exec, graph_node, first, second, bytes, offset, kind) = real.args;
    node(&call, exec, graph_node, NodeChange::Other, |exec, node| {
        // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of handles:
        // `node` gives exec and node.
        unsafe { real.with((exec, node, first, second, bytes, offset, kind)) }
    })
}
