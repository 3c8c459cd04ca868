//! The graph cache: many handles of the program's, few real execs of the driver's.
//!
//! The program holds handles of ours ([`handle`]). A handle means a class ([`class`]) and the parameters of its nodes,
//! packed as its source ([`crate::vendor::records`]), or a private clone of its graph ([`clones`]).
//!
//! * A handle comes to be and ends: [`instantiate`]. How many execs the handles need: [`needed`].
//! * Real execs: what each is ([`real`]), their bounds ([`cache`]), how one is made and destroyed ([`make`]), those
//!   that no handle has ([`parked`]), whether the last launch of one has completed ([`over`]).
//! * A launch: [`launch`]. It needs an exec that holds what the handle means, and [`choose`] finds one among the
//!   [`candidates`]: the handle's own, one that is *retargeted* node by node, or a new one. [`anew`] prefers a new one
//!   where that is faster.
//! * The program changes an exec: [`change`], [`child`], [`nodes`].
//! * The program's own graphs are packed too, while the program does not use them: [`folded`]. Whether a graph refers
//!   to memory: [`refers`].
//! * Contexts, streams and modules end: [`lives`].
//!
//! No vendor is known here: all calls are those of [`crate::vendor::graphs`].

mod anew;
pub mod cache;
mod candidates;
pub mod change;
mod child;
pub mod choose;
pub mod class;
mod clones;
pub mod folded;
mod guards;
pub mod handle;
pub mod instantiate;
pub mod launch;
pub mod lives;
pub mod make;
mod needed;
pub mod nodes;
mod over;
mod parked;
pub mod real;
mod refers;
#[cfg(test)]
mod tests;

pub use refers::{may_refer_to, refers_to};

use crate::gate;
use crate::process::wiped::{self, Place, Word};
use crate::process::{heap, stack};
use crate::records;
use crate::shim::Shim;
use crate::vendor;
use crate::vendor::graphs::StreamArg;
use cache::Cache;
use gpumem_abi::types::{Graph, GraphExec, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::counters;
use gpumem_wire::kinds::{Pinned, Severity, Vendor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The user has turned the cache off while the process runs.
static OFF: AtomicBool = AtomicBool::new(false);

/// New handles are the library's own from now on; those that are ours stay as they are. What came of it, for people.
pub fn step_aside() -> &'static str {
    OFF.store(true, Relaxed);
    "new graphs are the driver's own"
}

/// Whether the user has turned the cache off.
fn is_off() -> bool {
    OFF.load(Relaxed)
}

/// New handles may be ours again after [`step_aside`].
pub fn step_back_in() {
    OFF.store(false, Relaxed);
}

/// The caches that there are.
pub fn caches() -> impl Iterator<Item = &'static Cache> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(cache)
}

/// What the control thread does once a second.
pub fn tick() {
    for cache in caches() {
        cache.tend(false);
    }
}

/// Destroys all that is parked, for `gpumem trim`: what came of it, for people; `None` where nothing was parked.
pub fn trim() -> Option<String> {
    let all = caches().map(|cache| cache.tend(true));
    let (gone, stay) = all.fold((0, 0), |(gone, stay), (more, left)| (gone + more, stay + left));
    match (gone, stay) {
        (0, 0) => None,
        (_, 0) => Some(format!("{gone} idle graph execs destroyed")),
        _ => Some(format!("{gone} idle graph execs destroyed; {stay} stay while they may run")),
    }
}

/// The process is ending: nothing is destroyed any more by a thread of ours.
extern "C" fn at_exit() {
    for cache in caches() {
        cache.tend_no_more();
    }
}

/// Index of an exec handle of ours.
#[inline(always)]
pub fn exec_index(vendor: Vendor, exec: GraphExec) -> Option<u32> {
    handle::index_in(wiped::exec_handles(vendor), exec as usize)
}

/// Whether a graph handle is ours.
#[inline(always)]
pub fn is_graph(vendor: Vendor, graph: Graph) -> bool {
    handle::index_in(wiped::graph_handles(vendor), graph as usize).is_some()
}

#[inline(always)]
const fn place(vendor: Vendor) -> Place<Cache> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Cache(vendor)) }
}

/// The cache of a vendor, once there is one. A child of a fork has none.
#[inline(always)]
pub fn cache(vendor: Vendor) -> Option<&'static Cache> {
    place(vendor).get()
}

/// The cache of a vendor, made if the shim may do more than record.
///
/// # Errors
/// Why handles are the library's own.
pub fn open(vendor: Vendor) -> Result<&'static Cache, Pinned> {
    if is_off() {
        return Err(Pinned::Off);
    }
    let known = match cache(vendor) {
        Some(cache) => cache,
        // The tables of handles lie in the cache, which is on the stack at first; threads of 32 KiB exist.
        None => stack::with_room(|| make(vendor)).unwrap_or(Err(Pinned::Room))?,
    };
    gate::record_if_started(|shim| records::handles::may_be_virtual(shim)).unwrap_or(Err(Pinned::Off))?;
    known.is_open().map(|()| known)
}

#[cold]
#[inline(never)]
fn make(vendor: Vendor) -> Result<&'static Cache, Pinned> {
    let made = gate::record_if_started(|shim| new_cache(shim, vendor));
    let made = place(vendor).set_if_empty(made.unwrap_or(Err(Pinned::Off))?);
    // What changed before the cache had its place was not told to it.
    gate::record_if_started(|shim| made.goes_by(&shim.in_force.all()));
    heap::when_refused(|| OFF.store(true, Relaxed));
    // Before the library's own end: handlers run in the opposite order of this.
    // SAFETY: `at_exit` has the type that is asked for. It is code of this library, which is never
    // unloaded.
    unsafe { libc::atexit(at_exit) };
    Ok(made)
}

/// # Errors
/// [`Pinned::Off`], [`Pinned::Verdict`] or [`Pinned::Room`].
fn new_cache(shim: &Shim, vendor: Vendor) -> Result<Box<Cache>, Pinned> {
    let settings = &shim.in_force.all();
    // What was off from the start was never prepared for.
    if shim.settings.graph_cache == 0 || settings.graph_cache == 0 {
        return Err(Pinned::Off);
    }
    if !shim.trust.graph_cache(vendor) {
        return Err(Pinned::Verdict);
    }
    let starts = (wiped::exec_handles(vendor), wiped::graph_handles(vendor));
    Cache::new(vendor, vendor::graph_calls(vendor, settings), settings, starts).map(Box::new).ok_or(Pinned::Room)
}

/// The cache of a vendor, made if handles may be ours.
pub fn cache_to_be(vendor: Vendor) -> Option<&'static Cache> {
    cache(vendor).or_else(|| open(vendor).ok())
}

/// `CUDA_ERROR_UNKNOWN`, the answer where bookkeeping failed and the library was not asked.
const UNKNOWN: Status = 999;

/// Contains a panic of ours: new handles are the library's own from then on.
pub(crate) fn contained<R>(cache: &Cache, f: impl FnOnce() -> R) -> Result<R, Status> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        // The payload is leaked on purpose: dropping it could panic once more.
        std::mem::forget(panic);
        cache.close(Pinned::Off);
        gate::record_if_started(|shim| {
            shim.count(counters::PANICS, 1);
            shim.message(Severity::Error, "the graph cache failed (a bug in gpumem: please report it) and is off");
        });
        UNKNOWN
    })
}

/// Uploads a handle of ours.
pub fn upload(vendor: Vendor, exec: GraphExec, to: StreamArg) -> Status {
    let (Some(index), Some(cache)) = (exec_index(vendor, exec), cache(vendor)) else { return launch::INVALID };
    match cache.with_real(index, None, |exec| cache.calls.upload(exec, to)) {
        // The program has had its memory when it instantiated; its launches will do without an exec.
        Err(OUT_OF_MEMORY) => SUCCESS,
        Ok(status) | Err(status) => status,
    }
}

/// The program's handle of a graph that was captured: new ones are ours only while handles may be.
pub fn captured(vendor: Vendor, library: Graph) -> Graph {
    match open(vendor) {
        Ok(cache) => cache.captured(library),
        Err(_) => cache(vendor).map_or(library, |cache| cache.handle_of(library)),
    }
}

/// The library's graph behind a handle, for calls that give out no node; the handle itself if it is
/// the library's own, NULL if it is no good.
pub fn library_graph(vendor: Vendor, graph: Graph) -> Graph {
    if !is_graph(vendor, graph) {
        return graph;
    }
    cache(vendor).and_then(|cache| cache.unfolded(graph)).unwrap_or(std::ptr::null_mut())
}

/// The same, for any call.
pub fn seen_graph(vendor: Vendor, graph: Graph) -> Graph {
    if !is_graph(vendor, graph) {
        return graph;
    }
    cache(vendor).and_then(|cache| cache.seen(graph)).unwrap_or(std::ptr::null_mut())
}

/// The library's handle behind a word that may be a handle of ours, for what nobody knows: the word itself, if it
/// is none.
pub fn seen_word(vendor: Vendor, word: usize) -> usize {
    if is_graph(vendor, word as Graph) {
        return seen_graph(vendor, word as Graph) as usize;
    }
    match exec_index(vendor, word as GraphExec) {
        Some(index) => {
            // What becomes of it is not known: no other exec may stand in any more.
            let exec =
                cache(vendor).map(|cache| cache.with_real(index, Some(Pinned::UnknownCall), |exec| exec as usize));
            exec.and_then(Result::ok).unwrap_or(0)
        }
        None => word,
    }
}

/// Puts the real handle in place of each word that is a handle of ours, before a function that has
/// no hook of its own is called with them.
#[inline]
pub fn swap(words: &mut [usize; 6]) {
    for vendor in [Vendor::Cuda, Vendor::Hip] {
        for word in words.iter_mut() {
            *word = seen_word(vendor, *word);
        }
    }
}

/// A function that may take a handle of ours goes out without a thunk: from now on handles are the
/// library's own.
pub fn unknown_passed(name: &str) {
    caches().for_each(|cache| cache.close(Pinned::UnknownCall));
    gate::record_if_started(|shim| {
        shim.went_past(&format!("{name} is given to the program without a door of its own"))
    });
}
