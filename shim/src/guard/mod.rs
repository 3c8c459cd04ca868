//! The guard (`GPUMEM_GUARD`) finds writes outside of allocations and to freed memory.
//!
//! A block is a little larger than the program's request. The bytes after the request, and with `front` the bytes in
//! front of it, are a zone. The guard fills the zone when the program gets the block, and reads the zone when the
//! program frees the block. A freed block is filled as a whole, kept from use for a while, and read before it is
//! reused.
//!
//! The pool knows nothing of it, and hands each block over at a door ([`crate::pool::watcher`]). The files, from top to
//! bottom:
//!
//! * [`check`]: all watched memory is read on a user's request, and with `sync` also when the program waits for the
//!   device. [`turns`] lets one thread at a time read a context.
//! * [`freed_graphs`]: launches of graphs that refer to freed memory.
//! * [`handed`]: what the pool hands over. [`reads`]: memory is read, and findings are reported.
//! * [`zones`]: the bytes of a zone. [`jobs`]: memory is filled and read by the device.
//! * [`report`]: the report of a finding. [`launches`]: launches that may have made the write.
//!
//! This file has the guard itself.
//!
//! These rules keep the program's behaviour:
//! - The guard does nothing during a capture, after a sticky error, or on HIP. There the pool steps aside, or has no
//!   guard.
//! - The guard waits for the program's work only for a bounded time. Memory that was not read by then is counted.
//! - Memory that was given to a reader of the guard is claimed, and goes back to the driver once the reader is done
//!   ([`crate::pool::claims`]).
//! - A block is not filled while another reader may read it, and is not reused while it is being filled.

mod check;
mod freed_graphs;
mod handed;
mod jobs;
mod launches;
mod reads;
mod report;
mod turns;
mod zones;

pub(crate) use check::{at_wait, check_all};
pub(crate) use freed_graphs::of_launched_graph;
pub(crate) use launches::{LaunchKind, note_launch};

use crate::pool::block::{Block, FRONT};
use crate::pool::watcher::Watcher;
use crate::pool::{self, Pool};
use crate::process::wiped::{self, Flag};
use crate::stranded;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::{AllocSlot, StackRef};
use gpumem_wire::settings::{Guard as Kind, Settings};
use launches::PastLaunches;
use rustc_hash::FxHashMap;
use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use turns::Turns;

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
struct Freed {
    block: &'static Block,
    asked: u64,
    /// The record of its allocation.
    record: AllocSlot,
    /// The place and time of its free.
    stack: StackRef,
    time_ns: u64,
    /// A live graph referred to the block when it was freed.
    in_graph: bool,
    /// A write to the block was reported, so the block is not read again.
    told: bool,
}

/// The guard of one vendor's pool.
struct Guard {
    /// Bytes of the zone in front of an allocation: [`FRONT`] or none.
    front: u64,
    /// The most bytes of zones and freed blocks.
    most: u64,
    /// Present bytes of zones.
    zones: AtomicU64,
    /// Blocks that were freed and not reused yet, by address.
    freed: Mutex<FxHashMap<u64, Freed>>,
    /// Some of them were freed while a live graph referred to them.
    in_graphs: AtomicBool,
    /// Time of the last read of all blocks without a finding, ns.
    all_good_ns: AtomicU64,
    launches: PastLaunches,
    turns: Turns,
}

impl Guard {
    /// Returns `None` if the guard is off.
    fn new(settings: &Settings) -> Option<Self> {
        if settings.guard == Kind::Off {
            return None;
        }
        stranded::watch_all();
        wiped::flag(Flag::Guard).store(true, Relaxed);
        AT_WAITS.store(settings.guard == Kind::Sync, Relaxed);
        Some(Self {
            front: if settings.guard == Kind::Front { FRONT } else { 0 },
            most: settings.guard_max,
            zones: AtomicU64::new(0),
            freed: Mutex::default(),
            in_graphs: AtomicBool::new(false),
            all_good_ns: AtomicU64::new(0),
            launches: PastLaunches::default(),
            turns: Turns::default(),
        })
    }
}

/// Makes the guard of a new pool, if the user wants one.
pub(crate) fn new(settings: &Settings) -> Option<Box<dyn Watcher>> {
    Guard::new(settings).map(|guard| Box::new(guard) as Box<dyn Watcher>)
}

/// Returns a vendor's pool and guard, if it has a guard.
fn of(vendor: Vendor) -> Option<(&'static Pool, &'static Guard)> {
    let pool = pool::of(vendor)?;
    let watcher: &dyn Any = pool.releaser.watcher()?;
    Some((pool, watcher.downcast_ref()?))
}
