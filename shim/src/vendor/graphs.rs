//! The real calls that the graph cache needs, behind one trait.

use crate::vendor::source::Records;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned};
use rustc_hash::FxHashMap;

/// A graph, taken apart. The buffer is used again for the next graph.
#[derive(Default)]
pub(crate) struct Reading {
    /// Handles of the nodes.
    pub nodes: Vec<GraphNode>,
    /// [`NodeKind`] of each.
    pub kinds: Vec<u8>,
    /// What two graphs have to share for their execs to stand in for one another: kinds, edges, attributes, and all
    /// that no setter can change. The backend reads it back in [`GraphCalls::build`].
    pub shape: Vec<u8>,
    /// What setters can change.
    pub records: Records,
    /// Nodes inside child graphs, by kind.
    pub inner: [u32; 16],
    /// Nodes that no other depends on.
    pub sinks: u32,
    /// Whether the graph is no chain of nodes. The library may wait for all of the device's work when it destroys an
    /// exec of such a graph. (It was not seen to do so for a graph with one first node. It did for some with several,
    /// on an H200, driver 580.)
    pub branches: bool,
    /// Index by handle.
    pub index: FxHashMap<usize, u32>,
    /// What kept the graph from being read to the end, if that is something unknown: a noun for people.
    pub unknown: String,
}

impl Reading {
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.kinds.clear();
        self.shape.clear();
        self.records.clear();
        self.index.clear();
        self.unknown.clear();
        self.sinks = 0;
        self.branches = false;
        self.inner = [0; 16];
    }

    /// Whether the graph has nodes that wait for something outside of the device. A graph with nodes of unknown kinds
    /// is not read to the end.
    pub(crate) fn waits_outside(&self) -> bool {
        self.counts()[NodeKind::Host as usize] > 0
    }

    /// Nodes by kind.
    pub(crate) fn counts(&self) -> [u32; 16] {
        let mut counts = self.inner;
        self.kinds.iter().for_each(|&kind| counts[usize::from(kind) % 16] += 1);
        counts
    }
}

/// How a graph was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The graph was read whole and can be built again from shape and records.
    Whole,
    /// Not all of it could be read, so only a clone can stand for it.
    CloneOnly,
    /// The same, but an update can make an exec of one graph that of another graph of the same shape.
    CloneShared,
}

/// A stream as the program named it: the handle, and whether the call was the per-thread twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamArg {
    pub stream: Stream,
    pub per_thread: bool,
    /// Which default stream it is: the number of its context, or HIP's device plus one. 0: the handle alone tells the
    /// stream.
    pub home: u32,
}

impl StreamArg {
    pub(crate) const fn new(stream: Stream, per_thread: bool) -> Self {
        Self { stream, per_thread, home: 0 }
    }

    /// The answer to [`GraphCalls::waits_for_legacy`]. `flags_of` asks the library for a stream's flags, of streams that the
    /// program made: the default streams, whose handles are 0, 1 and 2, all wait.
    pub(super) fn waits_for_legacy(self, flags_of: impl FnOnce(Stream, &mut u32) -> Option<Status>) -> bool {
        let mut flags = 0;
        let told = self.stream as usize > 2 && flags_of(self.stream, &mut flags) == Some(SUCCESS);
        !told || flags & STREAM_NON_BLOCKING == 0
    }
}

/// What a node setter was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setter {
    pub params: Opaque,
    /// For copies and memsets: the context.
    pub context: u64,
    /// For kernels: whether the struct is the one with a kernel handle.
    pub v2: bool,
}

/// Runs something in a context that may be another thread's. The context does not end meanwhile. Does nothing in a
/// context that is ending or not known.
pub(crate) type Visit<'a> = &'a dyn Fn(u64, &mut dyn FnMut());

/// Code that is about to be unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Module(Opaque),
    Library(Opaque),
}

/// An event of ours.
pub(crate) type Event = usize;

/// Nodes of the graph that an exec was instantiated from, and the [`NodeKind`] of each.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'a> {
    pub handles: &'a [GraphNode],
    pub kinds: &'a [u8],
}

/// How many nodes were set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetCount {
    pub nodes: u64,
    /// How many of these call another function, or have another grid, block or shared memory.
    pub reshaped: u64,
}

/// How a vendor's library behaves, as far as the cache relies on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphBehaviour {
    /// Graphs can be read whole, so they can be folded.
    pub folds: bool,
    /// Launches of one exec run one after another, and pending ones go on when the exec is destroyed.
    pub outlived: bool,
    /// After an update by the program, a clone of the graph means the same as the exec.
    pub clones_follow: bool,
    /// An exec that is given other contents before its first launch runs slower from then on.
    pub set_early_is_slow: bool,
    /// Whether an upload by the program may be passed on. With CUDA it may not: launches that are pending may then run
    /// other code (docs/decisions/drivers.md, "A graph that was uploaded may run another kernel's code").
    pub uploads: bool,
    /// Streams that do not capture may be queried, and given events, while others capture.
    pub asked_beside_captures: bool,
    /// How often an exec may be updated as a whole before a new one takes its place. Each update takes memory that goes
    /// back only with the exec.
    pub most_updates: u32,
}

/// What the cache asks of a vendor's library. Statuses are the library's own.
pub(crate) trait GraphCalls: Send + Sync {
    /// Whether all functions that the cache needs are there.
    ///
    /// # Errors
    /// [`Pinned::Lookup`] if one is not.
    fn ready(&self) -> Result<(), Pinned>;

    /// What the cache may rely on: by default what CUDA does.
    fn behaviour(&self) -> GraphBehaviour {
        GraphBehaviour {
            folds: true,
            outlived: true,
            clones_follow: false,
            set_early_is_slow: true,
            uploads: false,
            asked_beside_captures: true,
            most_updates: u32::MAX,
        }
    }

    /// Takes a graph apart.
    ///
    /// # Errors
    /// Why no other exec can ever stand in for one of this graph.
    fn read(&self, graph: Graph, reading: &mut Reading) -> Result<Read, Pinned>;

    /// Writes the record for a setter's parameters into `out`. Whether the node can be held as a record.
    ///
    /// # Safety
    /// `params` are the program's own for a node setter of this kind, in the call that this is in. They are not NULL.
    unsafe fn record(&self, kind: NodeKind, params: Setter, out: &mut Vec<u8>) -> bool;

    /// Whether the library would accept this record for a node of a shape's execs.
    fn takes(&self, _shape: &[u8], _node: u32, _kind: NodeKind, _record: &[u8]) -> bool {
        false
    }

    /// Whether the library refuses a setter's parameters, with 1, for a node of a shape's execs.
    ///
    /// # Safety
    /// As for [`GraphCalls::record`].
    unsafe fn refuses(&self, _shape: &[u8], _node: u32, _kind: NodeKind, _params: Setter) -> bool {
        false
    }

    /// # Errors
    /// The library's.
    fn clone_of(&self, graph: Graph) -> Result<Graph, Status>;
    fn destroy_graph(&self, graph: Graph);
    /// Handles of a graph's nodes.
    fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>>;

    /// The graph inside a child graph node; `None` for other nodes.
    fn child_graph(&self, node: GraphNode) -> Option<Graph>;

    /// A graph of this shape, and its nodes in the order of the records. If not `exact`, it may lack parts that make no
    /// difference to its execs.
    ///
    /// # Errors
    /// The library's, or 1 if the shape does not fit the records.
    fn build(&self, shape: &[u8], records: &Records, exact: bool) -> Result<(Graph, Vec<GraphNode>), Status>;

    /// A fingerprint of the kinds of things in a shape, whatever their number and order.
    fn features(&self, _shape: &[u8]) -> u64 {
        0
    }

    /// Whether an exec of shape `from` holds exactly a graph of shape `to` once the library has updated it from that
    /// graph.
    fn becomes(&self, _from: &[u8], _to: &[u8]) -> bool {
        false
    }

    /// # Errors
    /// The library's.
    fn instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec, Status>;
    fn destroy_exec(&self, exec: GraphExec);
    /// Updates an exec to another graph as a whole. Only where [`Read::CloneShared`] says that this can be done.
    fn update(&self, _: GraphExec, _: Graph) -> Status {
        SYMBOL_NOT_FOUND
    }
    fn upload(&self, exec: GraphExec, to: StreamArg) -> Status;
    /// The program does not hear of this answer of the library. It must find no trace of it.
    fn unheard(&self, _: Status) {}

    /// Sets the nodes of an exec, or of the graph itself, whose records differ.
    ///
    /// # Errors
    /// The library's. Some nodes then hold the old records and some the new ones.
    fn set(&self, exec: Option<GraphExec>, nodes: Nodes, before: &Records, after: &Records)
    -> Result<SetCount, Status>;
    fn set_enabled(&self, exec: GraphExec, node: GraphNode, on: bool) -> Status;

    /// Does the work of a graph on a stream, node after node, without those that are `disabled`.
    fn run(&self, shape: &[u8], records: &Records, disabled: &[u32], stream: StreamArg) -> Status;

    /// An event that covers the work of a stream up to now.
    fn mark(&self, event: Option<Event>, stream: StreamArg) -> Option<Event>;
    /// Whether the work that an event covers has completed.
    fn completed(&self, event: Event) -> bool;
    /// Makes a stream wait for an event.
    fn wait(&self, stream: StreamArg, event: Event) -> Status;
    fn drop_event(&self, event: Event);
    /// Whether a stream captures.
    fn captures(&self, stream: StreamArg) -> bool;
    /// Whether work on a stream and on the legacy stream wait for one another. So it is with all streams but those made
    /// with `CU_STREAM_NON_BLOCKING` (CUDA driver API, "Stream synchronization behavior").
    fn waits_for_legacy(&self, stream: StreamArg) -> bool;
    /// The library's answer about a stream: success, that work is pending, or an error.
    fn query(&self, _: StreamArg) -> Status {
        SYMBOL_NOT_FOUND
    }
    /// Whether a stream is idle.
    fn idle(&self, stream: StreamArg) -> bool;

    /// Gives memory of graphs back that is not in use.
    fn trim(&self);

    /// Handles of the functions that are known to be of this code, as records begin with them.
    fn functions_of(&self, code: Code, visit: Visit<'_>) -> Vec<u64>;
    /// What is known of these functions is not valid any more, unless [`GraphCalls::unloaded`] says otherwise.
    fn forget(&self, functions: &[u64]);
    /// The functions are `gone`, or what was known of them is valid after all.
    fn unloaded(&self, functions: &[u64], gone: bool);
    /// A context is gone, and the functions in it.
    fn context_gone(&self, _context: u64) {}

    /// Whether the library tells what an attribute of a kernel node is.
    fn tells(&self, node: GraphNode, attribute: u32) -> bool;
    /// The library's answer to a call that does nothing, and that captures forbid just as they forbid instantiating and
    /// destroying. So where the cache answers by itself, a capture is disturbed as it would be by the library.
    fn allowed(&self) -> Status;
    /// Lets this thread make calls that a capture forbids; what [`GraphCalls::unrelax`] wants.
    fn relax(&self) -> i32;
    fn unrelax(&self, before: i32);
    /// Makes a context current if it is not. Whether it has to be left again.
    fn enter(&self, context: u64) -> bool;
    fn leave(&self);
}
