//! Looks at the work of a whole context, which no capture may meet: an event behind all work of a
//! context invalidates a capture in any mode (measured on an H200, driver 580).

use crate::gate;
use crate::process::clock;
use crate::process::raised::Raised;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Captures that are about to begin.
static BEGINNING: AtomicU32 = AtomicU32::new(0);
/// Looks in progress.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// Looks wait for nothing; a thread that is descheduled in one is waited for this long, ns.
const LONGEST_LOOK_NS: u64 = 1_000_000_000;

/// Runs a look if nothing captures; captures that begin wait for it.
pub fn undisturbed<R>(look: impl FnOnce() -> R) -> Option<R> {
    let _looking = Raised::new(&LOOKING);
    let free = BEGINNING.load(SeqCst) == 0 && !capturing();
    free.then(look)
}

/// Whether anything in the process captures; yes, if nobody counts.
pub fn capturing() -> bool {
    gate::shim().is_none_or(|shim| shim.registry.streams.capturing() > 0)
}

/// A capture is about to begin: while the answer lives, nothing looks. To be dropped once the capture has begun and is
/// counted, or was refused.
#[must_use = "until the capture is counted nobody may look"]
pub fn begins() -> Raised<'static> {
    let beginning = Raised::new(&BEGINNING);
    let start = clock::precise_ns();
    while LOOKING.load(SeqCst) != 0 && clock::precise_ns() - start < LONGEST_LOOK_NS {
        std::thread::yield_now();
    }
    beginning
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Else each capture that begins later waits for it in vain.
    #[test]
    fn a_look_that_unwinds_is_over() {
        let looking = Raised::new(&LOOKING);
        assert_eq!(LOOKING.load(SeqCst), 1);
        drop(looking);
        // Nobody counts captures here, so that no look is made: the guard is what is left to show.
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            let _looking = Raised::new(&LOOKING);
            resume_unwind(Box::new(7));
        }));
        assert!(thrown.is_err());
        assert_eq!(LOOKING.load(SeqCst), 0);
    }
}
