//! Nodes that allocate, by the graph or the exec that has them. [`crate::records::graph_memory`] changes them.

use super::allocations::Entry;
use std::collections::{HashMap, VecDeque};

/// The nodes of one graph.
#[derive(Default)]
pub(crate) struct Nodes {
    /// Each with its address, which nodes of one graph may share.
    pub(crate) all: Vec<(u64, Entry)>,
    /// The exec made from the graph, else 0. The driver allows one at a time.
    pub(crate) exec: u64,
    /// True while the capture that makes the graph has not ended.
    pub(crate) in_capture: bool,
}

/// Nodes and their owners. Programs add such nodes as rarely as they build graphs, so one lock suffices; it is never
/// held over a driver call.
#[derive(Default)]
pub(crate) struct GraphMemory {
    /// By the program's handle of the graph.
    pub(crate) graphs: HashMap<u64, Nodes>,
    /// Nodes of graphs that are gone, by the exec that lives on.
    pub(crate) execs: HashMap<u64, Nodes>,
    /// Memory that launches left, of graphs that are gone with their execs, with its address. The entry checked longest
    /// ago comes first.
    pub(crate) left: VecDeque<(u64, Entry)>,
    /// Number of nodes per address.
    pub(crate) addresses: HashMap<u64, u32>,
}
