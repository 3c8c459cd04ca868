//! Which rows of growth a live record counts in: the shim's samples add up by this, and so does whoever reads them.

use crate::kinds::GrowthKind;
use crate::layout::{AllocSlot, ExecSlot, GraphSlot};

/// A row: what it is about, and which one.
pub type Key = (GrowthKind, u64);

/// Rows of an allocation's bytes: none if it takes no memory of its own.
pub fn keys_of_alloc(alloc: &AllocSlot) -> impl Iterator<Item = Key> + use<> {
    let takes_memory = alloc.takes_memory();
    let site = takes_memory.then_some((GrowthKind::Site, alloc.stack.into()));
    let tag = (takes_memory && alloc.tag != 0).then_some((GrowthKind::Tag, alloc.tag.into()));
    site.into_iter().chain(tag)
}

/// The row of what a graph holds.
pub fn key_of_graph(graph: &GraphSlot) -> Key {
    (GrowthKind::Graphs, graph.stack.into())
}

/// Rows of what an exec holds.
pub fn keys_of_exec(exec: &ExecSlot) -> impl Iterator<Item = Key> + use<> {
    let class = (exec.class != 0).then_some((GrowthKind::Class, exec.class));
    std::iter::once((GrowthKind::Graphs, exec.stack.into())).chain(class)
}
