//! Whether the last launch of an exec has completed, and how that is known.
//!
//! A stream that does not capture may be queried, and an event be left on it, while other streams capture, by a thread
//! that has exchanged its capture mode. That disturbs no capture (`capture.graph_calls` of the conformance suite). On a
//! stream that captures, the event would become part of the capture. The legacy stream is a barrier for all blocking
//! streams, captured ones among them.

use super::library::Library;
use super::real::{self, Lease, NOWHERE, RealExec, StreamKey, key_of};
use crate::process::raised::Raised;
use crate::progress::activity;
use crate::progress::queries::{QueryGate, capturing};
use crate::vendor::graphs::{Event, StreamArg};
use std::sync::atomic::Ordering::*;

/// What is known of the completion of launches, and the gate that questions about it pass.
pub(super) struct Completion {
    library: Library,
    /// Closed while a capture begins, and while a stream is destroyed.
    queries: QueryGate,
}

impl Completion {
    pub(super) const fn new(library: Library) -> Self {
        Self { library, queries: QueryGate::new() }
    }

    /// While the answer lives, no stream is queried.
    #[must_use = "nobody may look at streams meanwhile"]
    pub(super) fn close(&self) -> Raised<'_> {
        self.queries.close()
    }

    /// Whether nobody queries a stream and nobody keeps others from it.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.queries.is_unused()
    }

    /// Whether it cannot be known when the last launch of an exec completes: there is no event behind it, and this
    /// thread may not query its stream.
    pub(super) fn is_unknowable(&self, real: &RealExec, last: StreamKey) -> bool {
        last != NOWHERE && !real.marked.load(Relaxed) && real::stream_of(last).is_none()
    }

    /// An event behind the last launch of an exec, on whatever stream that was: the event that the exec has, or one
    /// that is left now.
    pub(super) fn event_behind(&self, lease: &mut Lease, last: StreamKey) -> Option<Event> {
        let real = lease.real();
        if real.marked.load(Relaxed) {
            return lease.body().event.take();
        }
        let stream = real::stream_of(last)?;
        let context = real.context.load(Relaxed);
        // The stream's flags are asked for only where the stream does not capture.
        let leave = || self.adds_no_wait(stream).then(|| self.mark_in(context, None, stream)).flatten();
        self.query_stream(stream, || is_on(real, last), leave).flatten()
    }

    /// Whether an event that is left now, some time after the launch, makes nothing wait that would not have waited
    /// without the event. An event on a blocking stream waits for what the legacy stream was given since. An event on the
    /// legacy stream waits for what all blocking streams were given since. Who waits for the event's stream then waits for
    /// that work, too, and it may end only when the host lets it.
    fn adds_no_wait(&self, stream: StreamArg) -> bool {
        !activity::is_outside() || !self.library.calls.waits_for_legacy(stream)
    }

    /// Leaves an event behind the last launch of an exec that is taken from its handle, so that the end of this launch
    /// can be told even if the stream is never idle again. If the launch has completed already, no event is left on the
    /// stream, because a later free of the program would have to wait for the event.
    pub(super) fn mark_last(&self, lease: &mut Lease) {
        let real = lease.real();
        let last = real.stream_key.load(Relaxed);
        if last != NOWHERE && !real.marked.load(Relaxed) && self.completed_or_marked(lease) == Some(true) {
            // A stream that is destroyed meanwhile takes its key off the exec, too.
            let _ = real.stream_key.compare_exchange(last, NOWHERE, AcqRel, Relaxed);
        }
    }

    /// Whether the last launch of an exec has completed. If it has not, there is an event behind it from now on. `None`
    /// where neither can be done.
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

    /// Whether the last launch of an exec is known to have completed.
    pub(super) fn has_completed(&self, lease: &mut Lease, stream_key: StreamKey) -> bool {
        if lease.real().marked.load(Relaxed) {
            return lease.body().event.is_some_and(|event| self.library.calls.completed(event));
        }
        let Some(stream) = real::stream_of(stream_key) else { return false };
        let real = lease.real();
        self.query_stream(stream, || is_on(real, stream_key), || self.library.calls.idle(stream)).unwrap_or(false)
    }

    /// Whether all launches on streams other than the last one have completed.
    pub(super) fn earlier_completed(&self, lease: &mut Lease) -> bool {
        self.forget_completed(lease);
        let body = lease.body();
        body.earlier.is_empty() && !body.unknown
    }

    /// Whether all launches of an exec are known to have completed.
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

    /// Leaves an event behind the last launch, unless something captures.
    pub(super) fn mark_launch(&self, lease: &mut Lease, to: StreamArg, context: u64) -> bool {
        let body = lease.body();
        let event = body.event.take();
        match self.query_stream(to, || true, || self.mark_in(context, event, to)) {
            Some(marked) => {
                body.event = marked;
                marked.is_some()
            }
            None => {
                body.event = event;
                false
            }
        }
    }

    /// An event behind the work of a stream of this context. The event lives as long as the execs that it is left for.
    /// `None` for a stream of another context, which may end before.
    #[inline]
    pub(super) fn mark_in(&self, context: u64, event: Option<Event>, to: StreamArg) -> Option<Event> {
        let _entered = self.library.enter(context);
        self.library.calls.mark(event, to)
    }

    /// Queries a stream, or leaves an event on it, if `there` agrees and that disturbs no capture. Whoever begins a
    /// capture or destroys the stream waits until the query is made.
    pub(super) fn query_stream<R>(
        &self,
        stream: StreamArg,
        there: impl FnOnce() -> bool,
        look: impl FnOnce() -> R,
    ) -> Option<R> {
        self.queries.query(|| there() && self.may_ask(stream), look)
    }

    /// Whether a stream may be queried now, and be given an event.
    pub(super) fn may_ask(&self, stream: StreamArg) -> bool {
        !capturing()
            || (self.library.calls.behaviour().asked_beside_captures
                && !real::is_legacy(key_of(stream))
                && !self.library.calls.captures(stream))
    }

    /// An exec was launched on a stream. If its last launch was on another stream, remembers an event that tells when
    /// that launch completes.
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
        // There are not more of these events than streams in use.
        self.forget_completed(lease);
    }
}

/// Whether an exec was launched last on this stream. A stream that is about to be destroyed takes its key off the exec.
fn is_on(real: &RealExec, stream_key: StreamKey) -> bool {
    real.stream_key.load(SeqCst) == stream_key
}
