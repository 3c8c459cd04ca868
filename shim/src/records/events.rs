//! What happens to events. Programs make and destroy them often, and most have few at a time. So they are counted, and
//! those that come on top of many are recorded.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// So many events at a time are not recorded.
const FEW: u64 = 32;

/// Events that there are.
static LIVE: AtomicU64 = AtomicU64::new(0);

/// One was recorded.
static RECORDED: AtomicBool = AtomicBool::new(false);

/// Counts an event that was made. True if it is to be recorded.
pub(crate) fn made() -> bool {
    LIVE.fetch_add(1, Relaxed) >= FEW
}

/// Records an event.
pub(crate) fn created(shim: &'static Shim, call: &Call, event: u64) {
    RECORDED.store(true, Relaxed);
    allocations::made(shim, call, &Request::new(AllocKind::Event, 0), event);
}

/// Whether there may be a record of an event.
pub(crate) fn any() -> bool {
    RECORDED.load(Relaxed)
}

/// Counts an event that was destroyed.
pub(crate) fn gone() {
    // Some were made before gpumem was there.
    let _ = LIVE.fetch_update(Relaxed, Relaxed, |live| live.checked_sub(1));
}
