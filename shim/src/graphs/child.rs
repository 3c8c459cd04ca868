//! Nodes inside child graphs. An exec's setters take the nodes of the embedded copies.

use super::Cache;
use gpumem_abi::types::{Graph, GraphNode};

/// How deep child graphs inside child graphs are followed.
const MAX_DEPTH: u32 = 16;

/// The node inside a child graph of `to` that has the same place as `node` has inside a child graph of `from`.
/// `place_of` gives the places that nodes of `from` had when `to` was made of it. The program may have removed nodes
/// and added others since.
pub(super) fn node_inside(
    cache: &'static Cache,
    from: Graph,
    node: GraphNode,
    to: Graph,
    place_of: impl Fn(GraphNode) -> Option<u32>,
) -> Option<GraphNode> {
    let (ours, theirs) = (cache.library.calls.nodes(cache.sources.unfolded(from)?)?, cache.library.calls.nodes(to)?);
    ours.into_iter().find_map(|ours| {
        let from = cache.library.calls.child_graph(ours)?;
        let theirs = *theirs.get(place_of(ours)? as usize)?;
        find(cache, from, node, cache.library.calls.child_graph(theirs)?, 1)
    })
}

fn find(cache: &'static Cache, from: Graph, node: GraphNode, to: Graph, depth: u32) -> Option<GraphNode> {
    let (ours, theirs) = (cache.library.calls.nodes(from)?, cache.library.calls.nodes(to)?);
    if depth == MAX_DEPTH || ours.len() != theirs.len() {
        return None;
    }
    if let Some(at) = ours.iter().position(|&known| known == node) {
        return theirs.get(at).copied();
    }
    ours.iter().zip(&theirs).find_map(|(&a, &b)| {
        let (a, b) = (cache.library.calls.child_graph(a)?, cache.library.calls.child_graph(b)?);
        find(cache, a, node, b, depth + 1)
    })
}
