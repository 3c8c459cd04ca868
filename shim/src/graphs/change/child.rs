//! Nodes inside child graphs. An exec's setters take the nodes of the embedded copies.

use crate::backend::graphs::GraphCalls;
use crate::graphs::store::ExecStore;
use gpumem_abi::types::{Graph, GraphNode};

/// The most levels of nested child graphs that are followed.
const MAX_DEPTH: u32 = 16;

/// Returns the node inside a child graph of `to` at the same index as `node` has inside a child graph of `from`.
/// `place_of` returns the indices that nodes of `from` had when `to` was made of it. The program may have removed nodes
/// and added others since.
/// and added others since.
pub(super) fn node_inside(
    store: &ExecStore,
    (from, node): (Graph, GraphNode),
    to: Graph,
    place_of: impl Fn(GraphNode) -> Option<u32>,
) -> Option<GraphNode> {
    let calls = store.library().calls;
    let (ours, theirs) = (calls.nodes(store.sources().unfolded(from)?)?, calls.nodes(to)?);
    ours.into_iter().find_map(|ours| {
        let from = calls.child_graph(ours)?;
        let theirs = *theirs.get(place_of(ours)? as usize)?;
        find(calls, from, node, calls.child_graph(theirs)?, 1)
    })
}

fn find(calls: &dyn GraphCalls, from: Graph, node: GraphNode, to: Graph, depth: u32) -> Option<GraphNode> {
    let (ours, theirs) = (calls.nodes(from)?, calls.nodes(to)?);
    if depth == MAX_DEPTH || ours.len() != theirs.len() {
        return None;
    }
    if let Some(at) = ours.iter().position(|&known| known == node) {
        return theirs.get(at).copied();
    }
    ours.iter().zip(&theirs).find_map(|(&a, &b)| {
        let (a, b) = (calls.child_graph(a)?, calls.child_graph(b)?);
        find(calls, a, node, b, depth + 1)
    })
}
