//! Reads a CUDA graph.

use super::attributes_set;
use super::edges::{edges, ok};
use super::functions::{Function, Functions, MAX_PARAM_BYTES};
use super::layout::*;
use super::places::{tag_of_copy, tag_of_memset};
use super::shape::{Node, PACKED, Set, Shape, attribute};
use crate::backend::answer::told;
use crate::backend::driver;
use crate::backend::graphs::{Read, Reading, pinned_by};
use crate::backend::green;
use crate::backend::params::packed;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned};
use rustc_hash::FxHashMap;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Maximum depth of nested child graphs.
const MAX_DEPTH: u32 = 16;

/// Reads a graph; `shape` is a buffer.
pub(super) fn read(
    functions: &Functions,
    graph: Graph,
    reading: &mut Reading,
    shape: &mut Shape,
) -> Result<Read, Pinned> {
    reading.clear();
    shape.clear();
    // SAFETY: rule of answers: `context` takes the handle.
    shape.context = answer(|context| unsafe { driver::cuCtxGetCurrent(context) })? as u64;
    if green::is_one(shape.context) {
        return Err(Pinned::Contexts);
    }
    // SAFETY: rule of answers: `device` takes the ordinal.
    let device = answer(|device| unsafe { driver::cuCtxGetDevice(device) })?;
    if attributes_set::has_unknown(graph as usize) {
        return Err(Pinned::UnknownAttribute);
    }
    nodes_of(graph, &mut reading.nodes)?;
    let mut whole = Read::Whole;
    let mut called = Called::default();
    shape.nodes.reserve(reading.nodes.len());
    for &node in &reading.nodes {
        let kind = kind_of(node, &mut reading.unknown)?;
        let mut entry = Node { kind, set: 0, tag: 0 };
        match kind {
            NodeKind::Kernel => kernel(functions, node, &mut reading.records, shape, &mut entry, &mut called)?,
            NodeKind::Memcpy => {
                let params = copy_params(node)?;
                entry.tag = tag_of_copy(&params, device)?;
                let record = CopyRecord { context: shape.context, params };
                reading.records.push(|bytes| bytes.extend_from_slice(record.as_bytes()));
            }
            NodeKind::Memset => {
                let params = memset_params(node)?;
                entry.tag = tag_of_memset(&params, device)?;
                let record = SetRecord { context: shape.context, params };
                reading.records.push(|bytes| bytes.extend_from_slice(record.as_bytes()));
            }
            NodeKind::Host => {
                // SAFETY: rule of answers: `params` takes the struct. The node is a host node of a
                // live graph.
                let params: HostParams =
                    answer(|params| unsafe { driver::cuGraphHostNodeGetParams(node, opaque(params)) })?;
                reading.records.push(|bytes| bytes.extend_from_slice(params.as_bytes()));
            }
            NodeKind::Empty => reading.records.push(|_| {}),
            NodeKind::Child => {
                child(functions, node, (shape.context, device), 0, (&mut reading.inner, &mut reading.unknown))?;
                whole = Read::CloneOnly;
                reading.records.push(|_| {});
            }
            other => return Err(pinned_by(other).unwrap_or(Pinned::UnknownNode)),
        }
        reading.kinds.push(kind as u8);
        shape.nodes.push(entry);
    }
    edges(reading, shape)?;
    shape.write(&mut reading.shape);
    Ok(whole)
}

/// Returns what a call that reads a graph writes to its out-parameter.
#[inline(always)]
fn answer<T: FromZeros>(call: impl FnOnce(&mut T) -> Option<Status>) -> Result<T, Pinned> {
    told(call).map_err(|_| Pinned::Parameters)
}

fn copy_params(node: GraphNode) -> Result<CopyParams, Pinned> {
    // SAFETY: rule of answers: `params` takes the struct. Our caller found that the node is a copy
    // node of a live graph.
    answer(|params| unsafe { driver::cuGraphMemcpyNodeGetParams(node, opaque(params)) })
}

fn memset_params(node: GraphNode) -> Result<SetParams, Pinned> {
    // SAFETY: rule of answers: `params` takes the struct. Our caller found that the node is a
    // memset node of a live graph.
    answer(|params| unsafe { driver::cuGraphMemsetNodeGetParams(node, opaque(params)) })
}

/// Returns the handles of a graph's nodes.
pub(super) fn nodes_of(graph: Graph, nodes: &mut Vec<GraphNode>) -> Result<(), Pinned> {
    nodes.clear();
    let mut len = 0;
    // SAFETY: rule of answers: with a null array only `len` is written. Then `nodes` has `len`
    // elements, and no more are written. Rule of the program's handles: the graph is alive.
    unsafe {
        ok(driver::cuGraphGetNodes(graph, null_mut(), &mut len))?;
        nodes.resize(len, null_mut());
        if len > 0 {
            ok(driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut len))?;
            nodes.truncate(len);
        }
    }
    Ok(())
}

/// Returns a node's kind. `unknown` gets a text for the user if the kind is unknown.
fn kind_of(node: GraphNode, unknown: &mut String) -> Result<NodeKind, Pinned> {
    // SAFETY: rule of answers: `kind` takes the number. The node is one of a live graph.
    let kind = answer(|kind| unsafe { driver::cuGraphNodeGetType(node, kind) })?;
    let known = u8::try_from(kind).ok().and_then(NodeKind::from_u8).filter(|kind| *kind != NodeKind::Other);
    known.ok_or_else(|| {
        *unknown = format!("nodes of kind {kind}");
        Pinned::UnknownNode
    })
}

/// The functions of a graph's kernels.
#[derive(Default)]
struct Called {
    functions: Vec<Callee>,
    /// Index by function and kernel.
    index: FxHashMap<(u64, u64), usize>,
    /// Index of the last node's function. Neighbouring nodes often call the same one.
    last: usize,
}

struct Callee {
    key: (u64, u64),
    function: Arc<Function>,
    /// [`attribute::OF_FUNCTIONS`].
    attributes: Set,
    /// The answers for its last node, and the index of all its attributes.
    asked: Option<(OfNode, u16)>,
}

impl Called {
    fn get(&mut self, functions: &Functions, key: (u64, u64), node: GraphNode) -> Result<&mut Callee, Pinned> {
        if self.functions.get(self.last).is_none_or(|known| known.key != key) {
            self.last = match self.index.get(&key) {
                Some(&known) => known,
                None => {
                    let function = functions.get(key.0, key.1).ok_or(Pinned::Parameters)?;
                    self.functions.push(Callee { key, function, attributes: ask_function(node)?, asked: None });
                    self.index.insert(key, self.functions.len() - 1);
                    self.functions.len() - 1
                }
            };
        }
        self.functions.get_mut(self.last).ok_or(Pinned::Parameters)
    }
}

/// Values of [`attribute::OF_NODES`].
type OfNode = [AttributeValue; attribute::OF_NODES.len()];

fn ask(node: GraphNode, id: u32, value: &mut AttributeValue) -> Option<Status> {
    // SAFETY: rule of answers: `value` has the 64 bytes of a launch attribute. Our caller found
    // that the node is a kernel node of a live graph.
    unsafe { driver::cuGraphKernelNodeGetAttribute(node, id as i32, opaque(value)) }
}

/// Asks for a node's attributes. `known`: those of another node of the same function.
fn ask_node(node: GraphNode, known: Option<&OfNode>) -> Result<OfNode, Pinned> {
    let mut values = known.copied().unwrap_or_default();
    for (&id, value) in attribute::OF_NODES.iter().zip(&mut values) {
        if known.is_some() && !attributes_set::may_differ(id) {
            continue;
        }
        *value = AttributeValue::default();
        ok(ask(node, id, value))?;
        if id == attribute::DEVICE_UPDATABLE && value[0] as u32 != 0 {
            return Err(Pinned::DeviceUpdatable);
        }
    }
    Ok(values)
}

fn ask_function(node: GraphNode) -> Result<Set, Pinned> {
    let mut set = Set::new();
    for &id in attribute::OF_FUNCTIONS.iter().filter(|&id| UNKNOWN.load(Relaxed) & (1 << id) == 0) {
        let mut value = AttributeValue::default();
        match ask(node, id, &mut value) {
            Some(SUCCESS) => set.push((id, value)),
            // This driver has no such attribute for nodes, and never will.
            Some(1) => drop(UNKNOWN.fetch_or(1 << id, Relaxed)),
            _ => return Err(Pinned::Parameters),
        }
    }
    Ok(set)
}

/// Attributes that this driver does not tell of kernel nodes: asking costs 1.3 µs each time, while the others cost 0.04
/// (measured on an H200, driver 580).
static UNKNOWN: AtomicU32 = AtomicU32::new(0);

fn kernel(
    functions: &Functions,
    node: GraphNode,
    records: &mut crate::backend::source::Records,
    shape: &mut Shape,
    entry: &mut Node,
    called: &mut Called,
) -> Result<(), Pinned> {
    let mut params = KernelParams::default();
    // SAFETY: rule of answers: `params` takes the struct. Our caller found that the node is a
    // kernel node of a live graph.
    ok(unsafe { driver::cuGraphKernelNodeGetParams_v2(node, opaque(&mut params)) })?;
    if params.context != 0 && params.context != shape.context {
        return Err(Pinned::Contexts);
    }
    if attributes_set::has_unknown(params.function as usize) || attributes_set::has_unknown(params.kernel as usize) {
        return Err(Pinned::UnknownAttribute);
    }
    let callee = called.get(functions, (params.function, params.kernel), node)?;
    let mut fits = true;
    // SAFETY: the driver has just filled `params` for a node of a live graph, and `callee` is that
    // node's function.
    records.push(|bytes| fits = unsafe { kernel_record(&params, &callee.function, bytes) });
    if !fits {
        return Err(Pinned::Parameters);
    }
    let packed = if params.params == 0 && params.extra != 0 { PACKED } else { 0 };
    entry.tag = u64::from(callee.function.traits) | packed;
    let asked = ask_node(node, callee.asked.as_ref().map(|(values, _)| values))?;
    entry.set = match callee.asked {
        Some((before, set)) if before == asked => set,
        _ => {
            let of_node = attribute::OF_NODES.into_iter().zip(asked);
            let set: Set = of_node.chain(callee.attributes.iter().copied()).collect();
            // A graph's kernels have few different sets.
            let at = shape.sets.iter().position(|known| *known == set).unwrap_or_else(|| {
                shape.sets.push(set);
                shape.sets.len() - 1
            });
            let at = u16::try_from(at).map_err(|_| Pinned::Parameters)?;
            callee.asked = Some((asked, at));
            at
        }
    };
    Ok(())
}

/// Appends a kernel's record; returns true if its parameters could be read.
///
/// # Safety
/// `params` describes a kernel, its pointers as the driver defines them, and `function` is that kernel.
pub(super) unsafe fn kernel_record(params: &KernelParams, function: &Function, bytes: &mut Vec<u8>) -> bool {
    let head = KernelHead {
        function: params.function,
        kernel: params.kernel,
        context: params.context,
        grid: params.grid,
        block: params.block,
        shared_bytes: params.shared_bytes,
        generation: function.generation,
    };
    bytes.extend_from_slice(head.as_bytes());
    let start = bytes.len();
    bytes.resize(start + function.bytes as usize, 0);
    if function.params.is_empty() {
        return true;
    }
    // SAFETY: our caller vouches for `params`: an array with an address for each parameter of
    // `function`, or a packed buffer with its size.
    unsafe {
        if params.params != 0 {
            let values = params.params as *const *const u8;
            for (index, &(offset, len)) in function.params.iter().enumerate() {
                let value = values.add(index).read();
                if value.is_null() {
                    return false;
                }
                let to = &mut bytes[start + offset as usize..start + (offset + len) as usize];
                std::ptr::copy_nonoverlapping(value, to.as_mut_ptr(), to.len());
            }
            return true;
        }
        let Some((buffer, len)) = packed(params.extra as *const usize) else { return false };
        if len < function.bytes as usize || len > MAX_PARAM_BYTES + 4096 {
            return false;
        }
        std::ptr::copy_nonoverlapping(buffer, bytes[start..].as_mut_ptr(), function.bytes as usize);
        true
    }
}

/// Reads a child graph, and checks that a clone can stand for it.
fn child(
    functions: &Functions,
    node: GraphNode,
    at: (u64, Device),
    depth: u32,
    (counts, unknown): (&mut [u32; 16], &mut String),
) -> Result<(), Pinned> {
    // SAFETY: rule of answers: `graph` takes the handle. Our caller found that the node is a child
    // graph node of a live graph.
    let graph = answer(|graph| unsafe { driver::cuGraphChildGraphNodeGetGraph(node, graph) })?;
    if depth == MAX_DEPTH {
        return Err(Pinned::UnknownNode);
    }
    if attributes_set::has_unknown(graph as usize) {
        return Err(Pinned::UnknownAttribute);
    }
    let mut nodes = Vec::new();
    nodes_of(graph, &mut nodes)?;
    let (mut records, mut shape) =
        (crate::backend::source::Records::default(), Shape { context: at.0, ..Shape::default() });
    for node in nodes {
        let kind = kind_of(node, unknown)?;
        counts[kind as usize % 16] += 1;
        match kind {
            NodeKind::Kernel => {
                let mut entry = Node { kind, set: 0, tag: 0 };
                records.clear();
                kernel(functions, node, &mut records, &mut shape, &mut entry, &mut Called::default())?;
            }
            NodeKind::Memcpy => drop(tag_of_copy(&copy_params(node)?, at.1)?),
            NodeKind::Memset => drop(tag_of_memset(&memset_params(node)?, at.1)?),
            NodeKind::Host | NodeKind::Empty => {}
            NodeKind::Child => child(functions, node, at, depth + 1, (counts, unknown))?,
            other => return Err(pinned_by(other).unwrap_or(Pinned::UnknownNode)),
        }
    }
    Ok(())
}

/// Splits a kernel's record into its parts.
pub(super) fn kernel_parts(record: &[u8]) -> Option<(KernelHead, &[u8])> {
    KernelHead::read_from_prefix(record).ok()
}
