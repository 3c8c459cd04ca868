//! Queries of work: calls that ask the driver if work has completed, or leave an event behind it.
//!
//! A capture must not meet such a query: an event behind all work of a context invalidates a capture in any mode
//! (measured on an H200, driver 580), and an event on a captured stream becomes part of the capture. So each query goes
//! through a [`QueryGate`], and a thread that begins a capture, or has a stream join one, closes the gates first. There
//! is one gate for queries of whole contexts ([`unless_capturing`]), and one in each graph cache for queries of single
//! streams. A stream that is being destroyed closes only the second kind: frees of other threads still have to query
//! their contexts meanwhile.

use crate::gate;
use crate::process::clock;
use crate::process::raised::Raised;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Maximum time that closing a gate waits for a thread that is descheduled in a query, ns. A query itself waits for
/// nothing.
const LONGEST_QUERY_NS: u64 = 1_000_000_000;

/// Lets queries through until it is closed. Both sides end by themselves when they unwind. A graph cache has another such
/// gate for making execs of shared templates, which is closed while code is unloaded.
pub(crate) struct QueryGate {
    /// Number of threads that keep it closed.
    closing: AtomicU32,
    /// Number of queries in progress.
    querying: AtomicU32,
}

impl QueryGate {
    pub(crate) const fn new() -> Self {
        Self { closing: AtomicU32::new(0), querying: AtomicU32::new(0) }
    }

    /// Begins a query: a thread that closes the gate waits until the result is dropped. `None` if the gate is closed.
    pub(crate) fn begin(&self) -> Option<Raised<'_>> {
        let querying = Raised::new(&self.querying);
        (self.closing.load(SeqCst) == 0).then_some(querying)
    }

    /// Runs a query if the gate is open and `allowed` agrees. A thread that closes the gate waits until the query is
    /// made.
    pub(crate) fn query<R>(&self, allowed: impl FnOnce() -> bool, query: impl FnOnce() -> R) -> Option<R> {
        let _querying = self.begin()?;
        allowed().then(query)
    }

    /// Closes the gate and waits for the queries in progress. The gate stays closed while the result lives.
    #[must_use = "the gate opens again when the answer is dropped"]
    pub(crate) fn close(&self) -> Raised<'_> {
        let closing = Raised::new(&self.closing);
        let start = clock::precise_ns();
        while self.querying.load(SeqCst) != 0 && clock::precise_ns() - start < LONGEST_QUERY_NS {
            std::thread::yield_now();
        }
        closing
    }

    /// True if no query is in progress and no thread keeps the gate closed.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.closing.load(SeqCst) == 0 && self.querying.load(SeqCst) == 0
    }
}

/// The gate for queries of whole contexts.
static OF_CONTEXTS: QueryGate = QueryGate::new();

/// Runs a query of a whole context if nothing captures.
pub(crate) fn unless_capturing<R>(query: impl FnOnce() -> R) -> Option<R> {
    OF_CONTEXTS.query(|| !capturing(), query)
}

/// True if anything in the process captures, also if captures are not counted.
pub(crate) fn capturing() -> bool {
    gate::shim().is_none_or(|shim| shim.registry.streams.capturing() > 0)
}

/// Called before a capture begins: while the result lives, no context is queried. It is dropped once the capture is
/// counted or was refused.
#[must_use = "until the capture is counted nobody may query"]
pub(crate) fn capture_begins() -> Raised<'static> {
    OF_CONTEXTS.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    /// Otherwise each later capture would wait for a query that has ended.
    #[test]
    fn a_query_that_unwinds_has_ended() {
        let gate = QueryGate::new();
        assert_eq!(gate.query(|| false, || ()), None);
        let thrown = catch_unwind(AssertUnwindSafe(|| {
            gate.query(|| true, || resume_unwind(Box::new(gate.querying.load(SeqCst))));
        }));
        assert_eq!(thrown.expect_err("it throws").downcast_ref(), Some(&1_u32), "a capture that begins waits for it");
        assert!(gate.is_unused());
    }

    #[test]
    fn a_closed_gate_lets_nobody_through() {
        let gate = QueryGate::new();
        let closed = (gate.close(), gate.close());
        drop(closed.0);
        assert_eq!(gate.query(|| true, || ()), None);
        drop(closed.1);
        assert_eq!(gate.query(|| true, || ()), Some(()));
    }
}
