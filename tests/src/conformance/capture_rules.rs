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
    Check::measured("capture.graph_calls", graph_calls),
    Check::measured("capture.execs_made_and_destroyed", execs_made_and_destroyed),
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
            // This only leaves the stream without a capture.
            let mut g = null_mut();
            if cu!(cuStreamEndCapture(capture.stream.s, &mut g)) == 0 {
                cu!(cuGraphDestroy(g));
            }
        }
    }
    Ok(())
}

/// Reading, building, setting and updating other graphs disturbs no capture.
fn graph_calls(t: &mut Checker) -> Done {
    use super::graph::{add_fill, with_fill};
    let (mem, graph) = (t.gpu.words(512)?, super::fixtures::Graph::new()?);
    let node = add_fill(t, &graph, &[], &mem, 1)?;
    let (exec, event, side) = (graph.instantiate()?, Ev::new()?, Strm::non_blocking()?);
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        let (mut n, mut kind, mut clone, mut list) =
            (0, CHILD, null_mut(), super::graph::kernel_params(t, FILL, &mut []));
        let got = [
            with_fill(t, &mem, 2, |p| cu!(cuGraphExecKernelNodeSetParams_v2(exec.e, node, p))),
            cu!(cuGraphNodeSetEnabled(exec.e, node, 1)),
            cu!(cuGraphKernelNodeGetParams_v2(node, &mut list)),
            cu!(cuGraphGetNodes(graph.g, null_mut(), &mut n)),
            cu!(cuGraphNodeGetType(node, &mut kind)),
            cu!(cuFuncGetParamInfo(t.gpu.kernels.function(FILL), 0, &mut 0, &mut 0)),
            cu!(cuGraphClone(&mut clone, graph.g)),
            cu!(cuGraphDestroy(clone)),
            exec.update(&graph).0,
            cu!(cuGraphLaunch(exec.e, side.s)),
            cu!(cuEventRecord(event.e, side.s)),
            cu!(cuStreamWaitEvent(side.s, event.e, 0)),
        ];
        let other = super::fixtures::Graph::new()?;
        add_fill(t, &other, &[], &mem, 3)?;
        drop(other);
        t.eq(&format!("calls in {mode:?}"), got, [0; 12]);
        capture.end(t, "graph calls", 0)?;
    }
    Ok(())
}

const FILL: gpumem_kernels::Kernel = gpumem_kernels::Kernel::Fill;
const CHILD: sys::CUgraphNodeType = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH;

/// Execs are made and destroyed, and events and streams queried, only in relaxed
/// mode, or where the thread has exchanged its mode for that.
fn execs_made_and_destroyed(t: &mut Checker) -> Done {
    let mem = t.gpu.words(512)?;
    let (graph, event, side) = (super::fixtures::Graph::new()?, Ev::new()?, Strm::non_blocking()?);
    super::graph::add_fill(t, &graph, &[], &mem, 1)?;
    event.record(&side)?;
    for mode in MODES {
        let (want, end) = if mode == RELAXED { (0, 0) } else { (UNSUPPORTED, INVALIDATED) };
        let mut e = null_mut();
        let capture = Capture::begin(t, mode)?;
        t.eq(&format!("instantiate in {mode:?}"), cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0)), want);
        capture.end(t, "instantiate", end)?;
        if e.is_null() {
            ok("instantiate", cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0)))?;
        }
        let capture = Capture::begin(t, mode)?;
        let destroyed = cu!(cuGraphExecDestroy(e));
        t.eq(&format!("destroy in {mode:?}"), destroyed, want);
        capture.end(t, "destroy", end)?;
        if destroyed != 0 {
            cu!(cuGraphExecDestroy(e));
        }
        let capture = Capture::begin(t, mode)?;
        let mut own = RELAXED;
        ok("exchange", cu!(cuThreadExchangeStreamCaptureMode(&mut own)))?;
        let got = [
            cu!(cuGraphInstantiateWithFlags(&mut e, graph.g, 0)),
            cu!(cuGraphExecDestroy(e)),
            event.query(),
            cu!(cuStreamQuery(side.s)),
        ];
        ok("exchange", cu!(cuThreadExchangeStreamCaptureMode(&mut own)))?;
        t.eq(&format!("with the mode exchanged, in {mode:?}"), got, [0; 4]);
        capture.end(t, "calls with the mode exchanged", 0)?;
    }
    Ok(())
}
