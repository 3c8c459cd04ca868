//! The graph cache: many handles of the program's, few real execs of the driver's.
//!
//! The program holds handles of ours ([`handle`]). A handle means a class ([`class`]) and the parameters of its nodes,
//! packed as its source ([`crate::vendor::source`]), or a private clone of its graph ([`clones`]).
//!
//! This file has the cache itself. The others are parts of it. A part uses those below it, from top to bottom:
//!
//! * [`handle_arguments`]: handles of ours in the program's calls, and what is behind them. [`caches`]: the caches of
//!   the process, made, turned off and on, looked after.
//! * A handle comes to be and ends: [`instantiate`]. The program changes an exec: [`change`], [`child`]. Contexts,
//!   streams and modules end: [`context_end`]. Whether a graph refers to memory: [`memory_use`].
//! * A launch: [`launch`]. It needs an exec that holds what the handle means ([`hold`]): its own, one that is
//!   *retargeted* node by node, a new one, or a clone ([`clones`]).
//! * Which exec a launch gets: [`choose`], among the [`candidates`]. When a new exec is better than a retargeted one:
//!   [`replace`]. Execs that no handle has: [`parked`].
//! * How execs are made: [`make`]. What goes when memory is short: [`give_back`].
//! * An exec is taken from the handle that has it: [`take`]. How execs are destroyed: [`end`]. The thread that destroys
//!   execs whose end may wait: [`aside`].
//! * What the program holds, and how a handle gets and loses its exec: [`handles`]. Whether the last launch of an exec
//!   has completed: [`completed`]. The bounds: [`bounds`]. Whether the cache thrashes: [`thrash`].
//! * The program's own graphs are packed too, while the program does not use them: [`folded`].
//! * What there is: a handle ([`handle`]), a real exec ([`real`]), shapes, classes and sources ([`class`]), nodes that
//!   the program knows ([`nodes`]), how many execs are needed ([`needed`]). The library, and what has to be put back
//!   after a call of it: [`library`].
//!
//! No vendor is known here: all calls are those of [`crate::vendor::graphs`].

mod aside;
mod bounds;
mod caches;
mod candidates;
pub(crate) mod change;
pub(crate) mod change_node;
mod child;
pub(crate) mod choose;
pub(crate) mod class;
mod clones;
mod completed;
pub(crate) mod context_end;
mod end;
mod give_back;
pub(crate) mod handle;
mod handle_arguments;
mod handles;
pub(crate) mod hold;
pub(crate) mod instantiate;
pub(crate) mod launch;
mod library;
pub(crate) mod make;
mod memory_use;
mod needed;
pub(crate) mod nodes;
mod parked;
pub(crate) mod real;
mod replace;
mod sources;
mod take;
#[cfg(test)]
mod tests;
mod thrash;

pub(crate) use caches::{cache_to_be, housekeeping, open, spare_time, step_aside, step_back_in, trim, waited};
pub(crate) use handle_arguments::{
    captured, exec_index, is_graph, library_graph, seen_graph, seen_word, swap, unknown_passed, upload,
};
pub(crate) use memory_use::{SourceRead, each_record, each_record_of_exec, exec_refers_to, may_refer_to, refers_to};

use crate::process::lock::lock;
use crate::process::wiped::{Place, Word};
use crate::vendor::graphs::GraphCalls;
use aside::Aside;
use bounds::Bounds;
use completed::Completion;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::settings::Settings;
use handles::Handles;
use library::Library;
use needed::Needed;
use real::RealExec;
use sources::{Sources, Work};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use thrash::Thrash;

/// The graph cache of one vendor's library. What a launch reads comes first, in one line of the processor's caches.
#[repr(C, align(64))]
pub(crate) struct Cache {
    /// The cache is near a bound. Launches leave events, so that completed execs can be told from pending ones.
    pub pressed: AtomicBool,
    handles: Handles,
    pub library: Library,
    pub bounds: Bounds,
    completion: Completion,
    /// How many execs are to be destroyed that no handle can use: their launches may be pending.
    pub to_destroy: AtomicU32,
    /// How many threads are unloading code.
    pub going: AtomicU32,
    /// How many threads are instantiating a template, whatever code it was built from.
    pub making: AtomicU32,
    inner: Mutex<Inner>,
    /// The thread that destroys what may wait.
    aside: Arc<Aside>,
    /// How many threads of ours look after parked execs.
    looking_after: AtomicU32,
    /// The process ends: those threads begin nothing more.
    ending_process: AtomicBool,
    /// When memory was short last, ns.
    short_ns: AtomicU64,
    sources: Sources,
    thrash: Thrash,
}

/// What is counted.
#[derive(Default)]
struct Inner {
    /// Every real exec there is or was.
    pub reals: Vec<&'static RealExec>,
    pub unused: Vec<&'static RealExec>,
    pub count: u64,
    pub bytes: u64,
    pub needed: Needed,
}

impl Inner {
    /// Real execs of a class. For 0, all execs that do not stay with one handle for good.
    pub(crate) fn of_class(&self, class: usize) -> impl Iterator<Item = &'static RealExec> {
        let is = move |its: usize| its != 0 && (class == 0 || its == class);
        self.reals.iter().copied().filter(move |real| real.in_use() && is(real.class.load(Relaxed)))
    }
}

impl Cache {
    /// `None` if no handles can be reserved.
    pub(crate) fn new(
        vendor: Vendor,
        calls: &'static dyn GraphCalls,
        settings: &Settings,
        starts: (&'static AtomicUsize, &'static AtomicUsize),
    ) -> Option<Self> {
        let library = Library { vendor, calls };
        Some(Self {
            library,
            bounds: Bounds {
                count: settings.graph_cache.into(),
                bytes: settings.graph_cache_bytes.into(),
                idle_ns: settings.graph_idle.into(),
            },
            handles: Handles::new(library, starts.0)?,
            sources: Sources::new(library, settings, starts.1)?,
            to_destroy: AtomicU32::new(0),
            going: AtomicU32::new(0),
            making: AtomicU32::new(0),
            completion: Completion::new(library),
            pressed: AtomicBool::new(false),
            inner: Mutex::default(),
            aside: Arc::default(),
            looking_after: AtomicU32::new(0),
            ending_process: AtomicBool::new(false),
            short_ns: AtomicU64::new(0),
            thrash: Thrash::default(),
        })
    }

    /// What graphs hold, and the program's own graphs.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// What the program holds.
    #[inline(always)]
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Whether the process ends.
    pub(super) fn is_ending(&self) -> bool {
        self.ending_process.load(SeqCst)
    }

    /// All real execs, for those who look for some.
    pub(crate) fn reals(&self) -> Vec<&'static RealExec> {
        lock(&self.inner).reals.clone()
    }
}

/// The user has turned the cache off while the process runs.
static OFF: AtomicBool = AtomicBool::new(false);

/// Whether the user has turned the cache off.
fn is_off() -> bool {
    OFF.load(Relaxed)
}

/// The caches that there are.
pub(crate) fn caches() -> impl Iterator<Item = &'static Cache> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(cache)
}

#[inline(always)]
const fn place(vendor: Vendor) -> Place<Cache> {
    // SAFETY: `Place::new` asks that all places of a word hold one type. Only this function names these words.
    unsafe { Place::new(Word::Cache(vendor)) }
}

/// The cache of a vendor, once there is one. A child of a fork has none.
#[inline(always)]
pub(crate) fn cache(vendor: Vendor) -> Option<&'static Cache> {
    place(vendor).get()
}
