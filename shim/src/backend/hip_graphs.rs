//! HIP graphs for the cache.
//!
//! HIP does not tell the layout of a kernel's parameters, so a private clone stands for each graph. The clone's exec
//! can be destroyed and instantiated again. No other exec stands in for it unless `GPUMEM_HIP_RETARGET=1` (by
//! hipGraphExecUpdate). Statements about HIP here are what ROCm 5.2 to 6.3 do by their sources; the code was run
//! against a simulation, and not on a device.

use super::answer::{done, told};
use super::both::thread_states;
use super::graphs::{
    Code, Event, GraphBehaviour, GraphCalls, Nodes, Read, Reading, SetCount, Setter, StreamArg, Visit, pinned_by,
};
use super::hip::{self as runtime, Hip};
use super::hip_runtime;
use super::{Backend, buffer};
use crate::backend::source::Records;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned};
use once_cell::race::OnceBool;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

/// The HIP runtime.
pub(super) struct HipGraphs {
    /// True if an exec may be given another graph of its class.
    pub retarget: bool,
}

/// `hipEventDisableTiming`.
const NO_TIMING: u32 = 2;
/// `hipErrorNotSupported`.
const NOT_SUPPORTED: Status = 801;
/// `hipStreamLegacy`, which HIP has only since 6.3. NULL is the same stream in all functions but the `_spt` ones, which
/// are not called here.
const LEGACY: Stream = 1 as Stream;
/// `hipStreamPerThread`: what NULL means to an `_spt` function.
const PER_THREAD: Stream = 2 as Stream;
/// Maximum depth of nested child graphs.
const MAX_DEPTH: u32 = 16;
/// Since ROCm 6.2 each update writes the parameters of all kernels to new memory, which HIP keeps until the exec ends
/// (docs/decisions/graphs.md, "An exec of HIP's is made anew after 32 updates").
const MOST_UPDATES: u32 = 32;

/// True if a kernel was captured with more than HIP tells of its node.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// Notes that kernel nodes may hold values that no HIP function tells, and that an update leaves unchanged.
pub(crate) fn hip_nodes_hold_more() {
    UNTOLD.store(true, Relaxed);
}

/// Returns the stream in the one form that every version takes.
fn stream_of(to: StreamArg) -> Stream {
    match to.stream {
        stream if stream.is_null() && to.per_thread => PER_THREAD,
        LEGACY => null_mut(),
        stream => stream,
    }
}

/// Returns the number of devices, asked for once. Each device has its own default streams under the same names.
fn devices() -> i32 {
    static DEVICES: AtomicI32 = AtomicI32::new(0);
    let mut count = DEVICES.load(Relaxed);
    if count == 0 {
        // SAFETY: rule of answers: `count` takes the number.
        let _ = unsafe { hip_runtime::hipGetDeviceCount(&mut count) };
        DEVICES.store(count, Relaxed);
    }
    count
}

/// Returns a stream; if there are several devices, a default stream gets its device.
#[inline]
pub(super) fn named(to: StreamArg) -> StreamArg {
    if to.stream > PER_THREAD || devices() < 2 {
        return to;
    }
    let home = Hip.current_device().and_then(|device| u32::try_from(device + 1).ok()).unwrap_or(0);
    StreamArg { home, ..to }
}

/// Runs `f` with a device current.
fn on<R>(device: Option<Device>, f: impl FnOnce() -> R) -> R {
    let current = Hip.current_device();
    let Some(device) = device.filter(|&device| Some(device) != current) else { return f() };
    // SAFETY: hipSetDevice takes a number, which HIP checks. It changes this thread's device alone,
    // and the second call puts that back.
    unsafe {
        let set = hip_runtime::hipSetDevice(device) == Some(SUCCESS);
        let result = f();
        if let Some(current) = current.filter(|_| set) {
            let _ = hip_runtime::hipSetDevice(current);
        }
        result
    }
}

/// Runs `f` on the device on which this stream has this name.
fn at<R>(to: StreamArg, f: impl FnOnce(Stream) -> R) -> R {
    on((to.home != 0).then(|| to.home as Device - 1), || f(stream_of(to)))
}

/// True if a query that the program did not make succeeded. Before HIP 7 "not ready" becomes the thread's last error,
/// as refusals do in all versions. The program must not find it, so it is cleared.
fn is_ok(status: Option<Status>) -> bool {
    // SAFETY: both functions take no arguments and touch this thread's last error only.
    unsafe {
        if status != Some(SUCCESS) && hip_runtime::hipPeekAtLastError() == status {
            let _ = hip_runtime::hipGetLastError();
        }
    }
    status == Some(SUCCESS)
}

/// Makes an event on a stream's device: on others it cannot be recorded.
fn new_event(stream: Stream) -> Option<Event> {
    let (mut device, mut event) = (0, null_mut());
    // SAFETY: rule of answers: `device` takes the ordinal. Rule of the program's handles: the
    // stream is alive.
    let known = is_ok(unsafe { hip_runtime::hipStreamGetDevice(stream, &mut device) });
    on(known.then_some(device), || {
        // SAFETY: rule of answers: `event` takes the handle.
        is_ok(unsafe { hip_runtime::hipEventCreateWithFlags(&mut event, NO_TIMING) }).then_some(event as Event)
    })
}

/// Adds a graph's kinds, those inside child graphs behind its own.
fn kinds(nodes: &[GraphNode], out: &mut Vec<u8>, depth: u32) -> Result<(), Pinned> {
    let mut children = Vec::new();
    for &node in nodes {
        let (kind, child) = Hip.node_kind(node).ok_or(Pinned::UnknownNode)?;
        if let Some(why) = pinned_by(kind) {
            return Err(why);
        }
        out.push(kind as u8);
        children.extend(child);
    }
    if depth == MAX_DEPTH && !children.is_empty() {
        return Err(Pinned::UnknownNode);
    }
    for child in children {
        kinds(&Hip.nodes(child).ok_or(Pinned::UnknownNode)?, out, depth + 1)?;
    }
    Ok(())
}

/// Adds the edges, by the indexes of their nodes and in HIP's order, by which it pairs nodes in an update.
fn edges(graph: Graph, reading: &mut Reading) -> Option<()> {
    let mut len = 0;
    // SAFETY: rule of answers: with null arrays only `len` is written. Rule of the cache's handles:
    // the graph is alive.
    done(unsafe { hip_runtime::hipGraphGetEdges(graph, null_mut(), null_mut(), &mut len) }).ok()?;
    let (mut from, mut to) = (buffer(len).ok()?, buffer(len).ok()?);
    if len > 0 {
        // SAFETY: rule of answers: both arrays have `len` elements, and no more are written. Rule
        // of the cache's handles: the graph is alive.
        done(unsafe { hip_runtime::hipGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut len) }).ok()?;
    }
    for (at, &node) in reading.nodes.iter().enumerate() {
        reading.index.insert(node as usize, at as u32);
    }
    let mut is_sink = vec![true; reading.nodes.len()];
    for (from, to) in from.iter().zip(&to).take(len) {
        let place = |node: &GraphNode| reading.index.get(&(*node as usize)).copied();
        let (from, to) = (place(from)?, place(to)?);
        is_sink[from as usize] = false;
        reading.shape.extend_from_slice(&from.to_le_bytes());
        reading.shape.extend_from_slice(&to.to_le_bytes());
    }
    reading.sinks = is_sink.iter().filter(|&&sink| sink).count() as u32;
    Some(())
}

impl GraphCalls for HipGraphs {
    // Contexts here are devices; one is entered at a time, since no clone is built in another's.
    thread_states!(runtime);

    fn ready(&self) -> Result<(), Pinned> {
        static READY: OnceBool = OnceBool::new();
        if READY.get_or_init(hip_runtime::has_graph_calls) { Ok(()) } else { Err(Pinned::Lookup) }
    }

    /// Graphs cannot be folded. ROCm before 6 destroys what an exec still uses, and orders launches by their streams
    /// only.
    fn behaviour(&self) -> GraphBehaviour {
        GraphBehaviour {
            folds: false,
            outlived: false,
            clones_follow: true,
            set_early_is_slow: false,
            uploads: true,
            asked_beside_captures: false,
            most_updates: MOST_UPDATES,
        }
    }

    fn read(&self, graph: Graph, reading: &mut Reading) -> Result<Read, Pinned> {
        reading.clear();
        let context = Hip.current_context().ok_or(Pinned::Contexts)?;
        reading.nodes = Hip.nodes(graph).ok_or(Pinned::UnknownNode)?;
        kinds(&reading.nodes, &mut reading.kinds, 0)?;
        reading.shape.extend_from_slice(&context.to_le_bytes());
        reading.shape.extend_from_slice(&(reading.nodes.len() as u64).to_le_bytes());
        reading.shape.extend_from_slice(&reading.kinds);
        let known = edges(graph, reading).is_some();
        // Updates of child graphs are not relied on. Copies of a row and of a volume are nodes of two classes, which
        // HIP does not tell apart: an update reads the one as the other (docs/decisions/graphs.md, "Execs of HIP's go
        // to another handle where an update does what it says").
        let has = |kind: NodeKind| reading.kinds.contains(&(kind as u8));
        let plain = reading.kinds.len() == reading.nodes.len() && !has(NodeKind::Memcpy);
        let told = !(UNTOLD.load(Relaxed) && has(NodeKind::Kernel));
        let shared = self.retarget && known && plain && told;
        // A clone of an unshared graph takes no place among the shared ones.
        reading.shape.push(u8::from(shared));
        Ok(if shared { Read::CloneShared } else { Read::CloneOnly })
    }

    unsafe fn record(&self, _: NodeKind, _: Setter, _: &mut Vec<u8>) -> bool {
        false
    }

    fn clone_of(&self, graph: Graph) -> Result<Graph, Status> {
        // SAFETY: rule of answers: `clone` takes the handle. Rule of the cache's handles: the graph
        // is alive.
        told(|clone| unsafe { hip_runtime::hipGraphClone(clone, graph) })
    }

    fn destroy_graph(&self, graph: Graph) {
        // SAFETY: rule of the cache's handles: only the cache knows this graph, and it is destroyed
        // once.
        let _ = unsafe { hip_runtime::hipGraphDestroy(graph) };
    }

    fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>> {
        Hip.nodes(graph)
    }

    fn child_graph(&self, node: GraphNode) -> Option<Graph> {
        Hip.node_kind(node)?.1
    }

    /// Builds nothing from parameters: clones stand for graphs.
    fn build(&self, _: &[u8], _: &Records, _: bool) -> Result<(Graph, Vec<GraphNode>), Status> {
        Err(NOT_SUPPORTED)
    }

    fn instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec, Status> {
        let mut exec = null_mut();
        // SAFETY: rule of answers: `exec` takes the handle. Rule of the cache's handles: the graph
        // is alive.
        let status = unsafe { hip_runtime::hipGraphInstantiateWithFlags(&mut exec, graph, flags) };
        // SAFETY: rule of answers: `exec` takes the handle, and HIP accepts null for the other
        // out-parameters. Rule of the cache's handles: the graph is alive.
        let mut old = || unsafe { hip_runtime::hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) };
        done(if status.is_none() && flags == 0 { old() } else { status })?;
        Ok(exec)
    }

    fn destroy_exec(&self, exec: GraphExec) {
        // SAFETY: rule of the cache's handles: only the cache knows this exec, and it is destroyed
        // once. Nothing of it runs, or the program itself destroys it.
        let _ = unsafe { hip_runtime::hipGraphExecDestroy(exec) };
    }

    fn update(&self, exec: GraphExec, graph: Graph) -> Status {
        let (mut node, mut result) = (null_mut(), 0);
        // SAFETY: rule of answers: `node` and `result` take the answers. Rule of the cache's
        // handles: the exec does not run, and the graph is alive.
        unsafe { hip_runtime::hipGraphExecUpdate(exec, graph, &mut node, &mut result) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn unheard(&self, status: Status) {
        is_ok(Some(status));
    }

    fn upload(&self, exec: GraphExec, to: StreamArg) -> Status {
        // SAFETY: rule of the cache's handles: the exec is alive. Rule of the program's handles: so
        // is the stream.
        unsafe { hip_runtime::hipGraphUpload(exec, stream_of(to)) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn set(&self, _: Option<GraphExec>, _: Nodes, _: &Records, _: &Records) -> Result<SetCount, Status> {
        Err(NOT_SUPPORTED)
    }

    fn set_enabled(&self, _: GraphExec, _: GraphNode, _: bool) -> Status {
        NOT_SUPPORTED
    }

    /// Returns out of memory. A failed instantiate stays failed: nodes cannot be run one by one.
    fn run(&self, _: &[u8], _: &Records, _: &[u32], _: StreamArg) -> Status {
        OUT_OF_MEMORY
    }

    fn mark(&self, event: Option<Event>, to: StreamArg) -> Option<Event> {
        at(to, |stream| {
            let record = |event: Event| {
                // SAFETY: rule of the cache's handles: the event belongs to the cache. Rule of the program's handles:
                // the stream is alive.
                let recorded = is_ok(unsafe { hip_runtime::hipEventRecord(event as Opaque, stream) });
                if !recorded {
                    self.drop_event(event);
                }
                recorded.then_some(event)
            };
            event.and_then(record).or_else(|| new_event(stream).and_then(record))
        })
    }

    fn completed(&self, event: Event) -> bool {
        // SAFETY: rule of the cache's handles: the event belongs to the cache and is alive.
        is_ok(unsafe { hip_runtime::hipEventQuery(event as Opaque) })
    }

    fn wait(&self, to: StreamArg, event: Event) -> Status {
        // SAFETY: rule of the cache's handles: the event belongs to the cache. Rule of the program's handles: the
        // stream is alive.
        at(to, |stream| unsafe { hip_runtime::hipStreamWaitEvent(stream, event as Opaque, 0) })
            .unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn drop_event(&self, event: Event) {
        // SAFETY: rule of the cache's handles: the event belongs to the cache. Nothing waits for it any more, and it is
        // destroyed once.
        let _ = unsafe { hip_runtime::hipEventDestroy(event as Opaque) };
    }

    fn captures(&self, to: StreamArg) -> bool {
        let mut state = 0;
        // SAFETY: rule of answers: `state` takes the number. Rule of the program's handles: the
        // stream is alive.
        let status = at(to, |stream| unsafe { hip_runtime::hipStreamIsCapturing(stream, &mut state) });
        status != Some(SUCCESS) || state != 0
    }

    fn waits_for_legacy(&self, stream: StreamArg) -> bool {
        // SAFETY: rule of answers: `flags` takes the number. Rule of the program's handles: the stream is alive.
        stream.waits_for_legacy(|stream, flags| unsafe { hip_runtime::hipStreamGetFlags(stream, flags) })
    }

    fn idle(&self, stream: StreamArg) -> bool {
        // SAFETY: our caller has made sure that the stream does not end meanwhile and that no
        // capture meets the query.
        at(stream, |stream| is_ok(unsafe { hip_runtime::hipStreamQuery(stream) }))
    }

    /// Does nothing: HIP keeps no memory for graphs without memory nodes.
    fn trim(&self) {}

    /// Returns nothing. A launch of a kernel whose module is gone is the program's own error, and nothing here outlasts
    /// the module.
    fn functions_of(&self, _: Code, _: Visit<'_>) -> Vec<u64> {
        Vec::new()
    }

    fn forget(&self, _: &[u64]) {}

    fn unloaded(&self, _: &[u64], _: bool) {}

    /// Clones copy all that HIP keeps of a kernel node.
    fn tells(&self, _: GraphNode, _: u32) -> bool {
        true
    }

    /// Returns success: HIP instantiates and destroys during captures.
    fn allowed(&self) -> Status {
        SUCCESS
    }
}
