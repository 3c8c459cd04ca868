//! CUDA graphs for the graph cache: reads a graph into a shape and a record for each node, and builds it from them
//! again.

/// Calls the legacy or the per-thread form of a function, like the program's own call.
macro_rules! on {
    ($to:ident, $legacy:ident / $twin:ident($($arg:expr),*)) => {
        if $to.per_thread { driver::$twin($($arg),*) } else { driver::$legacy($($arg),*) }
    };
}

pub(crate) mod attributes_set;
mod build;
mod contexts;
mod edges;
pub(super) mod functions;
mod layout;
mod places;
mod read;
mod setters;
mod shape;

use super::both::thread_states;
use super::graphs::{Code, Event, GraphCalls, Nodes, Read, Reading, SetCount, Setter, StreamArg, Visit};
use crate::backend::answer::told;
use crate::backend::source::Records;
use crate::backend::{Backend, cuda, driver};
pub(super) use contexts::named;

use contexts::is_here;
use functions::Functions;
use gpumem_abi::types::*;
use gpumem_wire::kinds::{NodeKind, Pinned};
use shape::Shape;

/// The driver, and its facts about kernels.
#[derive(Default)]
pub(super) struct CudaGraphs {
    functions: Functions,
}

impl GraphCalls for CudaGraphs {
    thread_states!(cuda);

    fn ready(&self) -> Result<(), Pinned> {
        if driver::has_graph_calls() { Ok(()) } else { Err(Pinned::Lookup) }
    }

    fn read(&self, graph: Graph, reading: &mut Reading) -> Result<Read, Pinned> {
        read::read(&self.functions, graph, reading, &mut Shape::default())
    }

    unsafe fn record(&self, kind: NodeKind, params: Setter, out: &mut Vec<u8>) -> bool {
        // SAFETY: our caller vouches for the setter's parameters, and `setters::record` asks for
        // the same.
        unsafe { setters::record(&self.functions, kind, params, out) }
    }

    fn takes(&self, shape: &[u8], node: u32, kind: NodeKind, record: &[u8]) -> bool {
        let shape = Shape::parse(shape);
        let entry = shape.and_then(|shape| shape.nodes.get(node as usize).copied()).filter(|entry| entry.kind == kind);
        entry.is_some_and(|entry| setters::takes(&self.functions, entry.tag, kind, record))
    }

    unsafe fn refuses(&self, shape: &[u8], node: u32, kind: NodeKind, params: Setter) -> bool {
        // SAFETY: our caller vouches for the setter's parameters, and the kind is that of
        // `is_packed`.
        let packed = kind == NodeKind::Kernel && unsafe { setters::is_packed(params) };
        packed && Shape::parse(shape).is_some_and(|shape| shape.is_cooperative(node as usize))
    }

    fn clone_of(&self, graph: Graph) -> Result<Graph, Status> {
        // SAFETY: rule of answers: `clone` takes the handle. Rule of the cache's handles: the graph
        // is alive.
        told(|clone| unsafe { driver::cuGraphClone(clone, graph) })
    }

    fn destroy_graph(&self, graph: Graph) {
        // SAFETY: rule of the cache's handles: only the cache knows this graph, and it is destroyed
        // once.
        let _ = unsafe { driver::cuGraphDestroy(graph) };
    }

    fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>> {
        cuda::Cuda.nodes(graph)
    }

    fn child_graph(&self, node: GraphNode) -> Option<Graph> {
        // SAFETY: rule of answers: `graph` takes the handle. Rule of the cache's handles: the node
        // is alive. The driver refuses a node of another kind.
        told(|graph| unsafe { driver::cuGraphChildGraphNodeGetGraph(node, graph) }).ok()
    }

    fn build(&self, shape: &[u8], records: &Records, exact: bool) -> Result<(Graph, Vec<GraphNode>), Status> {
        let shape = Shape::parse(shape).filter(|shape| shape.nodes.len() == records.len()).ok_or(1_u32)?;
        build::build(&self.functions, &shape, records, exact)
    }

    fn features(&self, shape: &[u8]) -> u64 {
        Shape::parse(shape).map_or(0, |shape| shape.features())
    }

    fn becomes(&self, from: &[u8], to: &[u8]) -> bool {
        Shape::parse(from).zip(Shape::parse(to)).is_some_and(|(from, to)| from.becomes(&to))
    }

    fn instantiate(&self, graph: Graph, flags: u64) -> Result<GraphExec, Status> {
        // SAFETY: rule of answers: `exec` takes the handle. Rule of the cache's handles: the graph
        // is alive.
        told(|exec| unsafe { driver::cuGraphInstantiateWithFlags(exec, graph, flags) })
    }

    fn destroy_exec(&self, exec: GraphExec) {
        // SAFETY: rule of the cache's handles: only the cache knows this exec, and it is destroyed
        // once. Its launches that still run go on.
        let _ = unsafe { driver::cuGraphExecDestroy(exec) };
    }

    fn upload(&self, exec: GraphExec, to: StreamArg) -> Status {
        // SAFETY: rule of the cache's handles: the exec is alive. Rule of the program's handles: so
        // is the stream.
        unsafe { on!(to, cuGraphUpload / cuGraphUpload_ptsz(exec, to.stream)) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn set(
        &self,
        exec: Option<GraphExec>,
        nodes: Nodes,
        before: &Records,
        after: &Records,
    ) -> Result<SetCount, Status> {
        build::set(&self.functions, exec, nodes, before, after)
    }

    fn set_enabled(&self, exec: GraphExec, node: GraphNode, on: bool) -> Status {
        // SAFETY: rule of the cache's handles: the exec is alive and was instantiated from the
        // graph that the node is of.
        unsafe { driver::cuGraphNodeSetEnabled(exec, node, u32::from(on)) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn run(&self, shape: &[u8], records: &Records, disabled: &[u32], stream: StreamArg) -> Status {
        match Shape::parse(shape).filter(|shape| shape.nodes.len() == records.len()) {
            Some(shape) => build::run(&self.functions, &shape, records, disabled, stream),
            None => 1,
        }
    }

    fn mark(&self, event: Option<Event>, to: StreamArg) -> Option<Event> {
        if !is_here(to) {
            if let Some(event) = event {
                self.drop_event(event);
            }
            return None;
        }
        // SAFETY: rule of the cache's handles: the event belongs to the cache. Rule of the program's handles: the
        // stream is alive.
        cuda::recorded(event, |event| unsafe { on!(to, cuEventRecord / cuEventRecord_ptsz(event, to.stream)) })
    }

    fn completed(&self, event: Event) -> bool {
        // SAFETY: rule of the cache's handles: the event belongs to the cache and is alive.
        unsafe { driver::cuEventQuery(event as Opaque) == Some(SUCCESS) }
    }

    fn wait(&self, to: StreamArg, event: Event) -> Status {
        let event = event as Opaque;
        // SAFETY: rule of the cache's handles: the event belongs to the cache. Rule of the program's handles: the
        // stream is alive.
        unsafe { on!(to, cuStreamWaitEvent / cuStreamWaitEvent_ptsz(to.stream, event, 0)) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn drop_event(&self, event: Event) {
        // SAFETY: rule of the cache's handles: the event belongs to the cache. Nothing waits for it any more, and it is
        // destroyed once.
        let _ = unsafe { driver::cuEventDestroy_v2(event as Opaque) };
    }

    fn captures(&self, to: StreamArg) -> bool {
        // SAFETY: rule of answers: `state` takes the number. Rule of the program's handles: the
        // stream is alive.
        let state = told(|state| unsafe { on!(to, cuStreamIsCapturing / cuStreamIsCapturing_ptsz(to.stream, state)) });
        state != Ok(0)
    }

    fn waits_for_legacy(&self, stream: StreamArg) -> bool {
        // SAFETY: rule of answers: `flags` takes the number. Rule of the program's handles: the stream is alive.
        stream.waits_for_legacy(|stream, flags| unsafe { driver::cuStreamGetFlags(stream, flags) })
    }

    fn query(&self, stream: StreamArg) -> Status {
        // SAFETY: our caller has made sure that the stream does not end meanwhile and that no
        // capture meets the query.
        unsafe { on!(stream, cuStreamQuery / cuStreamQuery_ptsz(stream.stream)) }.unwrap_or(SYMBOL_NOT_FOUND)
    }

    fn idle(&self, stream: StreamArg) -> bool {
        is_here(stream) && self.query(stream) == SUCCESS
    }

    fn trim(&self) {
        // SAFETY: rule of answers: `device` takes the ordinal. cuDeviceGraphMemTrim takes that
        // number, and gives back only what no graph uses.
        unsafe {
            if let Ok(device) = told(|device| driver::cuCtxGetDevice(device)) {
                let _ = driver::cuDeviceGraphMemTrim(device);
            }
        }
    }

    fn functions_of(&self, code: Code, visit: Visit<'_>) -> Vec<u64> {
        self.functions.of(code, visit)
    }

    fn forget(&self, functions: &[u64]) {
        self.functions.forget(functions);
    }

    fn unloaded(&self, functions: &[u64], gone: bool) {
        self.functions.unloaded(functions, gone);
    }

    fn tells(&self, node: GraphNode, attribute: u32) -> bool {
        let mut value = layout::AttributeValue::default();
        let out = (&raw mut value).cast();
        // SAFETY: rule of answers: `value` has the 64 bytes of a launch attribute. Rule of the
        // cache's handles: the node is alive.
        let told = unsafe { driver::cuGraphKernelNodeGetAttribute(node, attribute as i32, out) };
        let asked =
            shape::attribute::OF_NODES.contains(&attribute) || shape::attribute::OF_FUNCTIONS.contains(&attribute);
        asked && told == Some(SUCCESS)
    }

    fn allowed(&self) -> Status {
        type Free = unsafe extern "C-unwind" fn(DevicePtr) -> Status;
        match driver::real(driver::Function::cuMemFree_v2) {
            0 => SUCCESS,
            // SAFETY: the slot holds cuMemFree_v2, which has this type. For the address 0 it frees
            // nothing.
            free => unsafe { std::mem::transmute::<usize, Free>(free)(0) },
        }
    }

    fn context_gone(&self, context: u64) {
        self.functions.forget_of(context);
    }
}
