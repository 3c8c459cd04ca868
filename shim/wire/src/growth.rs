//! Tells which rows of growth a live record counts in. The shim's samples and readers of records add up by the same
//! rules.

use crate::kinds::{AllocKind, GrowthKind};
use crate::layout::{AllocSlot, ContextSlot, ExecSlot, GraphSlot, StreamSlot};

/// A row: its kind, and its key.
pub type Key = (GrowthKind, u64);

/// Kinds of rows about things that take no memory of their own.
pub const WITHOUT_MEMORY: [GrowthKind; 4] =
    [GrowthKind::Code, GrowthKind::Streams, GrowthKind::Events, GrowthKind::Contexts];

/// Returns the rows of an allocation: of its bytes if it takes memory of its own, and of code and events.
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

/// Returns the row of a stream.
pub fn key_of_stream(stream: &StreamSlot) -> Key {
    (GrowthKind::Streams, stream.stack.into())
}

/// Returns the row of a context that the program made and has not destroyed.
pub fn key_of_context(context: &ContextSlot) -> Option<Key> {
    (context.gone_ns == 0 && context.stack != 0).then_some((GrowthKind::Contexts, context.stack.into()))
}

/// Returns the row of a graph's memory.
pub fn key_of_graph(graph: &GraphSlot) -> Key {
    (GrowthKind::Graphs, graph.stack.into())
}

/// Returns the rows of an exec's memory.
pub fn keys_of_exec(exec: &ExecSlot) -> impl Iterator<Item = Key> + use<> {
    let class = (exec.class != 0).then_some((GrowthKind::Class, exec.class));
    std::iter::once((GrowthKind::Graphs, exec.stack.into())).chain(class)
}
