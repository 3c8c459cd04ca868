//! Completion of an exec's last launch, and the ways to know it.
//!
//! A stream that does not capture may be queried, or given an event, while other streams capture. The thread has to
//! exchange its capture mode first. That disturbs no capture (`capture.graph_calls` of the conformance suite). On a
//! stream that captures, the event would become part of the capture. The legacy stream is a barrier for all blocking
//! streams, including capturing ones.

use super::library::Library;
use super::real::{self, Lease, NOWHERE, RealExec, StreamKey, key_of};
use crate::backend::graphs::{Event, StreamArg};
use crate::process::raised::Raised;
use crate::progress::activity;
use crate::progress::queries::{QueryGate, capturing};
use std::sync::atomic::Ordering::*;

/// Knowledge about the completion of launches, and the gate for queries about it.
pub(super) struct Completion {
    library: Library,
    /// Closed while a capture begins, and while a stream is destroyed.
    queries: QueryGate,
}

impl Completion {
    pub(super) const fn new(library: Library) -> Self {
        Self { library, queries: QueryGate::new() }
    }

    /// Stops all queries of streams until the guard is dropped.
    #[must_use = "nobody may look at streams meanwhile"]
    pub(super) fn close(&self) -> Raised<'_> {
        self.queries.close()
    }

    /// Returns true if no thread queries a stream and no thread stops queries.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.queries.is_unused()
    }

    /// Returns true if the completion of an exec's last launch cannot be known: there is no event after it, and this
    /// thread may not query its stream.
    pub(super) fn is_unknowable(&self, real: &RealExec, last: StreamKey) -> bool {
        last != NOWHERE && !real.marked.load(Relaxed) && real::stream_of(last).is_none()
    }

    /// Returns an event after the last launch of an exec, on any stream: the exec's own event, or one that is recorded
    /// now.
    pub(super) fn event_behind(&self, lease: &mut Lease, last: StreamKey) -> Option<Event> {
        let real = lease.real();
        if real.marked.load(Relaxed) {
            return lease.body().event.take();
        }
        let stream = real::stream_of(last)?;
        let context = real.context.load(Relaxed);
        // The stream's flags are queried only if the stream does not capture.
        let leave = || self.adds_no_wait(stream).then(|| self.mark_in(context, None, stream)).flatten();
        self.query_stream(stream, || is_on(real, last), leave).flatten()
    }

    /// Returns true if an event that is recorded now, some time after the launch, adds no wait. An event on a blocking
    /// stream waits for the later work of the legacy stream. An event on the legacy stream waits for the later work of
    /// all blocking streams. A wait for the event's stream then covers that work, too, and the work may end only when
    /// the host lets it.
    fn adds_no_wait(&self, stream: StreamArg) -> bool {
        !activity::is_outside() || !self.library.calls.waits_for_legacy(stream)
    }

    /// Records an event after the last launch of an exec that is taken from its handle, so that the end of this launch
    /// is known even if the stream is never idle again. If the launch has completed already, no event stays on the
    /// stream, because a later free of the program would have to wait for the event.
    pub(super) fn mark_last(&self, lease: &mut Lease) {
        let real = lease.real();
        let last = real.stream_key.load(Relaxed);
        if last != NOWHERE && !real.marked.load(Relaxed) && self.completed_or_marked(lease) == Some(true) {
            // A thread that destroys the stream meanwhile takes its key off the exec, too.
            let _ = real.stream_key.compare_exchange(last, NOWHERE, AcqRel, Relaxed);
        }
    }

    /// Returns true if the last launch of an exec has completed. Otherwise makes sure that there is an event after it.
    /// `None` if neither is possible.
    pub(super) fn completed_or_marked(&self, lease: &mut Lease) -> Option<bool> {
        let real = lease.real();
        let last = real.stream_key.load(Relaxed);
        if last == NOWHERE || self.has_completed(lease, last) {
            return Some(true);
        }
        if !real.marked.load(Relaxed) {
            let event = self.event_behind(lease, last)?;
            if let Some(unused) = lease.body().event.replace(event) {
                self.library.calls.drop_event(unused);
            }
            real.marked.store(true, Relaxed);
        }
        Some(false)
    }

    /// Returns true if the last launch of an exec is known to have completed.
    pub(super) fn has_completed(&self, lease: &mut Lease, stream_key: StreamKey) -> bool {
        if lease.real().marked.load(Relaxed) {
            return lease.body().event.is_some_and(|event| self.library.calls.completed(event));
        }
        let Some(stream) = real::stream_of(stream_key) else { return false };
        let real = lease.real();
        self.query_stream(stream, || is_on(real, stream_key), || self.library.calls.idle(stream)).unwrap_or(false)
    }

    /// Returns true if all launches on streams other than the last one have completed.
    pub(super) fn earlier_completed(&self, lease: &mut Lease) -> bool {
        self.forget_completed(lease);
        let body = lease.body();
        body.earlier.is_empty() && !body.unknown
    }

    /// Returns true if all launches of an exec are known to have completed.
    pub(super) fn known_completed(&self, lease: &mut Lease) -> bool {
        let stream_key = lease.real().stream_key.load(Relaxed);
        self.earlier_completed(lease) && (stream_key == NOWHERE || self.has_completed(lease, stream_key))
    }

    /// Forgets the events of earlier launches that have completed.
    pub(super) fn forget_completed(&self, lease: &mut Lease) {
        lease.body().earlier.retain(|&event| {
            let completed = self.library.calls.completed(event);
            if completed {
                self.library.calls.drop_event(event);
            }
            !completed
        });
    }

    /// Records an event after the last launch, unless a capture is going on.
    pub(super) fn mark_launch(&self, lease: &mut Lease, to: StreamArg, context: u64) -> bool {
        let body = lease.body();
        let event = body.event.take();
        let marked = self.query_stream(to, || true, || self.mark_in(context, event, to));
        body.event = marked.unwrap_or(event);
        marked.flatten().is_some()
    }

    /// Records an event after the work of a stream of this context. The event lives as long as the execs that it is
    /// recorded for. `None` for a stream of another context, which may end earlier.
    #[inline]
    pub(super) fn mark_in(&self, context: u64, event: Option<Event>, to: StreamArg) -> Option<Event> {
        let _entered = self.library.enter(context);
        self.library.calls.mark(event, to)
    }

    /// Queries a stream, or records an event on it, if `there` returns true and no capture is disturbed. A thread that
    /// begins a capture or destroys the stream waits until the query is made.
    pub(super) fn query_stream<R>(
        &self,
        stream: StreamArg,
        there: impl FnOnce() -> bool,
        look: impl FnOnce() -> R,
    ) -> Option<R> {
        self.queries.query(|| there() && self.may_ask(stream), look)
    }

    /// Returns true if a stream may be queried now, and may be given an event.
    pub(super) fn may_ask(&self, stream: StreamArg) -> bool {
        !capturing()
            || (self.library.calls.behaviour().asked_beside_captures
                && !real::is_legacy(key_of(stream))
                && !self.library.calls.captures(stream))
    }

    /// Prepares the launch of an exec on a stream. If its last launch was on another stream, remembers an event that
    /// shows when that launch completes.
    pub(super) fn leave_stream(&self, lease: &mut Lease, stream_key: StreamKey) {
        let real = lease.real();
        let before = real.stream_key.load(Relaxed);
        if before == stream_key || before == NOWHERE || self.library.calls.behaviour().outlived {
            return;
        }
        match self.event_behind(lease, before) {
            Some(event) => lease.body().earlier.push(event),
            None => lease.body().unknown = true,
        }
        // There are at most as many of these events as streams in use.
        self.forget_completed(lease);
    }
}

/// Returns true if an exec was last launched on this stream. A stream that is about to be destroyed takes its key off
/// the exec.
fn is_on(real: &RealExec, stream_key: StreamKey) -> bool {
    real.stream_key.load(SeqCst) == stream_key
}
