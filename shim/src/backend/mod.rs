//! The real libraries: finding them, and the shim's calls to them, with CUDA and HIP behind the same traits.
//!
//! * Finding them: [`driver`], [`hip_runtime`], and [`providers`] if there are several. [`gates`] lie in front of the
//!   driver's functions in processes that share a card.
//! * This file: questions about contexts, devices and graphs. None of these calls touches a stream, so none can disturb
//!   a capture (measured on an H200, driver 580, in all modes).
//! * [`memory`]: calls for the pool. [`reader`]: calls for its guard. [`scan`]: the search for addresses. [`graphs`]:
//!   calls for the graph cache, and [`source`]: the results.
//! * [`both`]: methods that both vendors have alike. [`answer`]: the answer of a call, as a result.
//!
//! An answer may be `None`: the library lacks the function, or refused.
//!
//! # Safety rules
//! Functions of the libraries are unsafe for the pointers and handles that they take. SAFETY comments name these rules:
//! - **Answers.** An out-parameter is a local of ours, or a buffer of the length that is passed, and has the type that
//!   the row of the function declares ([`driver`], [`hip_runtime`]).
//! - **The program's handles.** A context, stream, graph or node is one that the program has named in the call that
//!   this thread is in. The program keeps it alive until that call returns.
//! - **The cache's handles.** Graphs, nodes, execs and events that the graph cache passes are alive: it keeps each
//!   until it destroys it through this room, and a lease or lock keeps other threads off meanwhile.
//! - **The pool's memory.** An address that the pool frees or fills is the address of a block, or of host memory, that
//!   came from this room and that only the pool has.

/// The name of a row, in the form that lookups need.
macro_rules! c_name {
    ($name:ident) => {
        // SAFETY: `stringify` gives an identifier, which has no NUL, and `concat` puts the only NUL
        // at the end.
        unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
    };
}

/// Defines an index for each function of a table, and the functions' names.
macro_rules! functions {
    ($function:ident, $names:ident: $($name:ident)*) => {
        /// Index of each function.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(crate) enum $function { $($name,)* Count }

        const $names: [&std::ffi::CStr; $function::Count as usize] = [$($crate::backend::c_name!($name)),*];
    };
}

pub(crate) use {c_name, functions};

mod answer;
mod both;
mod cuda;
mod cuda_graphs;
pub(crate) mod driver;
pub(crate) mod gates;
pub(crate) mod graphs;
pub(crate) mod green;
mod hip;
mod hip_graphs;
pub(crate) mod hip_runtime;
pub(crate) mod image;
pub(crate) mod memory;
pub(crate) mod params;
pub(crate) mod providers;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod source;

pub(crate) use cuda::gpus;
pub(crate) use cuda_graphs::attributes_set;
pub(crate) use hip::context_of as hip_context;

use gpumem_abi::types::{Device, DevicePtr, Graph, GraphNode, Stream};
use gpumem_wire::kinds::{NodeKind, Parking, Vendor};
use gpumem_wire::location::Location;
use gpumem_wire::settings::Settings;
use std::collections::TryReserveError;

/// A device, as its driver describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceInfo {
    pub name: Vec<u8>,
    pub uuid: [u8; 16],
    pub total_bytes: u64,
    /// True if its memory is the machine's. Only for CUDA's devices: HIP numbers its attributes differently in each
    /// release.
    pub integrated: bool,
}

/// Questions to a library.
pub(crate) trait Backend: Sync {
    /// Returns the calling thread's context, as a number that differs between contexts.
    fn current_context(&self) -> Option<u64>;
    /// Returns the device of the calling thread's context.
    fn current_device(&self) -> Option<Device>;
    /// True if a device's primary context is alive.
    fn primary_active(&self, _device: Device) -> Option<bool> {
        None
    }
    fn device_info(&self, device: Device) -> DeviceInfo;
    /// Returns device-wide free and total bytes, asked in the calling thread's context.
    fn memory_info(&self) -> Option<(u64, u64)> {
        None
    }
    /// Returns the bytes that the driver keeps for a device's default pool, live and idle.
    fn kept_by_pool(&self, _device: Device) -> Option<u64> {
        None
    }
    /// Returns the bytes that the driver keeps for the memory nodes of a device's graphs.
    fn kept_for_graphs(&self, _device: Device) -> Option<u64> {
        None
    }
    /// Returns start and bytes of the allocation that an address lies in.
    fn allocation_around(&self, ptr: DevicePtr) -> Option<(u64, u64)>;
    /// Returns the location of the memory at an address.
    fn location_of(&self, _ptr: DevicePtr) -> Option<Location> {
        None
    }
    /// Returns the graph that a stream captures into. The default stream is taken for the thread's own, since no other
    /// one can capture.
    fn captures_into(&self, stream: Stream) -> Option<Graph>;
    /// Returns the version of the driver or runtime.
    fn version(&self) -> Option<u32>;
    /// Returns where the driver says that this process's device memory is; `None` if it cannot tell. It answers also
    /// while other calls wait (0.3 ms on an H200, driver 580).
    fn parking(&self) -> Option<Parking> {
        None
    }
    /// Returns the number of nodes of a graph, without those of child graphs.
    fn node_count(&self, graph: Graph) -> Option<usize>;
    /// Returns these nodes.
    fn nodes(&self, graph: Graph) -> Option<Vec<GraphNode>>;
    /// Returns a node's kind by the vendor's number, and the graph inside it if it is a child graph.
    fn node_kind(&self, node: GraphNode) -> Option<(NodeKind, Option<Graph>)>;
}

/// `CU_STREAM_PER_THREAD`, and `CU_STREAM_CAPTURE_STATUS_ACTIVE`. HIP has the same numbers.
const PER_THREAD: usize = 2;
const ACTIVE: i32 = 1;

/// Returns a vendor's backend.
pub(crate) fn of(vendor: Vendor) -> &'static dyn Backend {
    match vendor {
        Vendor::Cuda => &cuda::Cuda,
        Vendor::Hip => &hip::Hip,
    }
}

/// Returns a vendor's graph calls, made once per process.
pub(crate) fn graph_calls(vendor: Vendor, settings: &Settings) -> &'static dyn graphs::GraphCalls {
    match vendor {
        Vendor::Cuda => Box::leak(Box::<cuda_graphs::CudaGraphs>::default()),
        Vendor::Hip => Box::leak(Box::new(hip_graphs::HipGraphs { retarget: settings.hip_retarget })),
    }
}

pub(crate) use hip_graphs::hip_nodes_hold_more;

/// Returns the program's stream, distinct from others of the same name.
#[inline]
pub(crate) fn named(vendor: Vendor, to: graphs::StreamArg) -> graphs::StreamArg {
    match vendor {
        Vendor::Cuda => cuda_graphs::named(to),
        Vendor::Hip => hip_graphs::named(to),
    }
}

/// Maximum depth at which child graphs are counted.
const MAX_DEPTH: u32 = 16;

/// Returns the number of a graph's nodes by kind, including those of child graphs.
pub(crate) fn count_nodes(backend: &dyn Backend, graph: Graph) -> [u32; 16] {
    let mut counts = [0; 16];
    count_into(backend, graph, &mut counts, 0);
    counts
}

fn count_into(backend: &dyn Backend, graph: Graph, counts: &mut [u32; 16], depth: u32) {
    for node in backend.nodes(graph).unwrap_or_default() {
        let (kind, child) = backend.node_kind(node).unwrap_or((NodeKind::Other, None));
        counts[kind as usize] = counts[kind as usize].saturating_add(1);
        if let Some(child) = child.filter(|_| depth < MAX_DEPTH) {
            count_into(backend, child, counts, depth + 1);
        }
    }
}

fn buffer(len: usize) -> Result<Vec<GraphNode>, TryReserveError> {
    let mut nodes = Vec::new();
    nodes.try_reserve_exact(len)?;
    nodes.resize(len, std::ptr::null_mut());
    Ok(nodes)
}

/// Joins two lists.
pub(crate) const fn join<T: Copy, const A: usize, const B: usize, const N: usize>(
    first: [T; A],
    second: [T; B],
) -> [T; N] {
    assert!(A + B == N);
    let mut all = [first[0]; N];
    let mut index = A;
    while index < N {
        all[index] = second[index - A];
        index += 1;
    }
    index = 0;
    while index < A {
        all[index] = first[index];
        index += 1;
    }
    all
}
