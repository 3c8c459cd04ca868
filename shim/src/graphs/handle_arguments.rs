//! Arguments of the program's calls: finds the shim's handles among them, and the library's object for each.

use super::caches::open;
use super::change::{self, InUse};
use super::handle::INVALID;
use super::{cache, caches};
use crate::backend::graphs::StreamArg;
use crate::gate;
use crate::process::handle_range::index_in;
use crate::process::wiped;
use gpumem_abi::types::{Graph, GraphExec, Status};
use gpumem_wire::kinds::{Pinned, Vendor};
use std::ptr::null_mut;

/// Returns the index of an exec handle of the shim.
#[inline(always)]
pub(crate) fn exec_index(vendor: Vendor, exec: GraphExec) -> Option<u32> {
    index_in(wiped::exec_handles(vendor), exec as usize)
}

/// Returns true if a graph handle is the shim's.
#[inline(always)]
pub(crate) fn is_graph(vendor: Vendor, graph: Graph) -> bool {
    index_in(wiped::graph_handles(vendor), graph as usize).is_some()
}

/// Uploads a handle of the shim.
pub(crate) fn upload(vendor: Vendor, exec: GraphExec, to: StreamArg) -> Status {
    let (Some(index), Some(cache)) = (exec_index(vendor, exec), cache(vendor)) else { return INVALID };
    change::upload(cache, index, to, |exec| cache.library().calls.upload(exec, to)).unwrap_or_else(|status| status)
}

/// Returns the program's handle of a captured graph. New handles are the shim's only while that is allowed.
pub(crate) fn captured(vendor: Vendor, library: Graph) -> Graph {
    match open(vendor) {
        Ok(cache) => cache.sources().captured(library),
        Err(_) => cache(vendor).map_or(library, |cache| cache.sources().handle_of(library)),
    }
}

/// Returns the library's graph of a handle, for calls that give out no node. Returns the handle itself if it is the
/// library's own, NULL if it is not valid.
pub(crate) fn library_graph(vendor: Vendor, graph: Graph) -> Graph {
    of_library(vendor, graph, false)
}

/// As [`library_graph`], for any call.
pub(crate) fn seen_graph(vendor: Vendor, graph: Graph) -> Graph {
    of_library(vendor, graph, true)
}

fn of_library(vendor: Vendor, graph: Graph, seen: bool) -> Graph {
    match is_graph(vendor, graph) {
        true => cache(vendor).and_then(|cache| cache.sources().library_graph(graph, seen)).unwrap_or(null_mut()),
        false => graph,
    }
}

/// Returns the library's handle for a word that may be a handle of the shim, for unknown functions. Otherwise returns
/// the word itself.
pub(crate) fn seen_word(vendor: Vendor, word: usize) -> usize {
    if is_graph(vendor, word as Graph) {
        return seen_graph(vendor, word as Graph) as usize;
    }
    match exec_index(vendor, word as GraphExec) {
        Some(index) => {
            // The function may do anything with the exec, so no other exec may stand in for it any more.
            let used = cache(vendor).and_then(|cache| InUse::begin(cache, index).ok());
            let exec = used.and_then(|used| used.with_real(Some(Pinned::UnknownCall), |exec| exec as usize).ok());
            exec.unwrap_or(0)
        }
        None => word,
    }
}

/// Replaces each argument that is a handle of the shim by the real handle, before a function without a hook is called.
#[inline]
pub(crate) fn swap(words: &mut [usize; 6]) {
    for vendor in [Vendor::Cuda, Vendor::Hip] {
        for word in words.iter_mut() {
            *word = seen_word(vendor, *word);
        }
    }
}

/// Notes that a function that may take a handle of the shim is given out without a thunk. From now on new handles are
/// the library's own.
pub(crate) fn unknown_passed(name: &str) {
    caches().for_each(|cache| cache.handles().close(Pinned::UnknownCall));
    gate::record_if_started(|shim| {
        shim.went_past(&format!("{name} is given to the program without a door of its own"))
    });
}
