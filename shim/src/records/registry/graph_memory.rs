//! Nodes that allocate, by the graph or the exec that has them. What happens to them is in
//! [`crate::records::graph_memory`].

use super::allocations::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// The nodes of one graph.
#[derive(Default)]
pub(crate) struct Nodes {
    /// Each with its address, which nodes of one graph may share.
    pub(crate) all: Vec<(u64, Entry)>,
    /// The exec that was made of the graph, else 0. The driver allows one at a time.
    pub(crate) exec: u64,
    /// The capture that makes the graph has not ended.
    pub(crate) in_capture: bool,
}

/// Who has which nodes. Programs add such nodes as rarely as they build graphs, so one lock will do; it is never held over
/// a call of the driver.
#[derive(Default)]
pub(crate) struct GraphMemory {
    pub(crate) inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// By the program's handle of the graph.
    pub(crate) graphs: HashMap<u64, Nodes>,
    /// Of graphs that are gone, by the exec that lives on.
    pub(crate) execs: HashMap<u64, Nodes>,
    /// What launches left behind, of graphs that are gone with their execs, by address. In front what was looked at least
    /// lately.
    pub(crate) left: VecDeque<(u64, Entry)>,
    /// How many nodes have an address.
    pub(crate) addresses: HashMap<u64, u32>,
}
