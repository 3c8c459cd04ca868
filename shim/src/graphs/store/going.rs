//! Ends of contexts, destroyed streams and unloaded code that execs depend on.

use super::ExecStore;
use super::make::forget_templates;
use super::needed::Need;
use crate::backend::graphs::{Code, StreamArg};
use crate::backend::source::Records;
use crate::gate;
use crate::graphs::class::Class;
use crate::graphs::handle::{Body, Handle};
use crate::graphs::real::{LOST, Lease, handle_of, key_of};
use crate::process::clock;
use crate::process::raised::Raised;
use crate::progress::device::look_in;
use crate::records;
use gpumem_abi::types::{Status, Stream};
use gpumem_wire::kinds::{NodeKind, Pinned};
use std::sync::atomic::Ordering::*;

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: the status of calls with an exec whose context is gone. The driver itself crashes
/// there (measured on an H200, driver 580).
const CONTEXT_IS_DESTROYED: Status = 709;
/// Looking at an exec does not wait for the program. A thread may be descheduled during it; a thread that unloads code
/// waits this long for it.
const LONGEST_LOOK_NS: u64 = 1_000_000_000;
/// Total time that the end of a context waits for threads that destroy or look at an object in it. On a loaded machine
/// such a thread may be descheduled. Objects that these threads still use then are abandoned.
const LONGEST_USE_NS: u64 = 5_000_000_000;

/// Asks again until there is an answer, but not after `end`. Asks at least once.
fn wait_until<R>(end: u64, answer: impl Fn() -> Option<R>) -> Option<R> {
    loop {
        match answer() {
            None if clock::precise_ns() < end => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

impl ExecStore {
    /// Prepares for the end of a context with all execs in it, or cleans up once it is `gone`.
    ///
    /// Once the context is gone the driver crashes on any object that was in it (measured on an H200, driver 580). The
    /// remaining objects are only forgotten then.
    pub(crate) fn context_going(&self, context: u64, gone: bool) {
        self.context_going_by(clock::precise_ns() + LONGEST_USE_NS, context, gone);
    }

    /// As [`Self::context_going`]. Objects that other threads still use at `end` are abandoned.
    pub(super) fn context_going_by(&self, end: u64, context: u64, gone: bool) {
        self.sources.destroy_folded(Some(context), gone);
        let _relaxed = self.library.relax();
        self.end_all_in(end, context, gone);
    }

    fn end_all_in(&self, end: u64, context: u64, gone: bool) {
        let is_in = |body: &Body| body.class.as_ref().is_some_and(|class| class.shape.context == context);
        let mut ended = Vec::new();
        for (_, handle) in self.handles.execs().all() {
            // If another thread uses a handle meanwhile, that is a race in the program.
            let Ok(mut body) = handle.body.try_lock() else { continue };
            if is_in(&body) {
                self.end_body(handle, &mut body, gone);
                ended.push(handle);
            }
        }
        for real in self.reals().into_iter().filter(|real| real.is_in(context)) {
            // Another thread may be looking at the exec, or may be destroying it and making another in its place.
            let asked = || match real.is_in(context) && !real.lost.load(Relaxed) {
                true => real.lease().map(Some),
                false => Some(None),
            };
            match wait_until(end, asked) {
                Some(Some(mut lease)) if real.is_in(context) => {
                    // The program's own call ends pending launches. Their exec has to exist until then.
                    let runs = !gone
                        && !self.library.calls.behaviour().outlived
                        && !self.completion.known_completed(&mut lease);
                    self.end_in(lease, false, gone || runs);
                }
                Some(_) => {}
                None => real.abandon(context),
            }
        }
        self.streams_of_others(context);
        wait_until(end, || (!self.sources.is_ending_graph()).then_some(()));
        // A thread that took an exec from a handle meanwhile has left the handle an event.
        for (_, handle) in self.handles.execs().all() {
            let Ok(body) = handle.body.try_lock() else { continue };
            let ended = || body.apart().ended.is_some() && ended.iter().any(|its| std::ptr::eq(*its, handle));
            if is_in(&body) || ended() {
                self.handles.drop_pending(handle, gone);
            }
        }
        self.sources.forget_context(context);
        self.library.calls.context_gone(context);
    }

    /// Ends the content of a handle whose context ends. The handle keeps nothing, until the program destroys it.
    fn end_body(&self, handle: &Handle, body: &mut Body, gone: bool) {
        handle.real.clear();
        self.need_is(Need::of(body), Need::default());
        let before = std::mem::take(body);
        body.apart_mut().ended = Some(CONTEXT_IS_DESTROYED);
        if gone {
            before.apart().template.iter().for_each(|template| template.lose_graph());
        }
        let slot = handle.slot.load(Relaxed);
        gate::record_if_started(|shim| records::handles::source_is(shim, slot, 0));
    }

    /// Handles execs of other contexts that were launched on streams of the ending context, or on streams of any third
    /// context. Those streams must not be queried any more, nor events that may belong to that context. Stream and
    /// event are left alone, since another thread may be ending their context now.
    fn streams_of_others(&self, going: u64) {
        for real in self.reals().into_iter().filter(|real| !real.is_in(going)) {
            let (stream_key, own) = (real.stream_key.load(Relaxed), real.context.load(Relaxed));
            let of_own = |stream| {
                gate::record_if_started(|shim| records::streams::is_of(shim, self.library.vendor, stream, own))
                    .flatten()
            };
            if handle_of(stream_key).and_then(of_own) != Some(false) {
                continue;
            }
            // The holder of the lease may be launching the exec elsewhere. Then stream and event are those of that
            // launch.
            let lease = real.lease();
            if real.stream_key.compare_exchange(stream_key, LOST, AcqRel, Relaxed).is_ok() {
                real.marked.store(false, Relaxed);
                let _ = lease.and_then(|mut lease| lease.body().event.take());
            }
        }
    }

    /// Prepares for the destruction of a stream. An exec whose last launch was on it needs an event now, since another
    /// stream may get the same handle. No stream is queried until the guard is dropped.
    #[must_use = "until the stream is destroyed nobody may look at it"]
    pub(crate) fn stream_going(&self, stream: Stream) -> Raised<'_> {
        let no_queries = self.completion.close();
        let _relaxed = self.library.relax();
        self.leave_stream(StreamArg::new(stream, false));
        no_queries
    }

    /// Prepares for the begin of a capture, or for a stream that joins one. No stream is queried until the guard is
    /// dropped. The caller drops it once the capture is counted or was refused, or the stream has joined.
    #[must_use = "until the stream captures nobody may look at it"]
    pub(crate) fn capture_begins(&self) -> Raised<'_> {
        self.completion.close()
    }

    fn leave_stream(&self, to: StreamArg) {
        let stream_key = key_of(to);
        for real in self.reals().into_iter().filter(|real| real.stream_key.load(Relaxed) == stream_key) {
            // The lease is taken before the stream's key is checked again. Otherwise the exec might be launched
            // elsewhere in between, and the event would be taken for one after that launch.
            let lease = real.lease();
            if real.stream_key.compare_exchange(stream_key, LOST, AcqRel, Relaxed).is_err() || real.marked.load(Relaxed)
            {
                continue;
            }
            // Without an event the exec counts as pending until it is launched again.
            if let Some(mut lease) = lease.filter(|lease| !lease.is_abandoned() && self.completion.may_ask(to)) {
                let event = lease.body().event.take();
                lease.body().event = self.completion.mark_in(real.context.load(Relaxed), event, to);
                real.marked.store(lease.body().event.is_some(), Relaxed);
            }
        }
        self.handles.rename_stream(stream_key, LOST);
    }

    /// Prepares for the unload of code. The library lets execs of that code run on (measured on an H200, driver 580).
    /// So execs that hold it stay with their handles, and no other exec can be made to hold it.
    ///
    /// Classes do not depend on code. An exec may have been made of a template that holds the code of other handles.
    /// That does no harm: the exec's nodes are set through the nodes of the template, and the library accepts those
    /// whatever code they call (measured there). But such a template is no longer instantiated.
    ///
    /// Returns the functions of the code, for [`GraphCalls::unloaded`](crate::backend::graphs::GraphCalls::unloaded).
    #[must_use = "what is known of code that stays comes back"]
    pub(crate) fn code_going(&self, code: Code) -> Vec<u64> {
        let relaxed = self.library.relax();
        let functions =
            self.library.calls.functions_of(code, &|context, look| _ = look_in(self.library.vendor, context, look));
        drop(relaxed);
        if functions.is_empty() {
            return functions;
        }
        self.sources.destroy_folded(None, false);
        // Nothing is built of this code from here on. Templates that were built before are not used while the gate is
        // closed.
        self.library.calls.forget(&functions);
        let _going = self.making.close();
        let _relaxed = self.library.relax();
        self.functions_going(&functions);
        functions
    }

    /// Notes that the code was unloaded, or that the unload failed. Handles of that code keep their content.
    pub(crate) fn code_went(&self, functions: &[u64], gone: bool) {
        self.library.calls.unloaded(functions, gone);
    }

    fn functions_going(&self, functions: &[u64]) {
        let runs = |class: &Class, records: &Records| {
            let head = |index| records.get(index).first_chunk().map(|head| u64::from_le_bytes(*head));
            let kernel = |&index: &usize| class.shape.kind(index) == NodeKind::Kernel;
            (0..records.len()).filter(kernel).any(|index| head(index).is_some_and(|head| functions.contains(&head)))
        };
        let holds = |lease: &mut Lease| {
            let body = lease.body();
            body.class.as_ref().is_some_and(|class| runs(class, &body.content))
        };
        forget_templates(self.sources.known().classes(), runs);
        let end = clock::precise_ns() + LONGEST_LOOK_NS;
        for (index, handle) in self.handles.execs().all() {
            // A handle that another thread uses meanwhile is of other code, or that is a race in the program.
            let Ok(mut body) = handle.body.try_lock() else { continue };
            let Some(real) = handle.resident().filter(|_| !body.apart().owned && body.class.is_some()) else {
                continue;
            };
            // Another thread may be looking at the exec. Or its launch may wait for as long as the program likes.
            if let Some(mut lease) = wait_until(end, || real.lease())
                && handle.real.is(real)
                && holds(&mut lease)
            {
                self.own(lease, index, handle, &mut body, Pinned::CodeGone);
            }
        }
        for real in self.reals().into_iter().filter(|real| real.class.load(Relaxed) != 0 && real.is_parked()) {
            if let Some(mut lease) = wait_until(end, || real.lease())
                && real.is_parked()
                && real.class.load(Relaxed) != 0
                && holds(&mut lease)
            {
                self.end(lease, true);
            }
        }
    }
}
