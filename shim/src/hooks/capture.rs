//! Stream capture.

use super::{attributes, submit, written};
use crate::backend::{self, attributes_set};
use crate::call::{Call, Real};
use crate::gate;
use crate::graphs;
use crate::progress::queries;
use crate::records;
use gpumem_abi::types::*;
use gpumem_wire::kinds::GraphOrigin;
use std::ffi::{c_int, c_uint};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: the mode of a capture that is begun without one.
const GLOBAL: c_int = 0;
/// `…_STREAM_CAPTURE_WRONG_THREAD`: the capture goes on.
const WRONG_THREAD: Status = 908;

fn begun(call: &Call, stream: Stream, mode: c_int, real: impl FnOnce() -> Status) -> Status {
    let _beginning = queries::capture_begins();
    let _no_looks = graphs::cache(call.vendor).map(|cache| cache.capture_begins());
    attributes::if_kept(|| attributes_set::capture_begins(stream));
    let status = real();
    match status {
        SUCCESS => drop(gate::note(|shim| records::streams::capture_begun(shim, call.vendor, stream as u64, mode))),
        _ => attributes::if_kept(|| attributes_set::capture_ended(stream, None)),
    }
    status
}

/// The program begins a capture, in the form from before CUDA 10.1.
pub(crate) unsafe fn begin_v1(call: Call, real: Real<(Stream,)>) -> Status {
    begun(&call, real.args.0, GLOBAL, || real.call())
}

/// The program begins a capture.
pub(crate) unsafe fn begin(call: Call, real: Real<(Stream, c_int)>) -> Status {
    let (stream, mode) = real.args;
    begun(&call, stream, mode, || real.call())
}

/// The program begins a capture into a graph of its own.
pub(crate) unsafe fn begin_to_graph(call: Call, real: Real<(Stream, Graph, Opaque, Opaque, usize, c_int)>) -> Status {
    let (stream, graph, deps, data, len, mode) = real.args;
    let graph = graphs::seen_graph(call.vendor, graph);
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of handles: the graph
    // is the library's.
    let status = begun(&call, stream, mode, || unsafe { real.with((stream, graph, deps, data, len, mode)) });
    if let Some(cache) = graphs::cache_to_be(call.vendor).filter(|_| status == SUCCESS) {
        // The program has the graph, and may have its nodes.
        cache.sources().given_out(graph);
    }
    status
}

/// The program begins a capture into a graph of its own. The capture replaces the graph's contents.
pub(crate) unsafe fn begin_anew(call: Call, real: Real<(Stream, c_int, Graph, Opaque, Opaque)>) -> Status {
    let (stream, mode, graph, callback, data) = real.args;
    let graph = graphs::seen_graph(call.vendor, graph);
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of handles: the graph
    // is the library's.
    let status = begun(&call, stream, mode, || unsafe { real.with((stream, mode, graph, callback, data)) });
    if let Some(cache) = graphs::cache_to_be(call.vendor).filter(|_| status == SUCCESS) {
        // The program has the graph and its nodes.
        cache.sources().given_out(graph);
    }
    status
}

/// The program begins a capture whose work goes to a graphics API.
pub(crate) unsafe fn begin_to_cig(call: Call, real: Real<(Stream, Opaque)>) -> Status {
    let (stream, _) = real.args;
    begun(&call, stream, GLOBAL, || real.call())
}

/// The program ends such a capture. There is no graph.
pub(crate) unsafe fn end_to_cig(call: Call, real: Real<(Stream,)>) -> Status {
    let (stream,) = real.args;
    let status = real.call();
    if status != WRONG_THREAD {
        attributes::if_kept(|| attributes_set::capture_ended(stream, None));
        gate::note(|shim| {
            records::streams::capture_ended(shim, call.vendor, stream as u64, u64::from(status == SUCCESS), status)
        });
    }
    status
}

/// The program ends a capture.
pub(crate) unsafe fn end(call: Call, real: Real<(Stream, *mut Graph)>) -> Status {
    let (stream, graph) = real.args;
    // SAFETY: rule of out-parameters: `graph` is looked at only after success.
    unsafe {
        let status = real.call();
        if status == WRONG_THREAD {
            return status;
        }
        let library = written(status, graph).filter(|graph| !graph.is_null());
        let nodes = library.and_then(|graph| backend::of(call.vendor).node_count(graph)).unwrap_or(0) as u64;
        attributes::if_kept(|| attributes_set::capture_ended(stream, library));
        let made = library.map(|library| graphs::captured(call.vendor, library));
        if let Some(made) = made {
            *graph = made;
        }
        gate::note(|shim| {
            let graph = made.map_or(0, |graph| graph as u64);
            records::streams::capture_ended(shim, call.vendor, stream as u64, graph, status);
            if let Some(graph) = made {
                records::graphs::made(shim, &call, graph, nodes, GraphOrigin::Captured);
            }
            let given = library.zip(made).map(|(library, graph)| (library as u64, graph as u64));
            records::graph_memory::capture_ended(shim, given);
        });
        status
    }
}

/// The program makes a stream wait for an event. If the event is part of a capture, the stream joins that capture. No
/// stream is queried meanwhile, as while a capture begins.
pub(crate) unsafe fn wait_event(call: Call, real: Real<(Stream, Opaque, c_uint)>) -> Status {
    let cache = queries::capturing().then(|| graphs::cache(call.vendor)).flatten();
    let _no_looks = cache.map(|cache| cache.capture_begins());
    // SAFETY: rule of the call: `real` gets the arguments as they came.
    unsafe { submit::work(call, real) }
}
