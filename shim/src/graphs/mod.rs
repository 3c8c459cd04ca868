//! The graph cache: many handles of the program, few real execs of the driver.
//!
//! The program holds handles of the shim ([`handle`]). A handle stands for a class ([`class`]) and the parameters of
//! its nodes, packed as its source ([`crate::backend::source`]), or for a private clone of its graph.
//!
//! A cache has parts, each over those below it. [`store`] has the real execs. Below it are the handles ([`handles`]), the
//! completion of launches ([`completed`]), and [`sources`]: the data that execs and graphs are made of, and the program's
//! own graphs while they are folded. The fields of a part are private. The files, from top to bottom:
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
pub(crate) mod memory_use;
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

pub(crate) use caches::{
    cache_to_be, housekeeping, open, spare_time, step_aside, step_back_in, trim, waited, watch_parking,
};
pub(crate) use handle_arguments::{
    captured, exec_index, is_graph, library_graph, seen_graph, seen_word, swap, unknown_passed, upload,
};
pub(crate) use store::ExecStore;

use crate::process::wiped::{Place, Word};
use gpumem_wire::kinds::Vendor;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// The user has turned the cache off while the process runs.
static OFF: AtomicBool = AtomicBool::new(false);

/// Returns true if the user has turned the cache off.
fn is_off() -> bool {
    OFF.load(Relaxed)
}

/// Returns the existing caches.
pub(crate) fn caches() -> impl Iterator<Item = &'static ExecStore> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(cache)
}

#[inline(always)]
const fn place(vendor: Vendor) -> Place<ExecStore> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Cache(vendor)) }
}

/// Returns the cache of a vendor, if there is one. A child of a fork has none.
#[inline(always)]
pub(crate) fn cache(vendor: Vendor) -> Option<&'static ExecStore> {
    place(vendor).get()
}
