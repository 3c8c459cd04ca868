//! The real calls that the graph cache needs, behind one trait.

use crate::backend::source::Records;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned};
use rustc_hash::FxHashMap;

/// The contents of a graph. The buffers are reused for the next graph.
#[derive(Default)]
pub(crate) struct Reading {
    /// Handles of the nodes.
    pub nodes: Vec<GraphNode>,
    /// [`NodeKind`] of each.
    pub kinds: Vec<u8>,
    /// Properties that two graphs must share so that their execs can stand in for one another: kinds, edges,
    /// attributes, and everything that no setter can change. [`GraphCalls::build`] of the backend reads it back.
    pub shape: Vec<u8>,
    /// Everything that setters can change.
    pub records: Records,
    /// Nodes inside child graphs, by kind.
    pub inner: [u32; 16],
    /// Number of nodes that no other depends on.
    pub sinks: u32,
    /// True if the graph is not a chain of nodes. The library may wait for all of the device's work when it destroys an
    /// exec of such a graph. (It was not seen to do so for a graph with one first node. It did for some with several,
    /// on an H200, driver 580.)
    pub branches: bool,
    /// Index by handle.
    pub index: FxHashMap<usize, u32>,
    /// A noun, for the user, for the unknown part that kept the graph from being read to the end.
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

    /// True if the graph has nodes that wait for something outside the device. A graph with nodes of unknown kinds is
    /// not read to the end.
    pub(crate) fn waits_outside(&self) -> bool {
        self.counts()[NodeKind::Host as usize] > 0
    }

    /// Returns the number of nodes by kind.
    pub(crate) fn counts(&self) -> [u32; 16] {
        let mut counts = self.inner;
        self.kinds.iter().for_each(|&kind| counts[usize::from(kind) % 16] += 1);
        counts
    }
}

/// How completely a graph was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The graph was read whole and can be built again from shape and records.
    Whole,
    /// Parts could not be read, so only a clone can stand for it.
    CloneOnly,
    /// As `CloneOnly`, but an update can turn an exec of one graph into that of another graph of the same shape.
    CloneShared,
}

/// Returns why a node keeps its graph from being cloned and instantiated again.
pub(super) fn pinned_by(kind: NodeKind) -> Option<Pinned> {
    use NodeKind::*;
    match kind {
        Kernel | Memcpy | Memset | Host | Child | Empty => None,
        EventWait | EventRecord => Some(Pinned::EventNodes),
        MemAlloc | MemFree => Some(Pinned::MemoryNodes),
        SemaphoreSignal | SemaphoreWait | BatchMemOp => Some(Pinned::ExternalNodes),
        Conditional => Some(Pinned::Conditional),
        Other => Some(Pinned::UnknownNode),
    }
}

/// A stream as the program named it: the handle, and true if the call was the per-thread twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamArg {
    pub stream: Stream,
    pub per_thread: bool,
    /// The owner of a default stream: the number of its context, or HIP's device plus one. 0: the handle alone
    /// identifies the stream.
    pub home: u32,
}

impl StreamArg {
    pub(crate) const fn new(stream: Stream, per_thread: bool) -> Self {
        Self { stream, per_thread, home: 0 }
    }

    /// Answers [`GraphCalls::waits_for_legacy`]. `flags_of` asks the library for the flags of a stream that the program
    /// made. The default streams, whose handles are 0, 1 and 2, all wait.
    pub(super) fn waits_for_legacy(self, flags_of: impl FnOnce(Stream, &mut u32) -> Option<Status>) -> bool {
        let mut flags = 0;
        let told = self.stream as usize > 2 && flags_of(self.stream, &mut flags) == Some(SUCCESS);
        !told || flags & STREAM_NON_BLOCKING == 0
    }
}

/// Arguments of a node setter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setter {
    pub params: Opaque,
    /// For copies and memsets: the context.
    pub context: u64,
    /// For kernels: true if the struct is the one with a kernel handle.
    pub v2: bool,
}

/// Runs a function in a context that may be another thread's. The context does not end meanwhile. Does nothing in a
/// context that is ending or unknown.
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

/// Number of nodes that were set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetCount {
    pub nodes: u64,
    /// Number of those that call another function, or have another grid, block or shared memory.
    pub reshaped: u64,
}

/// Behaviour of a vendor's library that the cache relies on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphBehaviour {
    /// Graphs can be read whole, so they can be folded.
    pub folds: bool,
    /// Launches of one exec run one after another, and pending ones go on when the exec is destroyed.
    pub outlived: bool,
    /// After an update by the program, a clone of the graph means the same as the exec.
    pub clones_follow: bool,
    /// An exec that gets other contents before its first launch runs slower from then on.
    pub set_early_is_slow: bool,
    /// True if an upload by the program may be passed on. With CUDA it may not: pending launches may then run other
    /// code (docs/decisions/drivers.md, "A graph that was uploaded may run another kernel's code").
    pub uploads: bool,
    /// Streams that do not capture may be queried, and given events, while others capture.
    pub asked_beside_captures: bool,
    /// Maximum number of whole updates of an exec before a new one replaces it. Each update takes memory that is freed
    /// only with the exec.
    pub most_updates: u32,
}

/// Calls of a vendor's library that the cache makes. Statuses are the library's own.
pub(crate) trait GraphCalls: Send + Sync {
    /// Checks that all functions that the cache needs exist.
    ///
    /// # Errors
    /// [`Pinned::Lookup`] if one does not.
    fn ready(&self) -> Result<(), Pinned>;

    /// Returns what the cache may rely on: by default, what CUDA does.
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

    /// Reads a graph.
    ///
    /// # Errors
    /// Why no other exec can ever stand in for one of this graph.
    fn read(&self, graph: Graph, reading: &mut Reading) -> Result<Read, Pinned>;

    /// Writes the record for a setter's parameters into `out`. Returns true if the node can be held as a record.
    ///
    /// # Safety
    /// `params` are the program's own for a node setter of this kind, in the call that this is in. They are not NULL.
    unsafe fn record(&self, kind: NodeKind, params: Setter, out: &mut Vec<u8>) -> bool;

    /// True if the library would accept this record for a node of a shape's execs.
    fn takes(&self, _shape: &[u8], _node: u32, _kind: NodeKind, _record: &[u8]) -> bool {
        false
    }

    /// True if the library refuses a setter's parameters, with 1, for a node of a shape's execs.
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
    /// Returns the handles of a graph's nodes.
    fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>>;

    /// Returns the graph inside a child graph node; `None` for other nodes.
    fn child_graph(&self, node: GraphNode) -> Option<Graph>;

    /// Builds a graph of this shape; returns it and its nodes in the order of the records. If not `exact`, it may lack
    /// parts that make no difference to its execs.
    ///
    /// # Errors
    /// The library's, or 1 if the shape does not fit the records.
    fn build(&self, shape: &[u8], records: &Records, exact: bool) -> Result<(Graph, Vec<GraphNode>), Status>;

    /// Returns a fingerprint of the kinds of things in a shape, whatever their number and order.
    fn features(&self, _shape: &[u8]) -> u64 {
        0
    }

    /// True if an exec of shape `from` holds exactly a graph of shape `to` once the library has updated it from that
    /// graph.
    fn becomes(&self, _from: &[u8], _to: &[u8]) -> bool {
        false
    }

    /// # Errors
    /// The library's.
    fn instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec, Status>;
    fn destroy_exec(&self, exec: GraphExec);
    /// Updates an exec to another graph as a whole. Only after [`Read::CloneShared`].
    fn update(&self, _: GraphExec, _: Graph) -> Status {
        SYMBOL_NOT_FOUND
    }
    fn upload(&self, exec: GraphExec, to: StreamArg) -> Status;
    /// Removes every trace of this library answer, which the program must not find.
    fn unheard(&self, _: Status) {}

    /// Sets the nodes of an exec, or of the graph itself, whose records differ.
    ///
    /// # Errors
    /// The library's. Some nodes then hold the old records and some the new ones.
    fn set(&self, exec: Option<GraphExec>, nodes: Nodes, before: &Records, after: &Records)
    -> Result<SetCount, Status>;
    fn set_enabled(&self, exec: GraphExec, node: GraphNode, on: bool) -> Status;

    /// Runs a graph's work on a stream, node after node, without those that are `disabled`.
    fn run(&self, shape: &[u8], records: &Records, disabled: &[u32], stream: StreamArg) -> Status;

    /// Returns an event that covers the work of a stream up to now.
    fn mark(&self, event: Option<Event>, stream: StreamArg) -> Option<Event>;
    /// True if the work that an event covers has completed.
    fn completed(&self, event: Event) -> bool;
    /// Makes a stream wait for an event.
    fn wait(&self, stream: StreamArg, event: Event) -> Status;
    fn drop_event(&self, event: Event);
    /// True if a stream captures.
    fn captures(&self, stream: StreamArg) -> bool;
    /// True if work on a stream and work on the legacy stream wait for one another. This holds for all streams but
    /// those made with `CU_STREAM_NON_BLOCKING` (CUDA driver API, "Stream synchronization behavior").
    fn waits_for_legacy(&self, stream: StreamArg) -> bool;
    /// Returns the library's answer about a stream: success, that work is pending, or an error.
    fn query(&self, _: StreamArg) -> Status {
        SYMBOL_NOT_FOUND
    }
    /// True if a stream is idle.
    fn idle(&self, stream: StreamArg) -> bool;

    /// Frees memory of graphs that is not in use.
    fn trim(&self);

    /// Returns the handles of the functions known to be of this code, in the form in which records begin.
    fn functions_of(&self, code: Code, visit: Visit<'_>) -> Vec<u64>;
    /// Sets aside what is known of these functions, until [`GraphCalls::unloaded`].
    fn forget(&self, functions: &[u64]);
    /// Drops the functions if they are `gone`; otherwise restores what was known of them.
    fn unloaded(&self, functions: &[u64], gone: bool);
    /// Drops the functions of a context that is gone.
    fn context_gone(&self, _context: u64) {}

    /// True if the library tells a kernel node's value of an attribute.
    fn tells(&self, node: GraphNode, attribute: u32) -> bool;
    /// Returns the library's answer to a call that does nothing, and that captures forbid just as they forbid
    /// instantiating and destroying. So if the cache answers by itself, a capture is disturbed as it would be by the
    /// library.
    fn allowed(&self) -> Status;
    /// Lets this thread make calls that a capture forbids; returns the argument for [`GraphCalls::unrelax`].
    fn relax(&self) -> i32;
    fn unrelax(&self, before: i32);
    /// Makes a context current if it is not. Returns true if it has to be left again.
    fn enter(&self, context: u64) -> bool;
    fn leave(&self);
}
