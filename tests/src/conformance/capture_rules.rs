//! Rules of capture itself: beginning, ending, other streams, events, threads.

use super::capture::{Capture, INVALIDATED, MODES, UNSUPPORTED};
use super::{Check, Checker, Done, cu, fixtures::*, ok};
use cudarc::driver::sys::{
    self,
    CUstreamCaptureMode::{
        CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
    },
    CUstreamCaptureStatus as Status,
};
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::documented("capture.nothing_runs", nothing_runs),
    Check::documented("capture.begin_twice", begin_twice),
    Check::documented("capture.end_without_begin", end_without_begin),
    Check::documented("capture.status", status),
    Check::documented("capture.legacy_stream", legacy_stream),
    Check::documented("capture.implicit_dependency", implicit_dependency),
    Check::documented("capture.sync_captured_stream", sync_captured_stream),
    Check::documented("capture.query_captured_event", query_captured_event),
    Check::documented("capture.unjoined", unjoined),
    Check::documented("capture.fork_and_join", fork_and_join),
    Check::documented("capture.ended_by_other_thread", ended_by_other_thread),
];

fn nothing_runs(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(512)?);
    ok("cuMemsetD32", cu!(cuMemsetD32_v2(mem.p, 1, 512)))?;
    ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.fill(stream.k(), mem.words(), 9)?))?;
    t.eq("words changed by a captured kernel", t.gpu.wrong_words(&stream, mem.words(), 1)?, 0);
    graph.instantiate()?.launch(&stream)?;
    t.eq("words not changed by its launch", t.gpu.wrong_words(&stream, mem.words(), 9)?, 0);
    Ok(())
}

fn begin_twice(t: &mut Checker) -> Done {
    let capture = Capture::begin(t, RELAXED)?;
    let again = cu!(cuStreamBeginCapture_v2(capture.stream.s, RELAXED));
    t.eq("cuStreamBeginCapture again", again, 401);
    capture.end(t, "a second begin", 0)
}

fn end_without_begin(t: &mut Checker) -> Done {
    let (stream, mut g) = (Strm::non_blocking()?, null_mut());
    t.eq("cuStreamEndCapture", cu!(cuStreamEndCapture(stream.s, &mut g)), 401);
    Ok(())
}

fn status(t: &mut Checker) -> Done {
    let read = |stream: &Strm| {
        let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
        (cu!(cuStreamIsCapturing(stream.s, &mut status)), status)
    };
    let other = Strm::non_blocking()?;
    let capture = Capture::begin(t, RELAXED)?;
    let active = Status::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    t.eq("the capturing stream", read(&capture.stream), (0, active));
    t.eq("another stream", read(&other), (0, Status::CU_STREAM_CAPTURE_STATUS_NONE));
    cu!(cuCtxSynchronize());
    let invalid = Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    t.eq("after a forbidden call", read(&capture.stream), (0, invalid));
    capture.end(t, "a forbidden call", INVALIDATED)
}

fn legacy_stream(t: &mut Checker) -> Done {
    t.eq("capturing the null stream", cu!(cuStreamBeginCapture_v2(null_mut(), RELAXED)), 900);
    Ok(())
}

/// The null stream would have to wait for the capturing one.
fn implicit_dependency(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::blocking()?, t.gpu.words(512)?);
    begin(&stream, GLOBAL)?;
    t.gpu.kernels.fill(stream.k(), mem.words(), 5)?;
    t.eq("a kernel on the null stream", cu!(cuMemsetD32Async(mem.p, 1, 1, null_mut())), 906);
    let mut g = null_mut();
    t.eq("the capture's end", cu!(cuStreamEndCapture(stream.s, &mut g)), INVALIDATED);
    Ok(())
}

fn sync_captured_stream(t: &mut Checker) -> Done {
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        t.eq("cuStreamSynchronize", cu!(cuStreamSynchronize(capture.stream.s)), UNSUPPORTED);
        capture.end(t, "cuStreamSynchronize of the captured stream", INVALIDATED)?;
    }
    Ok(())
}

fn query_captured_event(t: &mut Checker) -> Done {
    let event = Ev::new()?;
    let capture = Capture::begin(t, RELAXED)?;
    event.record(&capture.stream)?;
    t.eq("cuEventQuery of a captured event", event.query(), 907);
    capture.end(t, "cuEventQuery of a captured event", INVALIDATED)
}

fn unjoined(t: &mut Checker) -> Done {
    let (side, event) = (Strm::non_blocking()?, Ev::new()?);
    let capture = Capture::begin(t, RELAXED)?;
    event.record(&capture.stream)?;
    ok("cuStreamWaitEvent", cu!(cuStreamWaitEvent(side.s, event.e, 0)))?;
    t.gpu.kernels.fill(side.k(), capture.mem.words().slice(0..1)?, 5)?;
    capture.end(t, "leaving a forked stream unjoined", 904)
}

fn fork_and_join(t: &mut Checker) -> Done {
    let (main, side) = (Strm::non_blocking()?, Strm::non_blocking()?);
    let (forked, joined) = (Ev::new()?, Ev::new()?);
    let (a, b) = (t.gpu.words(512)?, t.gpu.words(512)?);
    let graph = Graph::capture(&main, || {
        t.gpu.kernels.fill(main.k(), a.words(), 4)?;
        forked.record(&main)?;
        ok("wait", cu!(cuStreamWaitEvent(side.s, forked.e, 0)))?;
        t.gpu.kernels.scale(side.k(), b.words(), a.words(), 10)?;
        joined.record(&side)?;
        ok("wait", cu!(cuStreamWaitEvent(main.s, joined.e, 0)))?;
        Ok(t.gpu.kernels.scale(main.k(), b.words(), b.words(), 2)?)
    })?;
    t.eq("nodes: three kernels, no events", graph.nodes()?.len(), 3);
    graph.instantiate()?.launch(&main)?;
    t.eq("words not 4 x 10 x 2", t.gpu.wrong_words(&main, b.words(), 80)?, 0);
    Ok(())
}

fn ended_by_other_thread(t: &mut Checker) -> Done {
    for (mode, want) in [(GLOBAL, 908), (THREAD_LOCAL, 908), (RELAXED, 0)] {
        let capture = Capture::begin(t, mode)?;
        let (primary, stream) = (t.gpu.primary as usize, capture.stream.s as usize);
        let thread = std::thread::spawn(move || {
            let mut g: sys::CUgraph = null_mut();
            cu!(cuCtxSetCurrent(primary as *mut _));
            let status = cu!(cuStreamEndCapture(stream as *mut _, &mut g));
            if status == 0 {
                cu!(cuGraphDestroy(g));
            }
            status
        });
        let status = thread.join().unwrap_or(u32::MAX);
        t.eq(&format!("cuStreamEndCapture on another thread in {mode:?}"), status, want);
        if status != 0 {
            // Only that the stream is left without a capture.
            let mut g = null_mut();
            if cu!(cuStreamEndCapture(capture.stream.s, &mut g)) == 0 {
                cu!(cuGraphDestroy(g));
            }
        }
    }
    Ok(())
}
