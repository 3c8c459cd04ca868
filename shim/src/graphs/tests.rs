//! A fake library for tests of the parts.

use super::library::Library;
use crate::backend::graphs::{Code, Event, GraphCalls, Nodes, Read, Reading, SetCount, Setter, StreamArg, Visit};
use crate::backend::source::Records;
use crate::process::lock::lock;
use gpumem_abi::types::{Graph, GraphExec, GraphNode, SUCCESS, Status};
use gpumem_wire::kinds::{NodeKind, Pinned, Vendor};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, channel};

pub(super) const CONTEXT: u64 = 0xc0;
pub(super) const EVENT: Event = 0xe0;
pub(super) const EXEC: GraphExec = 0xe8 as GraphExec;

/// A call that tells the test when it has begun, and ends when the test gives the answer.
pub(super) struct Gate {
    begun: Sender<()>,
    answer: Receiver<bool>,
}

impl Gate {
    pub(super) fn new() -> (Mutex<Option<Self>>, Receiver<()>, Sender<bool>) {
        let ((begun, has_begun), (open, answer)) = (channel(), channel());
        (Mutex::new(Some(Self { begun, answer })), has_begun, open)
    }

    fn pass(this: &Mutex<Option<Self>>) -> bool {
        let Some(gate) = lock(this).take() else { return true };
        gate.begun.send(()).unwrap();
        gate.answer.recv().unwrap()
    }
}

/// A library that knows one context and the objects in it.
#[derive(Default)]
pub(super) struct FakeLibrary {
    pub looked: Mutex<Option<Gate>>,
    pub destroyed: Mutex<Option<Gate>>,
    pub graph_destroyed: Mutex<Option<Gate>>,
    /// The context is gone.
    pub gone: AtomicBool,
    /// Calls with an object in the context that began after it was gone, or during which it went.
    pub dead: AtomicUsize,
    pub destroyed_execs: AtomicUsize,
    /// Threads that may make any call, and contexts that were entered.
    pub relaxed: AtomicUsize,
    pub entered: AtomicUsize,
    pub dropped_events: AtomicUsize,
}

impl FakeLibrary {
    fn uses<R>(&self, call: impl FnOnce() -> R) -> R {
        let before = self.gone.load(SeqCst);
        let answer = call();
        self.dead.fetch_add(usize::from(before), SeqCst);
        answer
    }
}

impl GraphCalls for FakeLibrary {
    fn destroy_exec(&self, _: GraphExec) {
        self.uses(|| Gate::pass(&self.destroyed));
        // The context must not end during the call either.
        self.uses(|| self.destroyed_execs.fetch_add(1, SeqCst));
    }
    fn destroy_graph(&self, _: Graph) {
        self.uses(|| Gate::pass(&self.graph_destroyed));
        self.uses(|| ());
    }
    fn completed(&self, _: Event) -> bool {
        self.uses(|| Gate::pass(&self.looked))
    }
    fn drop_event(&self, _: Event) {
        self.uses(|| self.dropped_events.fetch_add(1, SeqCst));
    }
    fn relax(&self) -> i32 {
        self.relaxed.fetch_add(1, SeqCst);
        0
    }
    fn unrelax(&self, _: i32) {
        self.relaxed.fetch_sub(1, SeqCst);
    }
    fn ready(&self) -> Result<(), Pinned> {
        unreachable!()
    }
    fn read(&self, _: Graph, _: &mut Reading) -> Result<Read, Pinned> {
        unreachable!()
    }
    unsafe fn record(&self, _: NodeKind, _: Setter, _: &mut Vec<u8>) -> bool {
        unreachable!()
    }
    fn clone_of(&self, _: Graph) -> Result<Graph, Status> {
        unreachable!()
    }
    fn nodes(&self, _: Graph) -> Option<Vec<GraphNode>> {
        unreachable!()
    }
    fn child_graph(&self, _: GraphNode) -> Option<Graph> {
        unreachable!()
    }
    fn build(&self, _: &[u8], _: &Records, _: bool) -> Result<(Graph, Vec<GraphNode>), Status> {
        unreachable!()
    }
    fn instantiate(&self, _: Graph, _: u64) -> Result<GraphExec, Status> {
        unreachable!()
    }
    fn upload(&self, _: GraphExec, _: StreamArg) -> Status {
        unreachable!()
    }
    fn set(&self, _: Option<GraphExec>, _: Nodes, _: &Records, _: &Records) -> Result<SetCount, Status> {
        unreachable!()
    }
    fn set_enabled(&self, _: GraphExec, _: GraphNode, _: bool) -> Status {
        unreachable!()
    }
    fn run(&self, _: &[u8], _: &Records, _: &[u32], _: StreamArg) -> Status {
        unreachable!()
    }
    fn mark(&self, _: Option<Event>, _: StreamArg) -> Option<Event> {
        unreachable!()
    }
    fn wait(&self, _: StreamArg, _: Event) -> Status {
        unreachable!()
    }
    fn captures(&self, _: StreamArg) -> bool {
        unreachable!()
    }
    fn waits_for_legacy(&self, _: StreamArg) -> bool {
        unreachable!()
    }
    fn idle(&self, _: StreamArg) -> bool {
        unreachable!()
    }
    fn trim(&self) {
        unreachable!()
    }
    fn functions_of(&self, _: Code, _: Visit<'_>) -> Vec<u64> {
        unreachable!()
    }
    fn forget(&self, _: &[u64]) {
        unreachable!()
    }
    fn unloaded(&self, _: &[u64], _: bool) {
        unreachable!()
    }
    fn tells(&self, _: GraphNode, _: u32) -> bool {
        unreachable!()
    }
    fn allowed(&self) -> Status {
        SUCCESS
    }
    fn enter(&self, _: u64) -> bool {
        self.entered.fetch_add(1, SeqCst);
        true
    }
    fn leave(&self) {
        self.entered.fetch_sub(1, SeqCst);
    }
}

/// Returns a part's view of a fake library.
pub(super) fn library(fake: FakeLibrary) -> (Library, &'static FakeLibrary) {
    let fake: &'static FakeLibrary = Box::leak(Box::new(fake));
    (Library { vendor: Vendor::Cuda, calls: fake }, fake)
}

/// Returns a start address for a range of handles.
pub(super) fn start() -> &'static AtomicUsize {
    Box::leak(Box::default())
}
