//! Properties that execs share: the shape of their graphs, and the flags of their instantiation.

use crate::backend::graphs::{GraphCalls, Nodes, Reading};
use crate::backend::source::{Packed, Records, Scratch, Source};
use crate::process::lock::lock;
use crate::records::registry::estimate;
use gpumem_abi::types::{Graph, GraphNode};
use gpumem_wire::kinds::{NodeKind, Pinned};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The shape of graphs that differ only in properties that setters can change.
pub(crate) struct Shape {
    /// The bytes of `Reading::shape`, packed. Equal bytes mean equal shapes.
    pub key: Packed,
    pub kinds: Box<[u8]>,
    /// The source of the first graph of this shape. Sources of other graphs are kept as differences from it.
    base: Source,
    /// The unpacked base, as long as some exec of this shape is real.
    unfolded: Mutex<Weak<Records>>,
    /// The unpacked bytes of the key, as long as some exec of this shape is real.
    unpacked: Mutex<Weak<[u8]>>,
    pub context: u64,
    /// Fingerprint, for display.
    pub id: u64,
    pub counts: [u32; 16],
    /// As [`Reading::branches`](crate::backend::graphs::Reading::branches). `true` if a child graph may have branches.
    pub branches: bool,
}

impl Shape {
    pub(crate) fn new(key: Packed, id: u64, reading: &Reading, context: u64, base: Source) -> Self {
        let unpacked: Weak<[u8]> = Weak::<[u8; 0]>::new();
        let (unfolded, unpacked) = (Mutex::default(), Mutex::new(unpacked));
        let branches = reading.branches || reading.inner != [0; 16];
        let (kinds, counts) = (reading.kinds.as_slice().into(), reading.counts());
        Self { key, kinds, base, unfolded, unpacked, context, id, counts, branches }
    }

    /// Returns the base, unpacked. `None` if its bytes are broken.
    pub(crate) fn base(&self, scratch: &mut Scratch) -> Option<Arc<Records>> {
        let mut records = Records::default();
        kept(&self.unfolded, || self.base.unfold(None, &mut records, scratch).then(|| Arc::new(records)))
    }

    /// Returns the bytes of its key; `None` if they are broken.
    pub(crate) fn bytes(&self, scratch: &mut Scratch) -> Option<Arc<[u8]>> {
        kept(&self.unpacked, || self.key.unpacked(scratch).map(Arc::from))
    }

    /// Returns true if these are the bytes of its key.
    pub(crate) fn is(&self, bytes: &[u8], scratch: &mut Scratch) -> bool {
        match lock(&self.unpacked).upgrade() {
            Some(known) => *known == *bytes,
            None => self.key.unpacked(scratch) == Some(bytes),
        }
    }

    pub(crate) fn kind(&self, node: usize) -> NodeKind {
        self.kinds.get(node).and_then(|&kind| NodeKind::from_u8(kind)).unwrap_or(NodeKind::Other)
    }

    pub(crate) fn nodes(&self) -> usize {
        self.kinds.len()
    }

    /// Returns the estimated host and device bytes of an exec of this shape.
    pub(crate) fn exec_bytes(&self) -> (u64, u64) {
        estimate::exec_bytes(&self.counts)
    }
}

/// Returns what was made before, as long as it is in use; otherwise makes it.
fn kept<T: ?Sized>(place: &Mutex<Weak<T>>, make: impl FnOnce() -> Option<Arc<T>>) -> Option<Arc<T>> {
    let known = lock(place).upgrade();
    known.or_else(|| make().inspect(|made| *lock(place) = Arc::downgrade(made)))
}

/// A class: execs that may stand in for one another.
pub(crate) struct Class {
    pub shape: Arc<Shape>,
    pub flags: u64,
    /// The graph that the execs of the class are instantiated from, while there are any.
    template: Mutex<Weak<Template>>,
    /// Time of an instantiate, ns.
    pub instantiate_ns: AtomicU64,
    /// Only a clone stands for the graph.
    pub alone: bool,
    /// Its execs may go from one handle to another.
    pub shared: bool,
}

/// A real graph that execs are instantiated from. Setters of these execs accept only its nodes.
pub(crate) struct Template {
    pub graph: Graph,
    pub nodes: Box<[GraphNode]>,
    /// The content of its nodes, if known. The lock is held from the moment a thread changes the nodes until an exec
    /// was made of them.
    pub content: Mutex<Option<Records>>,
    /// Held by the thread that is in a call of the library with the graph. [`Template::alone`] lists these calls.
    used: Mutex<()>,
    /// Keeps the shape's base unfolded, and its key.
    _shape: (Arc<Records>, Arc<[u8]>),
    calls: &'static dyn GraphCalls,
    /// The context has ended, and the graph with it.
    gone: AtomicBool,
}

// SAFETY: handles are numbers that the library accepts on any thread. It requires one thread at a time per object:
// leases ensure that for execs, `used` for the graph.
unsafe impl Send for Template {}
// SAFETY: the fields other than handles are locked, atomic or never change. Leases and `used` keep two threads from
// using one object of the library at once.
unsafe impl Sync for Template {}

impl Template {
    pub(crate) fn new(
        graph: Graph,
        nodes: Vec<GraphNode>,
        content: Records,
        shape: (Arc<Records>, Arc<[u8]>),
        calls: &'static dyn GraphCalls,
    ) -> Self {
        Self {
            graph,
            nodes: nodes.into(),
            content: Mutex::new(Some(content)),
            used: Mutex::default(),
            _shape: shape,
            calls,
            gone: AtomicBool::new(false),
        }
    }

    /// Makes a private clone of a graph. Clones keep the order of nodes (measured on an H200, driver 580).
    pub(crate) fn clone_of(graph: Graph, calls: &'static dyn GraphCalls) -> Result<Self, Pinned> {
        let clone = calls.clone_of(graph).map_err(|_| Pinned::None)?;
        let nodes = calls.nodes(clone).unwrap_or_default();
        Ok(Self::new(clone, nodes, Records::default(), Default::default(), calls))
    }

    /// Notes that the context has ended, so the library no longer has the graph.
    pub(crate) fn lose_graph(&self) {
        self.gone.store(true, Relaxed);
    }

    /// Locks the graph: until the guard is dropped, no other thread is in a call of the library with it. Such a call
    /// instantiates the graph, sets its nodes, sets or updates an exec by them, or destroys an exec that was
    /// instantiated from it.
    ///
    /// The library requires this: "graph objects are not internally synchronized", and "no API or pair of APIs is
    /// guaranteed to be safe to call on the same graph object from two different threads without serialization" (CUDA
    /// Driver API, graphs; HIP says no more). Destroying an exec is among these calls, although it names no graph: four
    /// threads that destroyed and made execs of one graph crashed in cuGraphExecDestroy (H200, driver 580, one run of
    /// 199).
    ///
    /// The lock is held over one call. No thread waits longer than the library itself would make it wait: a call that
    /// waits for the device holds up the graph calls of all threads.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        lock(&self.used)
    }

    /// Returns its nodes, for setters.
    pub(crate) fn nodes<'a>(&'a self, class: &'a Class) -> Nodes<'a> {
        Nodes { handles: &self.nodes, kinds: &class.shape.kinds }
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        if !self.gone.load(Relaxed) {
            self.calls.destroy_graph(self.graph);
        }
    }
}

impl Class {
    pub(crate) fn new(shape: Arc<Shape>, flags: u64, alone: bool) -> Self {
        let (template, instantiate_ns) = (Mutex::default(), AtomicU64::new(0));
        Self { shape, flags, template, instantiate_ns, alone, shared: !alone }
    }

    /// Makes a class of clones whose execs go from one to another by an update.
    pub(crate) fn of_clones(shape: Arc<Shape>, flags: u64) -> Self {
        Self { shared: true, ..Self::new(shape, flags, true) }
    }

    pub(crate) fn template(&self) -> Option<Arc<Template>> {
        lock(&self.template).upgrade()
    }

    pub(crate) fn set_template(&self, template: &Arc<Template>) {
        *lock(&self.template) = Arc::downgrade(template);
    }

    pub(crate) fn forget_template(&self) {
        *lock(&self.template) = Weak::new();
    }

    /// Returns the number that users know it by.
    pub(crate) fn number(&self) -> u64 {
        self.shape.id ^ self.flags
    }

    /// Notes how long an instantiate took. Some take long because other threads have the processor; those count for
    /// little.
    pub(crate) fn took(&self, ns: u64) {
        let before = self.instantiate_ns.load(Relaxed);
        let usual = if before == 0 || ns < before { ns } else { before + (ns - before) / 8 };
        self.instantiate_ns.store(usual, Relaxed);
    }
}

/// Content of a graph, without flags. Execs and folded graphs can be made of it.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub shape: Arc<Shape>,
    pub source: Arc<Source>,
}
