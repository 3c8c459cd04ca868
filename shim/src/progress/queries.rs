//! Queries to the driver about the work of a whole context, which no capture may meet: an event behind all work of a
//! context invalidates a capture in any mode (measured on an H200, driver 580).

use crate::gate;
use crate::process::clock;
use crate::process::raised::Raised;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Captures that are about to begin.
static BEGINNING: AtomicU32 = AtomicU32::new(0);
/// Queries in progress.
static QUERYING: AtomicU32 = AtomicU32::new(0);

/// Queries wait for nothing; a thread that is descheduled in one is waited for this long, ns.
const LONGEST_QUERY_NS: u64 = 1_000_000_000;

/// Runs a query if nothing captures; captures that begin wait for it.
pub(crate) fn unless_capturing<R>(query: impl FnOnce() -> R) -> Option<R> {
    unless(capturing, query)
}

fn unless<R>(captures: impl FnOnce() -> bool, query: impl FnOnce() -> R) -> Option<R> {
    let _querying = Raised::new(&QUERYING);
    let free = BEGINNING.load(SeqCst) == 0 && !captures();
    free.then(query)
}

/// Whether anything in the process captures; yes, if nobody counts.
pub(crate) fn capturing() -> bool {
    gate::shim().is_none_or(|shim| shim.registry.streams.capturing() > 0)
}

/// A capture is about to begin: while the answer lives, nothing is queried. To be dropped once the capture has begun and
/// is counted, or was refused.
#[must_use = "until the capture is counted nobody may query"]
pub(crate) fn capture_begins() -> Raised<'static> {
    let beginning = Raised::new(&BEGINNING);
    let start = clock::precise_ns();
    while QUERYING.load(SeqCst) != 0 && clock::precise_ns() - start < LONGEST_QUERY_NS {
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
    fn a_query_that_unwinds_is_over() {
        assert_eq!(unless(|| true, || ()), None);
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            unless(|| false, || resume_unwind(Box::new(QUERYING.load(SeqCst))));
        }));
        assert_eq!(thrown.expect_err("it throws").downcast_ref(), Some(&1_u32), "what begins waits for it");
        assert_eq!(QUERYING.load(SeqCst), 0);
    }
}
