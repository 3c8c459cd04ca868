//! The graph cache: many handles of the program, few real execs of the driver.
//!
//! The program holds handles of the shim ([`handle`]). A handle stands for a class ([`class`]) and the parameters of
//! its nodes, packed as its source ([`crate::backend::source`]), or for a private clone of its graph.
//!
//! A cache has two parts, which this file combines. [`store`] has the real execs and, below them, the handles
//! ([`handles`]) and the completion of launches ([`completed`]). [`sources`] has the data that execs and graphs are
//! made of, and the program's own graphs while they are folded. The fields of a part are private. The files, from top
//! to bottom:
//!
//! * [`handle_arguments`]: the shim's handles in the program's calls, and their objects. [`caches`]: the caches of the
//!   process, made, turned off and on, maintained.
//! * A new handle: [`instantiate`]. The program's changes of an exec: [`change`]. References of graphs to memory:
//!   [`memory_use`]. A launch: [`launch`].
//! * The parts: [`store`], [`sources`].
//! * Giving an exec other content: [`retarget`]. The program's handles, and how a handle gets and loses its exec:
//!   [`handles`]. Completion of an exec's last launch: [`completed`].
//! * The objects: a handle ([`handle`]), the exec that holds its content ([`resident`]), a real exec ([`real`]), shapes and classes ([`class`]), nodes that the program
//!   knows ([`nodes`]). The library, and the states to restore after a call of it: [`library`].
//!
//! This folder knows no vendor: all calls are those of [`crate::backend::graphs`].

mod caches;
pub(crate) mod change;
mod class;
mod completed;
mod handle;
mod handle_arguments;
mod handles;
pub(crate) mod instantiate;
pub(crate) mod launch;
mod library;
mod memory_use;
pub(crate) mod nodes;
mod real;
mod resident;
mod retarget;
mod sources;
mod store;
#[cfg(test)]
mod tests;

mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::thread::yield_now;
}

pub(crate) use caches::{cache_to_be, housekeeping, open, spare_time, step_aside, step_back_in, trim, waited};
pub(crate) use handle_arguments::{
    captured, exec_index, is_graph, library_graph, seen_graph, seen_word, swap, unknown_passed, upload,
};
pub(crate) use memory_use::{SourceRead, each_record, each_record_of_exec, exec_refers_to, may_refer_to, refers_to};

use crate::backend::graphs::{Code, GraphCalls};
use crate::process::raised::Raised;
use crate::process::wiped::{Place, Word};
use gpumem_abi::types::{GraphNode, Status, Stream};
use gpumem_wire::kinds::{Pinned, Vendor};
use gpumem_wire::settings::Settings;
use handles::Handles;
use library::Library;
use sources::{Sources, Work};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use store::ExecStore;

/// The graph cache of one vendor's library. The fields that a launch reads come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Cache {
    store: ExecStore,
    sources: Sources,
    library: Library,
}

impl Cache {
    /// Returns `None` if no handles can be reserved.
    pub(crate) fn new(
        vendor: Vendor,
        calls: &'static dyn GraphCalls,
        settings: &Settings,
        starts: (&'static AtomicUsize, &'static AtomicUsize),
    ) -> Option<Self> {
        let library = Library { vendor, calls };
        let (store, sources) =
            (ExecStore::new(library, settings, starts.0)?, Sources::new(library, settings, starts.1)?);
        Some(Self { store, sources, library })
    }

    /// Returns the content of graphs, and the program's own graphs.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns the program's handles.
    #[inline(always)]
    pub(crate) fn handles(&self) -> &Handles {
        self.store.handles()
    }

    /// Checks that execs may be made and destroyed now.
    ///
    /// # Errors
    /// The library's status during a capture that forbids that.
    pub(crate) fn allowed(&self) -> Result<(), Status> {
        self.library.allowed()
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// 1 if it is not in use.
    pub(crate) fn end_handle(&'static self, index: u32) -> Result<(), Status> {
        self.store.end_handle(index)
    }

    /// Applies new values of these variables.
    pub(crate) fn apply_settings(&self, settings: &Settings) {
        self.store.apply_settings(settings);
        self.sources.apply_settings(settings);
    }

    /// Gives back all unused memory, here and in the pool, because memory of this device is short. Returns the bytes,
    /// as far as they are known; `None` if there was nothing to give back.
    pub(crate) fn give_back_all(&'static self) -> Option<u64> {
        self.store.give_back_all(&self.sources)
    }

    /// Prepares for the end of a context with all execs in it, or cleans up once it is `gone`.
    pub(crate) fn context_going(&self, context: u64, gone: bool) {
        self.store.context_going(&self.sources, context, gone);
    }

    /// Prepares for the destruction of a stream. No stream is queried until the guard is dropped.
    #[must_use = "until the stream is destroyed nobody may look at it"]
    pub(crate) fn stream_going(&self, stream: Stream) -> Raised<'_> {
        self.store.stream_going(stream)
    }

    /// Prepares for the begin of a capture, or for a stream that joins one. No stream is queried until the guard is
    /// dropped. The caller drops it once the capture is counted or was refused, or the stream has joined.
    #[must_use = "until the stream captures nobody may look at it"]
    pub(crate) fn capture_begins(&self) -> Raised<'_> {
        self.store.completion().close()
    }

    /// Prepares for the unload of code. Returns its functions, for [`Self::code_went`].
    #[must_use = "what is known of code that stays comes back"]
    pub(crate) fn code_going(&self, code: Code) -> Vec<u64> {
        self.store.code_going(&self.sources, code)
    }

    /// Notes that the code was unloaded, or that the unload failed. Handles of that code keep their content.
    pub(crate) fn code_went(&self, functions: &[u64], gone: bool) {
        self.library.calls.unloaded(functions, gone);
    }

    /// Notes that an attribute was set. If the library accepts the attribute but does not return its value, the
    /// attribute would be lost when one graph is made of another.
    pub(crate) fn attribute_set(&self, node: GraphNode, attribute: u32) {
        if !self.library.calls.tells(node, attribute) {
            self.handles().close(Pinned::Parameters);
        }
    }
}

/// The user has turned the cache off while the process runs.
static OFF: AtomicBool = AtomicBool::new(false);

/// Returns true if the user has turned the cache off.
fn is_off() -> bool {
    OFF.load(Relaxed)
}

/// Returns the existing caches.
pub(crate) fn caches() -> impl Iterator<Item = &'static Cache> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(cache)
}

#[inline(always)]
const fn place(vendor: Vendor) -> Place<Cache> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Cache(vendor)) }
}

/// Returns the cache of a vendor, if there is one. A child of a fork has none.
#[inline(always)]
pub(crate) fn cache(vendor: Vendor) -> Option<&'static Cache> {
    place(vendor).get()
}
