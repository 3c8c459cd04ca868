//! The real execs: made, chosen for launches, taken from handles, parked and destroyed within the bounds.
//!
//! This file has the store itself. The others are parts of it, from top to bottom:
//!
//! * Contexts, streams and code end: [`going`].
//! * An exec is made to hold what a handle means ([`hold`]): one that is *retargeted* node by node, a new one, or one
//!   that is updated from a clone. Which exec a launch gets: [`choose`], by the order of [`policy`].
//! * How execs are made: [`make`], and who does so: [`making`]. What goes when memory is short: [`give_back`]. A handle
//!   ends, and execs that no handle has: [`parked`].
//! * An exec is taken from the handle that has it, and destroyed: [`take`]. The thread that destroys
//!   execs whose end may wait: [`aside`].
//! * The execs that there are, and in which order they are looked at: [`candidates`]. The bounds: [`bounds`]. How many
//!   execs are needed: [`needed`]. Whether the cache thrashes: [`thrash`].

mod aside;
pub(super) mod bounds;
mod candidates;
mod choose;
mod give_back;
mod going;
mod hold;
pub(super) mod make;
mod making;
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
use aside::Aside;
use bounds::Bounds;
use candidates::Execs;
use gpumem_wire::settings::Settings;
use making::Making;
use needed::Need;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use thrash::Thrash;

/// The real execs of one library, and the handles that have them. What a launch reads comes first.
#[repr(C)]
pub(super) struct ExecStore {
    /// The cache is near a bound. Launches leave events, so that completed execs can be told from pending ones.
    pressed: AtomicBool,
    handles: Handles,
    library: Library,
    completion: Completion,
    bounds: Bounds,
    execs: Execs,
    making: Making,
    thrash: Thrash,
    /// The thread that destroys what may wait.
    aside: Arc<Aside>,
    /// How many execs are to be destroyed that no handle can use: their launches may be pending.
    to_destroy: AtomicU32,
    /// How many threads of ours look after parked execs.
    looking_after: AtomicU32,
    /// The process ends: those threads begin nothing more.
    ending_process: AtomicBool,
    /// When memory was short last, ns.
    short_ns: AtomicU64,
}

const _: () = assert!(offset_of!(ExecStore, pressed) == 0 && offset_of!(ExecStore, handles) == 8, "one cache line");

impl ExecStore {
    /// `None` if no handles can be reserved.
    pub(super) fn new(library: Library, settings: &Settings, start: &'static AtomicUsize) -> Option<Self> {
        Some(Self {
            pressed: AtomicBool::new(false),
            handles: Handles::new(library, start)?,
            library,
            completion: Completion::new(library),
            bounds: Bounds::new(settings),
            execs: Execs::default(),
            making: Making::default(),
            thrash: Thrash::default(),
            aside: Arc::default(),
            to_destroy: AtomicU32::new(0),
            looking_after: AtomicU32::new(0),
            ending_process: AtomicBool::new(false),
            short_ns: AtomicU64::new(0),
        })
    }

    /// What the program holds.
    #[inline(always)]
    pub(super) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(super) fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Whether launches leave events.
    #[inline(always)]
    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.load(Relaxed)
    }

    /// Follows these variables from now on.
    pub(super) fn apply_settings(&self, settings: &Settings) {
        self.bounds.apply_settings(settings);
    }

    /// Counts an exec that is about to be made, if there is room for it. If `over`, it is counted without room as well.
    /// Whether there was room.
    fn reserve(&self, bytes: (u64, u64), over: bool) -> bool {
        self.bounds.reserve(bytes, over, &self.pressed)
    }

    /// An exec is gone, or was not made after all.
    fn release(&self, bytes: (u64, u64)) {
        self.bounds.release(bytes, &self.pressed);
    }

    /// Whether there are more execs than the bounds allow.
    pub(super) fn is_over_bound(&self) -> bool {
        self.bounds.are_exceeded()
    }

    /// Whether some exec is to be destroyed and could not be yet.
    pub(super) fn has_to_destroy(&self) -> bool {
        self.is_over_bound() || self.to_destroy.load(Relaxed) > 0
    }

    /// From now on a handle needs this, and no longer what it needed `before`.
    pub(super) fn need_is(&self, before: Need, now: Need) {
        self.bounds.need_is(before, now);
    }

    /// Whether the process ends.
    fn is_ending(&self) -> bool {
        self.ending_process.load(SeqCst)
    }

    /// All real execs, for those who look for some.
    fn reals(&self) -> Vec<&'static RealExec> {
        self.execs.all()
    }
}
