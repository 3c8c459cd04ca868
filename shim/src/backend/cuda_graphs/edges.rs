//! Reads the edges of a CUDA graph.

use super::shape::{Edge, Shape};
use crate::backend::driver;
use crate::backend::graphs::Reading;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Pinned;
use rustc_hash::FxHashMap;
use std::ptr::null_mut;

/// Bytes of edge data. An edge has data if it means more than "the other node has ended".
const EDGE_DATA: usize = 8;
/// Number of a node's dependencies that are asked for at once.
const FEW_EDGES: usize = 8;

/// `CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER`, `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`: the highest that exist.
pub(super) const LAST_PORT: u8 = 2;
pub(super) const LAST_TYPE: u8 = 1;

/// Checks the answer of a call that reads a graph. If it failed, or the call is missing, the graph's parameters cannot
/// be read.
pub(super) fn ok(status: Option<Status>) -> Result<(), Pinned> {
    if status == Some(SUCCESS) { Ok(()) } else { Err(Pinned::Parameters) }
}

/// Positions of a graph's nodes.
struct Places<'a> {
    nodes: &'a [GraphNode],
    /// Filled on first need.
    index: &'a mut FxHashMap<usize, u32>,
    last: usize,
}

impl Places<'_> {
    fn of(&mut self, node: GraphNode) -> Result<u32, Pinned> {
        // Edges mostly follow the order in which nodes were added.
        if let Some(near) = (self.last..self.last + 2).find(|&at| self.nodes.get(at) == Some(&node)) {
            self.last = near;
            return Ok(near as u32);
        }
        if self.index.is_empty() {
            self.index.extend(self.nodes.iter().enumerate().map(|(at, &node)| (node as usize, at as u32)));
        }
        let at = self.index.get(&(node as usize)).copied().ok_or(Pinned::UnknownNode)?;
        self.last = at as usize;
        Ok(at)
    }
}

/// Reads the edges by the node that they lead to, in the order of its dependencies, by which the driver pairs nodes in
/// an update. Asking each node takes a third of the time of asking the graph, which gives the edges in another order
/// (measured on an H200, driver 580).
pub(super) fn edges(reading: &mut Reading, shape: &mut Shape) -> Result<(), Pinned> {
    let mut places = Places { nodes: &reading.nodes, index: &mut reading.index, last: 0 };
    let (mut deps, mut data) = (vec![null_mut(); FEW_EDGES], vec![[0_u8; EDGE_DATA]; FEW_EDGES]);
    let mut is_sink = vec![true; reading.nodes.len()];
    let (mut roots, mut branches) = (0, false);
    shape.edges.reserve(reading.nodes.len());
    for (at, &node) in reading.nodes.iter().enumerate() {
        let mut len = deps.len();
        ok(dependencies(node, &mut deps, &mut data, &mut len))?;
        if len >= deps.len() {
            // The node may have more dependencies.
            ok(dependencies(node, &mut [], &mut [], &mut len))?;
            deps.resize(len + 1, null_mut());
            data.resize(len + 1, [0; EDGE_DATA]);
            len = deps.len();
            ok(dependencies(node, &mut deps, &mut data, &mut len))?;
        }
        roots += u32::from(len == 0);
        branches |= len > 1;
        for (&dep, &data) in deps.iter().zip(&data).take(len) {
            let from = places.of(dep)?;
            if !is_known(&data) {
                reading.unknown = format!("an edge of type {} from port {} to port {}", data[2], data[0], data[1]);
                return Err(Pinned::UnknownEdge);
            }
            branches |= !std::mem::replace(&mut is_sink[from as usize], false);
            shape.edges.push(Edge { from, to: at as u32, data: u64::from_le_bytes(data) });
        }
    }
    reading.branches = branches || roots > 1;
    reading.sinks = is_sink.into_iter().filter(|&sink| sink).count() as u32;
    Ok(())
}

/// True if an edge's data is known: `CUgraphEdgeData`'s ports, its type, and zeroes.
fn is_known(data: &[u8; EDGE_DATA]) -> bool {
    let [from, to, kind, rest @ ..] = *data;
    from <= LAST_PORT && to == 0 && kind <= LAST_TYPE && rest == [0; 5]
}

/// Asks for dependencies, as many as there is room for; without room, for their number.
fn dependencies(
    node: GraphNode,
    deps: &mut [GraphNode],
    data: &mut [[u8; EDGE_DATA]],
    len: &mut usize,
) -> Option<Status> {
    let (deps, data) = match deps.is_empty() {
        true => (null_mut(), null_mut()),
        false => (deps.as_mut_ptr(), data.as_mut_ptr().cast()),
    };
    // SAFETY: rule of answers: `len` is the length of `deps` and of `data`, or both are null and
    // only `len` is written. Rule of the program's handles: the node's graph is alive.
    unsafe { driver::cuGraphNodeGetDependencies_v2(node, deps, data, len) }
}
