//! Nodes inside child graphs: an exec's setters take those of the embedded copies.

use super::cache::Cache;
use gpumem_abi::types::{Graph, GraphNode};

/// Child graphs inside child graphs are followed this deep.
const MAX_DEPTH: u32 = 16;

/// The node of `to` that has the place in it that `node` has in `from`, somewhere in a child graph.
pub fn node_inside(cache: &Cache, from: Graph, node: GraphNode, to: Graph) -> Option<GraphNode> {
    let from = cache.unfolded(from)?;
    find(cache, from, node, to, 0)
}

fn find(cache: &Cache, from: Graph, node: GraphNode, to: Graph, depth: u32) -> Option<GraphNode> {
    let (ours, theirs) = (cache.calls.nodes(from)?, cache.calls.nodes(to)?);
    if depth == MAX_DEPTH || ours.len() != theirs.len() {
        return None;
    }
    if let Some(at) = ours.iter().position(|&known| known == node) {
        return theirs.get(at).copied();
    }
    ours.iter().zip(&theirs).find_map(|(&a, &b)| {
        let (a, b) = (cache.calls.child_graph(a)?, cache.calls.child_graph(b)?);
        find(cache, a, node, b, depth + 1)
    })
}
