//! Graph nodes that allocate.

use super::{get, parameter};
use crate::backend;
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::progress::queries;
use crate::records;
use crate::request::{Request, place};
use gpumem_abi::types::*;
use gpumem_wire::kinds::{AllocKind, NodeKind, Vendor};
use gpumem_wire::location::Location;
use std::ffi::c_int;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, `hipMemAllocNodeParams`: the pool's properties, access, bytes, and the address that
/// the library writes.
type AllocParams = [u64; 15];
const LOCATION: usize = 1;
const BYTES: usize = 13;
const ADDRESS: usize = 14;

/// `CUgraphNodeParams` begins with the kind and a gap. The kind's own data follows.
const OF_KIND: usize = 2;

/// The program adds a node that allocates.
pub(crate) unsafe fn add_alloc(
    call: Call,
    real: Real<(*mut GraphNode, Graph, *const GraphNode, usize, Opaque)>,
) -> Status {
    let (node, graph, deps, len, params) = real.args;
    let library = graphs::seen_graph(call.vendor, graph);
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of handles: the graph is the
    // library's.
    allocates(&call, graph, params.cast(), || unsafe { real.with((node, library, deps, len, params)) })
}

/// Adds a node that allocates by `real`, the program's call, and records it. `params` is the program's, and may be
/// invalid.
fn allocates(call: &Call, graph: Graph, params: *const AllocParams, real: impl FnMut() -> Status) -> Status {
    let given = parameter(params).unwrap_or_default();
    let at = MemLocation { kind: given[LOCATION] as c_int, id: (given[LOCATION] >> 32) as c_int };
    let location = place::named(place::PINNED, at);
    let request = Request { location, extra: graph as u64, ..Request::new(AllocKind::GraphNode, given[BYTES]) };
    get(call, request, real, |_, status| {
        (status == SUCCESS).then(|| parameter(params).map(|written| written[ADDRESS]))?
    })
}

/// Adds a node of any kind by `real`, with the program's `CUgraphNodeParams`, which may be invalid.
pub(super) fn added(call: &Call, graph: Graph, params: Opaque, mut real: impl FnMut() -> Status) -> Status {
    let of_kind = params.cast::<u64>().wrapping_add(OF_KIND);
    let kind = parameter(params.cast::<u32>()).and_then(|kind| NodeKind::from_u8(u8::try_from(kind).ok()?));
    if kind == Some(NodeKind::MemAlloc) {
        return allocates(call, graph, of_kind.cast(), real);
    }
    let child = if kind == Some(NodeKind::Child) { parameter(of_kind) } else { None };
    let status = real();
    if let Some(child) = child.filter(|_| status == SUCCESS) {
        gate::note(|shim| records::graph_memory::moved(shim, child, graph as u64));
    }
    status
}

/// Asks the driver if something is allocated at an address. An answer of HIP would become the thread's last error, so
/// HIP is not asked.
pub(super) fn is_held(call: &Call, addr: u64) -> bool {
    let is_it = |(base, _)| base == addr;
    call.vendor == Vendor::Cuda && backend::of(call.vendor).allocation_around(addr).is_some_and(is_it)
}

/// Turns a stream-ordered request into one for a graph node if the stream captures.
pub(super) fn in_capture(call: &Call, request: Request) -> Request {
    if !queries::capturing() {
        return request;
    }
    let Some(library) = backend::of(call.vendor).captures_into(request.stream as Stream) else { return request };
    let graph = graphs::cache(call.vendor).map_or(library, |cache| cache.sources().handle_of(library));
    let location = match request.location {
        Location::Device(_) => request.location,
        _ => Location::OwnDevice,
    };
    let Request { bytes, stream, .. } = request;
    Request { location, stream, extra: graph as u64, ..Request::new(AllocKind::GraphNode, bytes) }
}
