//! Which rows of growth a live record counts in: the shim's samples add up by this, and so does whoever reads them.

use crate::kinds::{AllocKind, GrowthKind};
use crate::layout::{AllocSlot, ContextSlot, ExecSlot, GraphSlot, StreamSlot};

/// A row: what it is about, and which one.
pub type Key = (GrowthKind, u64);

/// Kinds of rows about things that take no memory of their own.
pub const WITHOUT_MEMORY: [GrowthKind; 4] =
    [GrowthKind::Code, GrowthKind::Streams, GrowthKind::Events, GrowthKind::Contexts];

/// Rows of an allocation: of its bytes if it takes memory of its own, and of code and events.
pub fn keys_of_alloc(alloc: &AllocSlot) -> impl Iterator<Item = Key> + use<> {
    const CODE: u8 = AllocKind::Code as u8;
    const EVENT: u8 = AllocKind::Event as u8;
    let takes_memory = alloc.takes_memory();
    let kind = match alloc.kind {
        _ if takes_memory => Some(GrowthKind::Site),
        CODE => Some(GrowthKind::Code),
        EVENT => Some(GrowthKind::Events),
        _ => None,
    };
    let site = kind.map(|kind| (kind, alloc.stack.into()));
    let tag = (takes_memory && alloc.tag != 0).then_some((GrowthKind::Tag, alloc.tag.into()));
    site.into_iter().chain(tag)
}

/// The row of a stream.
pub fn key_of_stream(stream: &StreamSlot) -> Key {
    (GrowthKind::Streams, stream.stack.into())
}

/// The row of a context that the program made and has not destroyed.
pub fn key_of_context(context: &ContextSlot) -> Option<Key> {
    (context.gone_ns == 0 && context.stack != 0).then_some((GrowthKind::Contexts, context.stack.into()))
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
