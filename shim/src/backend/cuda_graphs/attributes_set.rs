//! Records which kernel attributes this process has ever given to a launch or a node, whatever their value.
//!
//! An attribute that was never given has one value for all nodes of a function. It then need not be asked of each node,
//! which is most of the cost of reading a graph (0.05 µs each, measured on an H200, driver 580). Handles are ours only
//! if all ways to the driver are known.
//!
//! An unknown attribute may mean anything. Graphs whose nodes have one stay the driver's own. These are graphs that it
//! was set in, graphs captured while a launch had it or from a stream that may have it, and graphs that call a function
//! that has it.

use super::layout::LaunchConfig;
use super::shape::attribute;
use crate::backend::answer::told;
use crate::backend::driver;
use crate::process::wiped::{Place, Word};
use gpumem_abi::types::{Graph, GraphNode, Opaque, Stream};
use rustc_hash::FxHashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// A bit for each attribute. All higher ones share the last bit.
static GIVEN: AtomicU32 = AtomicU32::new(0);

const fn bit(id: u32) -> u32 {
    1 << if id < 31 { id } else { 31 }
}

/// A bit for each known attribute. None is above 30.
const KNOWN: u32 = {
    let lists: [&[u32]; 3] = [&attribute::OF_NODES, &attribute::OF_FUNCTIONS, &attribute::OF_LAUNCHES];
    let (mut known, mut list) = (0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            assert!(lists[list][at] < 31);
            known |= bit(lists[list][at]);
            at += 1;
        }
        list += 1;
    }
    known
};

/// Attributes of functions end before this one: `CU_FUNC_ATTRIBUTE_MAX` of 12.4.
const FUNCTION_ATTRIBUTES: i32 = 16;

/// Graphs, functions and kernels with an unknown attribute, by handle. If such a handle is reused for something without
/// one, that counts as having one: it stays the driver's own, too.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const UNKNOWN: Place<Mutex<FxHashSet<usize>>> = unsafe { Place::new(Word::UnknownAttributes) };
/// True if there is any.
static ANY_UNKNOWN: AtomicBool = AtomicBool::new(false);
/// True if a stream may have an unknown attribute, so that everything captured from now on may have it.
static IN_STREAMS: AtomicBool = AtomicBool::new(false);
/// Number of launches with an unknown attribute while something captured.
static IN_CAPTURES: AtomicU64 = AtomicU64::new(0);
/// Captures by their streams, with the number of such launches when each began.
// SAFETY: `Place::new` asks that all places of a word hold one type. This is the only place of this word.
const CAPTURES: Place<Mutex<Vec<(usize, u64)>>> = unsafe { Place::new(Word::Captures) };

/// True if the effect of an attribute is known.
#[inline]
pub(crate) fn is_known(id: u32) -> bool {
    KNOWN & bit(id) != 0
}

/// Notes that a node or a launch gets an attribute.
#[inline]
pub(crate) fn attribute(id: u32) {
    if GIVEN.load(Relaxed) & bit(id) == 0 {
        GIVEN.fetch_or(bit(id), Relaxed);
    }
}

/// Notes that a launch wants all of its blocks to run at once.
#[inline]
pub(crate) fn cooperative() {
    attribute(attribute::COOPERATIVE);
}

/// Notes the attributes of a launch; returns one of those that are unknown.
///
/// # Safety
/// `config` is NULL or a `CUlaunchConfig` of the program.
#[inline]
pub(crate) unsafe fn launch(config: *const LaunchConfig) -> Option<u32> {
    let mut unknown = None;
    // SAFETY: our caller vouches that `config` is NULL or a CUlaunchConfig. Its attributes are null
    // or an array of `len`, which the driver reads in the same way.
    unsafe {
        let config = config.as_ref().filter(|config| !config.attributes.is_null())?;
        for at in 0..config.len as usize {
            let id = (*config.attributes.add(at)).id;
            attribute(id);
            if !is_known(id) {
                unknown = Some(id);
            }
        }
    }
    unknown
}

/// Notes that a launch had an unknown attribute while something captured.
pub(crate) fn unknown_in_capture() {
    IN_CAPTURES.fetch_add(1, SeqCst);
}

fn mark(handle: usize) {
    UNKNOWN.locked().insert(handle);
    ANY_UNKNOWN.store(true, SeqCst);
}

/// True if a graph, function or kernel of this handle has an unknown attribute.
#[inline]
pub(crate) fn has_unknown(handle: usize) -> bool {
    ANY_UNKNOWN.load(Relaxed) && UNKNOWN.locked().contains(&handle)
}

/// Forgets a graph that is being destroyed.
#[inline]
pub(crate) fn forget(graph: Graph) {
    if ANY_UNKNOWN.load(Relaxed) {
        UNKNOWN.locked().remove(&(graph as usize));
    }
}

/// Notes that one graph now holds another's contents.
pub(crate) fn inherits(from: Graph, to: Graph) {
    if has_unknown(from as usize) {
        mark(to as usize);
    }
}

/// Notes that a capture is about to begin.
pub(crate) fn capture_begins(stream: Stream) {
    CAPTURES.locked().push((stream as usize, IN_CAPTURES.load(SeqCst)));
}

/// Notes that a capture of this stream has ended, or was refused. `graph` is the library's graph of it, if there is
/// one.
pub(crate) fn capture_ended(stream: Stream, graph: Option<Graph>) {
    // The capture's beginning was not seen, so nothing is known of it.
    let began = take_capture(stream).unwrap_or(0);
    let unknown = IN_STREAMS.load(Relaxed) || began != IN_CAPTURES.load(SeqCst);
    if let Some(graph) = graph.filter(|_| unknown) {
        mark(graph as usize);
    }
}

/// Takes the capture that began first on streams of one name. Several may exist: threads' own default streams share
/// their name.
fn take_capture(stream: Stream) -> Option<u64> {
    let mut all = CAPTURES.locked();
    let at = all.iter().position(|(its, _)| *its == stream as usize)?;
    Some(all.remove(at).1)
}

/// Returns the graph that a node is in; `None` if the driver does not tell (13.1 does).
fn graph_of(node: GraphNode) -> Option<Graph> {
    // SAFETY: rule of answers: `graph` takes the handle. Rule of the program's handles: the program
    // has just used the node in its call.
    told(|graph| unsafe { driver::cuGraphNodeGetContainingGraph(node, graph) }).ok()
}

/// Notes that a node was given an unknown attribute. Returns true if its graph is known and now marked.
pub(crate) fn unknown_in_node(node: GraphNode) -> bool {
    graph_of(node).map(|graph| mark(graph as usize)).is_some()
}

/// Notes that a node was given another node's attributes. Returns true if it is known which graphs have those.
pub(crate) fn copied(to: GraphNode, from: GraphNode) -> bool {
    if !ANY_UNKNOWN.load(Relaxed) {
        return true;
    }
    graph_of(from).zip(graph_of(to)).map(|(from, to)| inherits(from, to)).is_some()
}

/// Notes that a stream is given an unknown attribute.
pub(crate) fn unknown_in_stream() {
    IN_STREAMS.store(true, Relaxed);
}

/// True if the effect of a function attribute is known.
pub(crate) fn is_known_of_functions(id: i32) -> bool {
    (0..FUNCTION_ATTRIBUTES).contains(&id)
}

/// Notes that a function, or a kernel, is given an unknown attribute.
///
/// # Safety
/// The function is the program's and alive.
pub(crate) unsafe fn unknown_in_function(function: Opaque) {
    mark(function as usize);
    // SAFETY: rule of answers: `of_kernel` takes the handle. Our caller vouches that the function
    // is alive, and the driver refuses one that is no kernel.
    if let Ok(of_kernel) = told(|of_kernel| unsafe { driver::cuKernelGetFunction(of_kernel, function) }) {
        mark(of_kernel as usize);
    }
}

/// True if nodes of one function may differ in an attribute. Priorities come from streams, too.
pub(crate) fn may_differ(id: u32) -> bool {
    id == attribute::PRIORITY || GIVEN.load(Relaxed) & bit(id) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumem_abi::types::LaunchAttribute;
    use std::ptr::{null, null_mut};

    #[test]
    fn what_was_given_once_may_differ_from_then_on() {
        let of = |id| LaunchAttribute { id, pad: 0, value: [0; 8] };
        let two = [of(attribute::CLUSTER_DIMENSION), of(40)];
        let mut config = LaunchConfig {
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            stream: null_mut(),
            attributes: two.as_ptr(),
            len: 0,
        };
        let told = || attribute::OF_NODES.map(may_differ);
        // SAFETY: the first pointer is null. The second is to a local config, whose attributes are
        // a local array of at least `len` elements.
        unsafe {
            assert_eq!((launch(null()), launch(&config)), (None, None));
            assert_eq!(told(), [false, false, true, false], "a launch without attributes");
            config.len = 2;
            assert_eq!(launch(&config), Some(40));
        }
        assert_eq!(told(), [false, true, true, false]);
        assert!(may_differ(40) && may_differ(31) && !may_differ(30), "high numbers are taken together");
        cooperative();
        assert_eq!(told(), [true, true, true, false]);
    }

    /// The table has the headers' numbers, and attributes outside it are unknown.
    #[test]
    fn what_is_known_is_in_the_headers() {
        use gpumem_abi::known::{EDGE_PORTS, EDGE_TYPES, FUNCTION_ATTRIBUTES as OF_ALL, LAUNCH_ATTRIBUTES};
        let name = |id: u32| LAUNCH_ATTRIBUTES.iter().find(|row| row.1 == id).map(|row| row.0);
        for (id, as_named) in [
            (attribute::ACCESS_POLICY_WINDOW, "ACCESS_POLICY_WINDOW"),
            (attribute::COOPERATIVE, "COOPERATIVE"),
            (attribute::CLUSTER_DIMENSION, "CLUSTER_DIMENSION"),
            (attribute::CLUSTER_SCHEDULING, "CLUSTER_SCHEDULING_POLICY_PREFERENCE"),
            (attribute::PRIORITY, "PRIORITY"),
            (attribute::SYNC_DOMAIN_MAP, "MEM_SYNC_DOMAIN_MAP"),
            (attribute::SYNC_DOMAIN, "MEM_SYNC_DOMAIN"),
            (attribute::PREFERRED_CLUSTER, "PREFERRED_CLUSTER_DIMENSION"),
            (attribute::DEVICE_UPDATABLE, "DEVICE_UPDATABLE_KERNEL_NODE"),
            (attribute::CARVEOUT, "PREFERRED_SHARED_MEMORY_CARVEOUT"),
            (attribute::NVLINK_SCHEDULING, "NVLINK_UTIL_CENTRIC_SCHEDULING"),
        ] {
            assert_eq!((name(id), is_known(id)), (Some(as_named), true));
        }
        // Exactly what the headers had when the rules were measured (13.0).
        let known: Vec<u32> = (0..64).filter(|&id| is_known(id)).collect();
        let then: Vec<u32> = LAUNCH_ATTRIBUTES.iter().filter(|row| row.2 <= 13000).map(|row| row.1).collect();
        assert_eq!(known, then);
        let of_functions = OF_ALL.iter().filter(|row| row.2 <= 13000).map(|row| row.1 as i32);
        assert_eq!(of_functions.max(), Some(FUNCTION_ATTRIBUTES - 1));
        let last = |rows: &[(&str, u32, u32)]| rows.iter().map(|row| row.1 as u8).max();
        assert_eq!(
            (last(EDGE_PORTS), last(EDGE_TYPES)),
            (Some(super::super::edges::LAST_PORT), Some(super::super::edges::LAST_TYPE))
        );
    }
}
