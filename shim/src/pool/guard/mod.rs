//! The guard (`GPUMEM_GUARD`) finds writes outside of allocations and to freed memory.
//!
//! A block is a little larger than the program's request. The bytes after the request, and with `front` the bytes in
//! front of it, are a zone. The guard fills the zone when the program gets the block, and reads the zone when the
//! program frees the block. A freed block is filled as a whole, kept from use for a while, and read before it is
//! reused.
//!
//! * [`zones`]: the bytes of a zone. [`free`]: a free under the guard.
//! * [`report`]: the report of a finding. [`launches`]: launches that may have made the write.
//!
//! These rules keep the program's behaviour:
//! - The guard does nothing during a capture, after a sticky error, or on HIP. There the pool steps aside, or has no
//!   guard.
//! - The guard waits for the program's work only for a bounded time. Memory that was not read by then is counted.
//! - Memory that was given to a reader of the guard is claimed, and goes back to the driver once the reader is done
//!   ([`super::claims`]).
//! - A block is not filled while another reader may read it, and is not reused while it is being filled.

mod free;
mod launches;
mod report;
mod zones;

pub(super) use free::{DONE_WITHIN, LATE_WITHIN};
pub(crate) use free::{FreeSite, LaunchKind, may_be_in_graphs};

use super::block::Block;
use crate::process::wiped::{self, Flag};
use crate::stranded;
use gpumem_wire::layout::{AllocSlot, StackRef};
use gpumem_wire::settings::{Guard as Kind, Settings};
use launches::PastLaunches;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Least bytes of a zone after an allocation.
const BEHIND: u64 = 512;

/// True if the guard checks at each wait of the program.
static AT_WAITS: AtomicBool = AtomicBool::new(false);

/// Returns true if the process has a guard, which exists from the first block on, so that launches are to be recorded.
/// Hooks ask this before anything else.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    wiped::flag(Flag::Guard).load(Relaxed)
}

/// Returns true if the guard checks at each wait of the program.
#[inline(always)]
pub(crate) fn checks_at_waits() -> bool {
    AT_WAITS.load(Relaxed)
}

/// A block that was freed.
pub(crate) struct Freed {
    block: &'static Block,
    pub asked: u64,
    /// The record of its allocation.
    pub record: AllocSlot,
    /// The place and time of its free.
    pub stack: StackRef,
    pub time_ns: u64,
    /// A live graph referred to the block when it was freed.
    in_graph: bool,
    /// A write to the block was reported, so the block is not read again.
    told: bool,
}

/// The guard of one vendor's pool.
pub(crate) struct Guard {
    front: bool,
    /// The most bytes of zones and freed blocks.
    most: u64,
    /// Present bytes of zones.
    zones: AtomicU64,
    /// Blocks that were freed and not reused yet, by address.
    freed: Mutex<FxHashMap<u64, Freed>>,
    /// Time of the last read of all blocks without a finding, ns.
    all_good_ns: AtomicU64,
    launches: PastLaunches,
}

impl Guard {
    /// Returns `None` if the guard is off.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        if settings.guard == Kind::Off {
            return None;
        }
        stranded::watch_all();
        wiped::flag(Flag::Guard).store(true, Relaxed);
        AT_WAITS.store(settings.guard == Kind::Sync, Relaxed);
        Some(Self {
            front: settings.guard == Kind::Front,
            most: settings.guard_max,
            zones: AtomicU64::new(0),
            freed: Mutex::default(),
            all_good_ns: AtomicU64::new(0),
            launches: PastLaunches::default(),
        })
    }

    /// Returns the present bytes of zones.
    pub(crate) fn zones(&self) -> u64 {
        self.zones.load(Relaxed)
    }
}
