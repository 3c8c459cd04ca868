//! State of stranded growth. It is passive: nothing here knows the shim, and only the files of [`super`] change it. A file
//! uses those below it, from top to bottom:
//!
//! | file | what it holds |
//! |---|---|
//! | uses.rs | the site's blocks that work still uses |
//! | sites.rs | call sites and refused requests |
//! | series.rs | the shape of creeping growth |
//! | phase.rs | check that a thread is in the middle of a computation |
//! | programs.rs | programs that are known to free and retry |

pub(super) mod phase;
pub(super) mod programs;
pub(super) mod series;
pub(super) mod sites;
pub(super) mod uses;

use crate::process::lock::lock;
use gpumem_wire::settings::{Settings, Stranded as Mode};
use programs::Programs;
use sites::{StrandedSites, Watched};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::*};
use uses::Uses;

/// Number of places for marks of addresses.
const MARKS: usize = 4096;

/// State of stranded growth.
pub(crate) struct Stranded {
    mode: AtomicU8,
    /// True if the user says that the program retries.
    retries: AtomicBool,
    pub(super) programs: Programs,
    sites: Mutex<StrandedSites>,
    /// Uses of blocks that may become stranded.
    pub uses: Uses,
    /// For each place, the number of known blocks whose address falls on it. So most frees need no lock.
    marks: Box<[AtomicU32]>,
    /// Number of failed requests that wait for their thread's next one.
    pub(super) refusals: AtomicU32,
    /// True if the user wants requests of some site refused.
    pub(super) marked: AtomicBool,
}

impl Stranded {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            mode: AtomicU8::new(settings.stranded as u8),
            retries: AtomicBool::new(settings.stranded_retries),
            programs: Programs::new(),
            sites: Mutex::default(),
            uses: Uses::default(),
            // If every free is examined, any address may matter.
            marks: (0..MARKS).map(|_| AtomicU32::new(settings.freed_in_graph.into())).collect(),
            refusals: AtomicU32::new(0),
            marked: AtomicBool::new(false),
        }
    }

    /// Changes `GPUMEM_STRANDED` while the process runs.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Relaxed);
        match mode {
            Mode::Off => self.uses.watch(Watched::All(Vec::new())),
            _ => self.sites().watch_all(),
        }
    }

    /// Changes `GPUMEM_STRANDED_RETRIES` while the process runs.
    pub(crate) fn set_retries(&self, retries: bool) {
        self.retries.store(retries, Relaxed);
    }

    /// True if the program has its own allocator that keeps what it frees.
    pub(crate) fn has_own_cache(&self) -> bool {
        self.programs.has_own_cache()
    }

    pub(super) fn retries(&self) -> bool {
        self.retries.load(Relaxed)
    }

    /// True if a failed request waits for its thread's next one.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> bool {
        self.refusals.load(Relaxed) != 0
    }

    pub(super) fn is(&self, mode: Mode) -> bool {
        self.mode.load(Relaxed) == mode as u8
    }

    /// True if allocations are examined.
    #[inline]
    pub(crate) fn on(&self) -> bool {
        !self.is(Mode::Off)
    }

    pub(super) fn sites(&self) -> std::sync::MutexGuard<'_, StrandedSites> {
        lock(&self.sites)
    }

    pub(super) fn mark(&self, addr: u64) -> &AtomicU32 {
        let hash = (addr >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.marks[(hash >> 52) as usize % MARKS]
    }

    /// Marks a block that became known (1) or unknown (−1). Only for a thread that has the sites locked.
    pub(super) fn marks(&self, addr: u64, more: i32) {
        let mark = self.mark(addr);
        mark.store(mark.load(Relaxed).wrapping_add_signed(more), Relaxed);
    }

    /// True if a free of this address may matter. Takes no lock.
    #[inline]
    pub(crate) fn may_know(&self, addr: u64) -> bool {
        self.mark(addr).load(Relaxed) != 0 || self.waiting()
    }
}
