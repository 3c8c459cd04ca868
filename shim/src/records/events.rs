//! Records events. Programs make and destroy them often, and most have few at a time. So all are counted, but only
//! those beyond a number are recorded.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Up to this many events at a time are not recorded.
const FEW: u64 = 32;

/// Number of existing events.
static LIVE: AtomicU64 = AtomicU64::new(0);

/// True once an event was recorded.
static RECORDED: AtomicBool = AtomicBool::new(false);

/// Counts a new event. Returns true if it must be recorded.
pub(crate) fn made() -> bool {
    LIVE.fetch_add(1, Relaxed) >= FEW
}

/// Records an event.
pub(crate) fn created(shim: &'static Shim, call: &Call, event: u64) {
    RECORDED.store(true, Relaxed);
    allocations::made(shim, call, &Request::new(AllocKind::Event, 0), event);
}

/// True if there may be a record of an event.
pub(crate) fn any() -> bool {
    RECORDED.load(Relaxed)
}

/// Counts a destroyed event.
pub(crate) fn gone() {
    // Some were made before gpumem was loaded.
    let _ = LIVE.fetch_update(Relaxed, Relaxed, |live| live.checked_sub(1));
}
