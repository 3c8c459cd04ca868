//! Whether the last launch of an exec is over, and what tells.
//!
//! A stream that does not capture may be asked, and an event be left on it, while others capture, in a thread that
//! has exchanged its capture mode: that disturbs no capture (`capture.graph_calls` of the conformance suite). On a
//! stream that captures the event would become part of the capture, and the legacy stream is a barrier for all
//! blocking ones, captured ones among them.

use super::Cache;
use super::real::{self, Lease, NOWHERE, RealExec, StreamKey, key_of};
use crate::progress::queries::capturing;
use crate::vendor::graphs::{Event, StreamArg};
use std::sync::atomic::Ordering::*;

impl Cache {
    /// Whether no event and no stream that this thread may ask covers the last launch of an exec.
    pub(super) fn is_unknowable(&self, real: &RealExec, last: StreamKey) -> bool {
        last != NOWHERE && !real.marked.load(Relaxed) && real::stream_of(last).is_none()
    }

    /// An event behind the last launch of an exec, on whatever stream that was: the one it has, or one left now.
    pub(super) fn event_behind(&self, lease: &mut Lease, last: StreamKey) -> Option<Event> {
        let real = lease.real();
        if real.marked.load(Relaxed) {
            return lease.body().event.take();
        }
        let stream = real::stream_of(last)?;
        let context = real.context.load(Relaxed);
        self.query_stream(stream, || is_on(real, last), || self.mark_in(context, None, stream)).flatten()
    }

    /// Leaves an event behind the last launch of an exec that its handle leaves, so that it can be told when that is
    /// over: the stream may go on for ever. Where the launch is over already, nothing is left on the stream, which a
    /// free that the program makes next would have to wait for.
    pub(super) fn mark_last(&self, lease: &mut Lease) {
        let real = lease.real();
        let last = real.stream_key.load(Relaxed);
        if last != NOWHERE && !real.marked.load(Relaxed) && self.told(lease) == Some(true) {
            // A stream that goes meanwhile takes its name off, too.
            let _ = real.stream_key.compare_exchange(last, NOWHERE, AcqRel, Relaxed);
        }
    }

    /// Whether the last launch of an exec is over. If not, there is an event behind it from now on. `None` where nothing
    /// tells.
    pub(super) fn told(&self, lease: &mut Lease) -> Option<bool> {
        let real = lease.real();
        let last = real.stream_key.load(Relaxed);
        if last == NOWHERE || self.has_completed(lease, last) {
            return Some(true);
        }
        if !real.marked.load(Relaxed) {
            let event = self.event_behind(lease, last)?;
            if let Some(unused) = lease.body().event.replace(event) {
                self.calls.drop_event(unused);
            }
            real.marked.store(true, Relaxed);
        }
        Some(false)
    }

    /// Whether the last launch of an exec is known to be over.
    pub(super) fn has_completed(&self, lease: &mut Lease, stream_key: StreamKey) -> bool {
        if lease.real().marked.load(Relaxed) {
            return lease.body().event.is_some_and(|event| self.calls.completed(event));
        }
        let Some(stream) = real::stream_of(stream_key) else { return false };
        let real = lease.real();
        self.query_stream(stream, || is_on(real, stream_key), || self.calls.idle(stream)).unwrap_or(false)
    }

    /// Runs a look at a stream, or leaves an event on it, if the stream is `there` and that disturbs no capture.
    /// Captures that begin, and whoever destroys the stream, wait for it.
    pub(super) fn query_stream<R>(
        &self,
        stream: StreamArg,
        there: impl FnOnce() -> bool,
        look: impl FnOnce() -> R,
    ) -> Option<R> {
        self.stream_queries.query(|| there() && self.may_ask(stream), look)
    }

    /// Whether a stream may be asked now, and be given an event.
    pub(super) fn may_ask(&self, stream: StreamArg) -> bool {
        !capturing()
            || (self.calls.ways().asked_beside_captures
                && !real::is_legacy(key_of(stream))
                && !self.calls.captures(stream))
    }
}

/// Whether that is still where an exec was launched last: a stream that is about to be destroyed takes its name off it.
fn is_on(real: &RealExec, stream_key: StreamKey) -> bool {
    real.stream_key.load(SeqCst) == stream_key
}
