//! Looks at the work of a whole context, which no capture may meet: an event behind all work of a
//! context invalidates a capture in any mode (measured on an H200, driver 580).

use crate::{clock, gate};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Captures that are about to begin.
static BEGINNING: AtomicU32 = AtomicU32::new(0);
/// Looks in progress.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// Looks wait for nothing; a thread that is descheduled in one is waited for this long, ns.
const LONGEST_LOOK_NS: u64 = 1_000_000_000;

/// Runs a look if nothing captures; captures that begin wait for it.
pub fn undisturbed<R>(look: impl FnOnce() -> R) -> Option<R> {
    LOOKING.fetch_add(1, SeqCst);
    let free = BEGINNING.load(SeqCst) == 0 && !capturing();
    let result = free.then(look);
    LOOKING.fetch_sub(1, SeqCst);
    result
}

/// Whether anything in the process captures; yes, if nobody counts.
pub fn capturing() -> bool {
    gate::shim().is_none_or(|shim| shim.registry.streams.capturing() > 0)
}

/// While it lives, a capture is about to begin and nothing looks.
pub struct Beginning(());

/// A capture is about to begin. Dropped once it has begun and is counted, or was refused.
pub fn begins() -> Beginning {
    BEGINNING.fetch_add(1, SeqCst);
    let start = clock::precise_ns();
    while LOOKING.load(SeqCst) != 0 && clock::precise_ns() - start < LONGEST_LOOK_NS {
        std::thread::yield_now();
    }
    Beginning(())
}

impl Drop for Beginning {
    fn drop(&mut self) {
        BEGINNING.fetch_sub(1, SeqCst);
    }
}
