//! The guard (`GPUMEM_GUARD`): writes outside of what was allocated, and to what was freed, are found.
//!
//! A block is a little larger than what the program asked for. What lies behind that, and with `front` what lies in
//! front of it, is filled when the program gets the block and read when it frees it. A block that was
//! freed is filled whole, kept from use for a while, and read before it is used again.
//!
//! * [`zones`]: which bytes those are. [`free`]: what a free does.
//! * [`report`]: what is said of a finding. [`launches`]: who may have been it.
//!
//! The rules that keep the program as it is:
//! - Nothing of this runs while something captures, after an error that stays, or on HIP: the pool steps aside there, or
//!   has no guard.
//! - Nothing of ours waits for the program's work without an end. What was not read in time is counted as that.
//! - Memory that a reader of ours was given goes back to the driver once the reader is done
//!   ([`super::context_pool::ContextPool::settle_readers`]), or by a free that waits for all work.
//! - A block with a fill under way is not used again.

mod free;
mod launches;
mod report;
mod zones;

pub(super) use free::DONE_WITHIN;
pub(crate) use free::{Asker, LaunchKind, may_be_in_graphs};

use crate::stranded;
use gpumem_wire::layout::{AllocSlot, StackRef};
use gpumem_wire::settings::{Guard as Kind, Settings};
use launches::Launches;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Bytes behind it at least.
const BEHIND: u64 = 512;

/// A process with a guard has it from its first block on: hooks ask this before anything else.
static ON: AtomicBool = AtomicBool::new(false);
/// Waits of the program are times to check.
static AT_WAITS: AtomicBool = AtomicBool::new(false);

/// Whether launches are to be noted.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether waits of the program are times to check.
#[inline(always)]
pub(crate) fn checks_at_waits() -> bool {
    AT_WAITS.load(Relaxed)
}

/// What is known of a block that was freed.
pub(crate) struct Freed {
    pub asked: u64,
    /// The record of its allocation.
    pub record: AllocSlot,
    /// Where and when it was freed.
    pub stack: StackRef,
    pub time_ns: u64,
    /// A live graph referred to it then.
    in_graph: bool,
    /// What was written to it was told: it is not read again.
    told: bool,
}

/// The guard of one vendor's pool.
pub(crate) struct Guard {
    front: bool,
    /// Most bytes besides what the program asked for.
    most: u64,
    /// Bytes of zones, now.
    zones: AtomicU64,
    /// Blocks that were freed and not used again, by address.
    freed: Mutex<FxHashMap<u64, Freed>>,
    /// Addresses of live blocks that are being read: their frees wait for that.
    being_read: Mutex<FxHashSet<u64>>,
    /// When all blocks were last read and found good, ns.
    all_good_ns: AtomicU64,
    launches: Launches,
}

impl Guard {
    /// `None`: it is off.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        if settings.guard == Kind::Off {
            return None;
        }
        stranded::watch_all();
        ON.store(true, Relaxed);
        AT_WAITS.store(settings.guard == Kind::Sync, Relaxed);
        Some(Self {
            front: settings.guard == Kind::Front,
            most: settings.guard_max,
            zones: AtomicU64::new(0),
            freed: Mutex::default(),
            being_read: Mutex::default(),
            all_good_ns: AtomicU64::new(0),
            launches: Launches::default(),
        })
    }

    /// Bytes of zones, now.
    pub(crate) fn zones(&self) -> u64 {
        self.zones.load(Relaxed)
    }
}
