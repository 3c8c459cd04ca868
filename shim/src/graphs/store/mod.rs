//! The real execs: made, chosen for launches, taken from handles, parked and destroyed within the bounds.
//!
//! This file has the store itself. The others are its parts, from top to bottom:
//!
//! * Ends of contexts, streams and code: [`going`].
//! * An exec that holds a handle's content ([`hold`]): one that is *retargeted* node by node, a new one, or one that is
//!   updated from a clone. The exec that a launch gets: [`choose`], by the order of [`policy`].
//! * Making execs: [`make`]. Execs that go when memory is short: [`give_back`]. The end of a handle, and execs without a
//!   handle: [`parked`].
//! * An exec is taken from its handle, and destroyed: [`take`].
//! * The existing execs, and the order in which they are looked at: [`candidates`]. The bounds: [`bounds`]. The number
//!   of execs that are needed: [`needed`]. Detection of thrashing: [`thrash`].

pub(super) mod bounds;
mod candidates;
mod choose;
mod give_back;
mod going;
mod hold;
pub(super) mod make;
pub(super) mod needed;
mod parked;
mod policy;
mod take;
#[cfg(test)]
mod tests;
mod thrash;

use super::completed::Completion;
use super::handles::Handles;
use super::library::Library;
use super::real::RealExec;
use super::sources::Sources;
use crate::process::aside::Aside;
use crate::progress::queries::QueryGate;
use bounds::Bounds;
use candidates::ExecSlots;
use gpumem_abi::types::GraphNode;
use gpumem_wire::kinds::Pinned;
use gpumem_wire::settings::Settings;
use needed::Need;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use thrash::Thrash;

/// The graph cache of one vendor's library: its real execs, the handles that have them, and what they are made of. The
/// fields that a launch reads come first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct ExecStore {
    /// The cache is near a bound. Launches record events, so that completed execs can be told from pending ones.
    pressed: AtomicBool,
    handles: Handles,
    library: Library,
    completion: Completion,
    bounds: Bounds,
    execs: ExecSlots,
    /// Closed while code is unloaded. Passed by a thread from reading a class's template, which may hold any code, to having
    /// an exec of it.
    making: QueryGate,
    thrash: Thrash,
    /// The thread that destroys execs whose end may wait.
    aside: Aside,
    /// Number of execs that no handle can use and that have to be destroyed: their launches may be pending.
    to_destroy: AtomicU32,
    /// Number of the shim's threads that maintain parked execs.
    looking_after: AtomicU32,
    /// The process is ending: those threads begin nothing more.
    ending_process: AtomicBool,
    /// Time of the last memory shortage, ns.
    short_ns: AtomicU64,
    /// The sources from which execs are made.
    sources: Sources,
}

const _: () = assert!(offset_of!(ExecStore, pressed) == 0 && offset_of!(ExecStore, handles) == 8, "one cache line");

impl ExecStore {
    /// Returns `None` if no handles can be reserved.
    pub(super) fn new(
        library: Library,
        settings: &Settings,
        starts: (&'static AtomicUsize, &'static AtomicUsize),
    ) -> Option<Self> {
        Some(Self {
            pressed: AtomicBool::new(false),
            handles: Handles::new(library, starts.0)?,
            library,
            completion: Completion::new(library),
            bounds: Bounds::new(settings),
            execs: ExecSlots::default(),
            making: QueryGate::new(),
            thrash: Thrash::default(),
            aside: Aside::default(),
            to_destroy: AtomicU32::new(0),
            looking_after: AtomicU32::new(0),
            ending_process: AtomicBool::new(false),
            short_ns: AtomicU64::new(0),
            sources: Sources::new(library, settings, starts.1)?,
        })
    }

    /// Returns the program's handles.
    #[inline(always)]
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Returns the content of graphs, and the program's own graphs.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    pub(crate) fn library(&self) -> Library {
        self.library
    }

    pub(super) fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Returns true if launches record events.
    #[inline(always)]
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// Applies new values of these variables.
    pub(crate) fn apply_settings(&self, settings: &Settings) {
        self.bounds.apply_settings(settings);
        self.sources.apply_settings(settings);
    }

    /// Counts an exec that is about to be made, if there is room for it. With `over`, counts it without room as well.
    /// Returns true if there was room.
    fn reserve(&self, bytes: (u64, u64), over: bool) -> bool {
        self.bounds.reserve(bytes, over, &self.pressed)
    }

    /// Stops counting an exec that is gone, or was not made after all.
    fn release(&self, bytes: (u64, u64)) {
        self.bounds.release(bytes, &self.pressed);
    }

    /// Returns true if there are more execs than the bounds allow.
    pub(super) fn is_over_bound(&self) -> bool {
        self.bounds.are_exceeded()
    }

    /// Returns true if some exec has to be destroyed and could not be yet.
    pub(super) fn has_to_destroy(&self) -> bool {
        self.is_over_bound() || self.to_destroy.load(Relaxed) > 0
    }

    /// Replaces what a handle needed `before` by what it needs now.
    pub(super) fn need_is(&self, before: Need, now: Need) {
        self.bounds.need_is(before, now);
    }

    /// Notes that an attribute was set. If the library accepts the attribute but does not return its value, the
    /// attribute would be lost when one graph is made of another.
    pub(crate) fn attribute_set(&self, node: GraphNode, attribute: u32) {
        if !self.library.calls.tells(node, attribute) {
            self.handles.close(Pinned::Parameters);
        }
    }

    /// Returns true if the process is ending.
    fn is_ending(&self) -> bool {
        self.ending_process.load(SeqCst)
    }

    /// Returns all real execs, for searches.
    fn reals(&self) -> Vec<&'static RealExec> {
        self.execs.all()
    }
}
