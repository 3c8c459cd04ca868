//! Content of graphs: shapes and classes ([`known`]), the program's own graphs while they are folded ([`folded`]), and
//! the reading of graphs ([`read`]). This file has the buffers for all of it.

pub(super) mod folded;
mod known;
mod read;

use super::class::{Shape, Template};
use super::handle::{Body, HandleTable};
use super::library::Library;
use crate::backend::graphs::Reading;
use crate::backend::source::{Records, Scratch, Source};
use crate::process::lock::lock;
use folded::{GraphHandle, Graphs};
use gpumem_wire::settings::Settings;
use known::KnownClasses;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, Weak};

/// Buffers that are kept for the next calls: as many as threads usually meet here.
const KEPT: usize = 4;

/// Buffers for one call.
#[derive(Default)]
pub(crate) struct Buffers {
    pub reading: Reading,
    /// The source whose records are in `reading`. A handle is mostly launched right after its graph was read.
    pub read: Weak<Source>,
    pub scratch: Scratch,
    pub target: Records,
    /// The clone that stands for the handle, if its class has clones.
    pub clone: Option<Arc<Template>>,
}

// SAFETY: the handles of nodes in `reading` are numbers, which any thread may hold. One thread at a time has the buffers.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Unpacks a source into `target`. Returns true on success.
    pub(super) fn unpack(&mut self, shape: &Shape, source: &Source) -> bool {
        let base = shape.base(&mut self.scratch);
        base.is_some_and(|base| source.unfold(Some(&base), &mut self.target, &mut self.scratch))
    }

    /// Writes a handle's present content into `target`. Returns true on success.
    pub(super) fn unfold(&mut self, body: &Body) -> bool {
        let (Some(class), Some(source)) = (&body.class, &body.source) else { return false };
        if body.edits().changes.is_empty() && self.read.as_ptr() == Arc::as_ptr(source) {
            self.target_is_read();
            return true;
        }
        if !self.unpack(&class.shape, source) {
            return false;
        }
        body.edits().changes.iter().for_each(|(node, record)| self.target.replace(*node as usize, record));
        true
    }

    /// Makes the content that was read the target.
    pub(super) fn target_is_read(&mut self) {
        self.read = Weak::new();
        std::mem::swap(&mut self.target, &mut self.reading.records);
    }
}

/// The data that execs and graphs can be made of, and the program's own graphs.
pub(crate) struct Sources {
    library: Library,
    known: KnownClasses,
    #[expect(clippy::vec_box, reason = "each call would move the buffers themselves three times")]
    works: Mutex<Vec<Box<Buffers>>>,
    graphs: HandleTable<GraphHandle>,
    real_graphs: Mutex<Graphs>,
    /// True if the user wants graphs folded.
    fold: AtomicBool,
    /// Number of threads that are destroying unreferenced graphs.
    ending: AtomicU32,
}

impl Sources {
    /// Returns `None` if no handles can be reserved.
    pub(super) fn new(library: Library, settings: &Settings, start: &'static AtomicUsize) -> Option<Self> {
        Some(Self {
            library,
            known: KnownClasses::default(),
            works: Mutex::default(),
            graphs: HandleTable::new(start)?,
            real_graphs: Mutex::default(),
            fold: settings.graph_fold.into(),
            ending: AtomicU32::new(0),
        })
    }

    /// Applies new values of these variables.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.fold.store(settings.graph_fold, Relaxed);
    }

    /// Runs `f` with buffers, which are reused.
    #[inline(always)]
    pub(super) fn with_work<R>(&self, f: impl FnOnce(&mut Buffers) -> R) -> R {
        let mut work = lock(&self.works).pop().unwrap_or_default();
        let result = f(&mut work);
        work.clone = None;
        let mut works = lock(&self.works);
        if works.len() < KEPT {
            works.push(work);
        }
        result
    }

    /// Returns the known shapes and classes.
    pub(super) fn known(&self) -> &KnownClasses {
        &self.known
    }

    /// Forgets what was known of an ending context's graphs. Nothing can be made of it any more.
    pub(super) fn forget_context(&self, context: u64) {
        for (_, handle) in self.graphs.all() {
            handle.forget_recipe_of(context);
        }
        self.known.forget_context(context);
    }

    /// Returns true if a thread is destroying an unreferenced graph.
    pub(super) fn is_ending_graph(&self) -> bool {
        self.ending.load(SeqCst) != 0
    }

    /// Returns all graphs of the shim that were ever given out.
    pub(super) fn all_graphs(&self) -> impl Iterator<Item = (u32, &'static GraphHandle)> {
        self.graphs.all()
    }
}
