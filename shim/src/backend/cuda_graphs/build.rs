//! Writes records into nodes: of an exec, of a graph that is built anew, or by running their work on a stream.

use super::functions::{Function, Functions, INVALID};
use super::layout::*;
use super::read::kernel_parts;
use super::shape::{Node, PACKED, Set, Shape, attribute};
use crate::backend::answer::{done, told};
use crate::backend::driver;
use crate::backend::graphs::{Nodes, SetCount, StreamArg};
use crate::backend::source::Records;
use gpumem_abi::types::*;
use gpumem_wire::kinds::NodeKind;
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;
use zerocopy::FromBytes;

/// The functions that a graph's kernels call. Neighbouring nodes often call the same one.
struct Called<'a> {
    functions: &'a Functions,
    last: Option<((u64, u64), Arc<Function>)>,
}

impl Called<'_> {
    fn of(functions: &Functions) -> Called<'_> {
        Called { functions, last: None }
    }

    fn known(&mut self, key: (u64, u64)) -> Option<&Function> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != key) {
            self.last = Some((key, self.functions.known(key.0, key.1)?));
        }
        self.last.as_ref().map(|(_, function)| &**function)
    }
}

/// Returns a kernel from its record, if its code is still loaded: the driver's struct without the parameters, and the
/// parameters.
fn kernel<'a, 'r>(called: &'a mut Called, record: &'r [u8]) -> Option<(KernelParams, &'a Function, &'r [u8])> {
    let (head, values) = kernel_parts(record)?;
    let function = called.known((head.function, head.kernel))?;
    // If the module was loaded anew, this is another function, and the old code is gone.
    if function.generation != head.generation || values.len() < function.bytes as usize {
        return None;
    }
    let params = KernelParams {
        function: head.function,
        grid: head.grid,
        block: head.block,
        shared_bytes: head.shared_bytes,
        kernel: head.kernel,
        context: head.context,
        ..Default::default()
    };
    Some((params, function, values))
}

/// Runs `f` with the addresses of a kernel's parameters, in the driver's form.
fn with_values<R>(called: &mut Called, record: &[u8], f: impl FnOnce(&mut KernelParams) -> R) -> Option<R> {
    let (mut params, function, values) = kernel(called, record)?;
    const FEW: usize = 32;
    let mut few = [0_u64; FEW];
    let mut many = Vec::new();
    let addresses = match function.params.len() {
        len @ ..=FEW => &mut few[..len],
        len => {
            many.resize(len, 0);
            &mut many[..]
        }
    };
    for (address, &(offset, _)) in addresses.iter_mut().zip(&function.params) {
        *address = from_ref(&values[offset as usize]) as u64;
    }
    params.params = if function.params.is_empty() { 0 } else { addresses.as_ptr() as u64 };
    Some(f(&mut params))
}

/// As [`with_values`], with the parameters in one buffer, for a node that is read back in that form.
fn with_buffer<R>(called: &mut Called, record: &[u8], f: impl FnOnce(&mut KernelParams) -> R) -> Option<R> {
    let (mut params, function, values) = kernel(called, record)?;
    let bytes = function.bytes as usize;
    let extra = [EXTRA_BUFFER, values.as_ptr() as usize, EXTRA_BYTES, from_ref(&bytes) as usize, EXTRA_END];
    params.extra = if function.params.is_empty() { 0 } else { extra.as_ptr() as u64 };
    Some(f(&mut params))
}

/// Sets the nodes of an exec, or of the graph itself, whose records differ.
pub(super) fn set(
    functions: &Functions,
    exec: Option<GraphExec>,
    nodes: Nodes,
    before: &Records,
    after: &Records,
) -> Result<SetCount, Status> {
    let (mut called, mut given) = (Called::of(functions), SetCount::default());
    for (index, (&node, &kind)) in nodes.handles.iter().zip(nodes.kinds).enumerate() {
        let record = after.get(index);
        if record != before.get(index) {
            // The setters of a graph's nodes cannot change their context.
            if exec.is_none() && context_of(kind, record) != context_of(kind, before.get(index)) {
                return Err(INVALID);
            }
            done(Some(set_node(&mut called, exec, node, NodeKind::from_u8(kind).unwrap_or(NodeKind::Other), record)))?;
            given.nodes += 1;
            let kernel = kind == NodeKind::Kernel as u8;
            given.reshaped += u64::from(kernel && shape_of(record) != shape_of(before.get(index)));
        }
    }
    Ok(given)
}

/// Returns a kernel's launch configuration, apart from its parameters.
fn shape_of(record: &[u8]) -> Option<impl PartialEq> {
    let (head, _) = KernelHead::read_from_prefix(record).ok()?;
    Some((head.function, head.kernel, head.grid, head.block, head.shared_bytes))
}

/// Returns the context that a copy or a memset is made in.
fn context_of(kind: u8, record: &[u8]) -> Option<u64> {
    match NodeKind::from_u8(kind)? {
        NodeKind::Memcpy => Some(CopyRecord::read_from_bytes(record).ok()?.context),
        NodeKind::Memset => Some(SetRecord::read_from_bytes(record).ok()?.context),
        _ => None,
    }
}

fn set_node(called: &mut Called, exec: Option<GraphExec>, node: GraphNode, kind: NodeKind, record: &[u8]) -> Status {
    // SAFETY: rule of the cache's handles: `exec` was instantiated from the graph that `node` is
    // of, or the graph is the cache's own. Each struct has the type that the function of its kind
    // takes, and is a local.
    let status = unsafe {
        match kind {
            // In one buffer this would be an eighth faster, but a cooperative node takes none (measured on an H200,
            // driver 580).
            NodeKind::Kernel => with_values(called, record, |params| {
                if params.function != 0 {
                    // One of the two handles is enough.
                    (params.kernel, params.context) = (0, 0);
                }
                match exec {
                    Some(exec) => driver::cuGraphExecKernelNodeSetParams_v2(exec, node, opaque(params)),
                    None => driver::cuGraphKernelNodeSetParams_v2(node, opaque(params)),
                }
            }),
            NodeKind::Memcpy => CopyRecord::read_from_bytes(record).ok().map(|mut of| {
                let (params, context) = (opaque(&mut of.params), of.context as Context);
                match exec {
                    Some(exec) => driver::cuGraphExecMemcpyNodeSetParams(exec, node, params, context),
                    None => driver::cuGraphMemcpyNodeSetParams(node, params),
                }
            }),
            NodeKind::Memset => SetRecord::read_from_bytes(record).ok().map(|mut of| {
                let (params, context) = (opaque(&mut of.params), of.context as Context);
                match exec {
                    Some(exec) => driver::cuGraphExecMemsetNodeSetParams(exec, node, params, context),
                    None => driver::cuGraphMemsetNodeSetParams(node, params),
                }
            }),
            NodeKind::Host => HostParams::read_from_bytes(record).ok().map(|mut params| match exec {
                Some(exec) => driver::cuGraphExecHostNodeSetParams(exec, node, opaque(&mut params)),
                None => driver::cuGraphHostNodeSetParams(node, opaque(&mut params)),
            }),
            _ => Some(Some(SUCCESS)),
        }
    };
    status.flatten().unwrap_or(INVALID)
}

/// Builds a graph with these nodes and edges; if not `exact`, without hints that are of no use.
pub(super) fn build(
    functions: &Functions,
    shape: &Shape,
    records: &Records,
    exact: bool,
) -> Result<(Graph, Vec<GraphNode>), Status> {
    // SAFETY: rule of answers: `graph` takes the handle.
    let graph = told(|graph| unsafe { driver::cuGraphCreate(graph, 0) })?;
    match fill(functions, graph, shape, records, exact) {
        Ok(nodes) => Ok((graph, nodes)),
        Err(status) => {
            // SAFETY: `graph` was made above and no one else knows it, so it is destroyed once.
            let _ = unsafe { driver::cuGraphDestroy(graph) };
            Err(status)
        }
    }
}

fn fill(
    functions: &Functions,
    graph: Graph,
    shape: &Shape,
    records: &Records,
    exact: bool,
) -> Result<Vec<GraphNode>, Status> {
    let mut nodes = Vec::with_capacity(shape.nodes.len());
    let mut plain: Option<Set> = None;
    let mut called = Called::of(functions);
    for (index, entry) in shape.nodes.iter().enumerate() {
        let record = records.get(index);
        let mut node = null_mut();
        let none = std::ptr::null();
        // SAFETY: our caller has just made `graph`, or adds to it first. Each struct has the type
        // that the function of its kind takes, and is a local. `node` takes the handle.
        let status = unsafe {
            match entry.kind {
                NodeKind::Kernel => {
                    let add = |params: &mut KernelParams| {
                        driver::cuGraphAddKernelNode_v2(&mut node, graph, none, 0, opaque(params))
                    };
                    match entry.tag & PACKED {
                        0 => with_values(&mut called, record, add),
                        _ => with_buffer(&mut called, record, add),
                    }
                }
                NodeKind::Memcpy => CopyRecord::read_from_bytes(record).ok().map(|mut of| {
                    let context = of.context as Context;
                    driver::cuGraphAddMemcpyNode(&mut node, graph, none, 0, opaque(&mut of.params), context)
                }),
                NodeKind::Memset => SetRecord::read_from_bytes(record).ok().map(|mut of| {
                    let context = of.context as Context;
                    driver::cuGraphAddMemsetNode(&mut node, graph, none, 0, opaque(&mut of.params), context)
                }),
                NodeKind::Host => HostParams::read_from_bytes(record)
                    .ok()
                    .map(|mut params| driver::cuGraphAddHostNode(&mut node, graph, none, 0, opaque(&mut params))),
                NodeKind::Empty => Some(driver::cuGraphAddEmptyNode(&mut node, graph, none, 0)),
                _ => None,
            }
        };
        done(status.flatten().or(Some(INVALID)))?;
        if entry.kind == NodeKind::Kernel {
            let set = shape.sets.get(usize::from(entry.set)).ok_or(INVALID)?;
            // A new node's default attributes are asked for once.
            let plain = plain.get_or_insert_with(|| attributes_of(node, set));
            let skipped = (!exact && !has_cluster(set)).then_some(attribute::CLUSTER_SCHEDULING);
            give_attributes(node, set, plain, skipped)?;
        }
        nodes.push(node);
    }
    // One call gives all of its edges the data of the first (measured on an H200, driver 580).
    for edges in shape.edges.chunk_by(|one, next| one.data == next.data) {
        let side = |index: u32| nodes[index as usize];
        let from: Vec<_> = edges.iter().map(|edge| side(edge.from)).collect();
        let to: Vec<_> = edges.iter().map(|edge| side(edge.to)).collect();
        let mut data: Vec<u64> = edges.iter().map(|edge| edge.data).collect();
        // SAFETY: `from`, `to` and `data` have one length, which is passed. Their nodes were just
        // added to `graph`, and the driver's edge data has 8 bytes.
        done(unsafe {
            driver::cuGraphAddDependencies_v2(graph, from.as_ptr(), to.as_ptr(), data.as_mut_ptr().cast(), from.len())
        })?;
    }
    Ok(nodes)
}

/// Returns a node's values of the attributes that a set names.
fn attributes_of(node: GraphNode, set: &Set) -> Set {
    let mut plain = Set::new();
    for &(id, _) in set {
        // SAFETY: rule of answers: `value` has the 64 bytes of a launch attribute. `node` is a
        // kernel node of the graph that is being built.
        let value = told(|value| unsafe { driver::cuGraphKernelNodeGetAttribute(node, id as i32, opaque(value)) });
        plain.extend(value.map(|value: AttributeValue| (id, value)));
    }
    plain
}

/// True if the set has a cluster.
///
/// Captured kernels have a policy for scheduling clusters even without a cluster, and new nodes have none. If an exec
/// is updated from one kind of nodes to the other, the device takes 0.1 µs more for each node from then on (measured on
/// an H200, driver 580).
fn has_cluster(set: &Set) -> bool {
    let none = AttributeValue::default();
    set.iter().any(|(id, value)| *id == attribute::CLUSTER_DIMENSION && *value != none)
}

fn give_attributes(node: GraphNode, set: &Set, plain: &Set, skipped: Option<u32>) -> Result<(), Status> {
    let differs = |of: &&(u32, AttributeValue)| Some(of.0) != skipped && !plain.contains(of);
    for (id, value) in set.iter().filter(differs) {
        let mut value = *value;
        // SAFETY: `value` is a local with the 64 bytes of a launch attribute. `node` is a kernel
        // node of the graph that is being built.
        done(unsafe { driver::cuGraphKernelNodeSetAttribute(node, *id as i32, opaque(&mut value)) })?;
    }
    Ok(())
}

/// Runs a graph's work on a stream, node after node.
pub(super) fn run(functions: &Functions, shape: &Shape, records: &Records, disabled: &[u32], to: StreamArg) -> Status {
    let Some(order) = shape.in_order() else { return INVALID };
    // Either all nodes are run or none.
    let mut called = Called::of(functions);
    let lost = |(index, node): (usize, &Node)| {
        node.kind == NodeKind::Kernel && kernel(&mut called, records.get(index)).is_none()
    };
    if shape.nodes.iter().enumerate().any(lost) {
        return INVALID;
    }
    for index in order.into_iter().filter(|index| !disabled.contains(index)) {
        let entry = shape.nodes[index as usize];
        let set = shape.sets.get(usize::from(entry.set));
        let status = run_node(&mut called, entry.kind, set, records.get(index as usize), to);
        if status != SUCCESS {
            return status;
        }
    }
    SUCCESS
}

fn run_node(called: &mut Called, kind: NodeKind, set: Option<&Set>, record: &[u8], to: StreamArg) -> Status {
    let stream = to.stream;
    // SAFETY: rule of the program's handles: the program launches on this stream. The record holds
    // what the driver accepted for the node, and the program keeps the memory that it names alive
    // for its launch.
    let status = unsafe {
        match kind {
            NodeKind::Kernel => with_values(called, record, |params| {
                let attributes: Vec<LaunchAttribute> = set
                    .into_iter()
                    .flatten()
                    .filter(|(id, value)| !is_default(*id, value))
                    .map(|&(id, value)| LaunchAttribute { id, pad: 0, value })
                    .collect();
                let mut config = LaunchConfig {
                    grid: params.grid,
                    block: params.block,
                    shared_bytes: params.shared_bytes,
                    stream,
                    attributes: attributes.as_ptr(),
                    len: attributes.len() as u32,
                };
                let function = if params.function != 0 { params.function } else { params.kernel } as Opaque;
                let values = params.params as *mut Opaque;
                on!(to, cuLaunchKernelEx / cuLaunchKernelEx_ptsz(opaque(&mut config), function, values, null_mut()))
            }),
            NodeKind::Memcpy => CopyRecord::read_from_bytes(record)
                .ok()
                .map(|mut of| on!(to, cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz(opaque(&mut of.params), stream))),
            NodeKind::Memset => SetRecord::read_from_bytes(record).ok().map(|of| memset(&of.params, to)),
            NodeKind::Host => HostParams::read_from_bytes(record).ok().map(|params| {
                let (function, data) = (params.function as Opaque, params.data as Opaque);
                on!(to, cuLaunchHostFunc / cuLaunchHostFunc_ptsz(stream, function, data))
            }),
            NodeKind::Empty => Some(Some(SUCCESS)),
            _ => None,
        }
    };
    status.flatten().unwrap_or(INVALID)
}

/// True if a launch has this value of an attribute by default (as read of nodes on an H200, driver 580).
fn is_default(id: u32, value: &AttributeValue) -> bool {
    const DOMAINS: u64 = 0x0100;
    match id {
        // This cannot be given to a launch on a stream, or means nothing without a cluster.
        attribute::DEVICE_UPDATABLE | attribute::CLUSTER_SCHEDULING => true,
        attribute::SYNC_DOMAIN_MAP => value[0] & 0xffff == DOMAINS,
        _ => *value == AttributeValue::default(),
    }
}

/// # Safety
/// The memory belongs to the program, which sets it.
unsafe fn memset(of: &SetParams, to: StreamArg) -> Option<Status> {
    let (stream, dst, pitch) = (to.stream, of.dst, of.pitch as usize);
    let (width, height) = (of.width as usize, of.height.max(1) as usize);
    // SAFETY: our caller vouches for the memory. Rule of the program's handles: the stream is
    // alive.
    unsafe {
        match (of.element_bytes, height) {
            (1, 1) => on!(to, cuMemsetD8Async / cuMemsetD8Async_ptsz(dst, of.value as u8, width, stream)),
            (2, 1) => on!(to, cuMemsetD16Async / cuMemsetD16Async_ptsz(dst, of.value as u16, width, stream)),
            (4, 1) => on!(to, cuMemsetD32Async / cuMemsetD32Async_ptsz(dst, of.value, width, stream)),
            (1, _) => {
                on!(to, cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz(dst, pitch, of.value as u8, width, height, stream))
            }
            (2, _) => {
                on!(
                    to,
                    cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz(dst, pitch, of.value as u16, width, height, stream)
                )
            }
            (4, _) => {
                on!(to, cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz(dst, pitch, of.value, width, height, stream))
            }
            _ => None,
        }
    }
}
