//! Calls that wait for the device, and calls that do not.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};
use std::ptr::null_mut;
use std::time::Duration;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("barrier.free_waits_for_null_stream", free_waits_for_null_stream),
    Check::measured("barrier.free_waits_for_blocking_stream", free_waits_for_blocking_stream),
    Check::measured("barrier.free_waits_for_non_blocking_stream", free_waits_for_non_blocking),
    Check::measured("barrier.free_waits_for_its_context_alone", free_waits_for_its_context_alone),
    Check::measured("barrier.free_waits_for_copies_by_another_context", free_waits_for_copies_by_another_context),
    Check::measured("barrier.update_does_not_wait", update_does_not_wait),
    Check::measured("barrier.exec_destroy_does_not_wait", exec_destroy_does_not_wait),
    Check::documented("barrier.free_async_does_not_wait", free_async_does_not_wait),
    Check::documented("barrier.context_sync_waits_for_all", context_sync_waits_for_all),
    Check::documented("barrier.null_stream_orders_blocking", null_stream_orders_blocking),
    Check::documented("barrier.null_stream_ignores_non_blocking", null_stream_ignores_non_blocking),
    Check::documented("barrier.wait_event_orders_streams", wait_event_orders_streams),
];

/// Long enough to see that a call waits. If a loaded machine makes this thread late, such a check passes without having
/// tested much.
const SPIN_MS: u64 = 100;

/// An event behind a spin that has just been put on `stream`.
fn busy(t: &Checker, stream: &Strm, ms: u64) -> Result<Ev, Stop> {
    let end = Ev::new()?;
    t.gpu.spin(stream, ms)?;
    end.record(stream)?;
    Ok(end)
}

fn free_waits(t: &mut Checker, stream: &Strm) -> Done {
    for bytes in [4096, 3 << 20, 256 << 20] {
        let tried = outlasted(|ms| {
            let mem = Mem::new(bytes)?;
            let end = busy(t, stream, ms)?;
            let before = end.query();
            t.eq("the free", mem.free(), 0);
            t.eq(&format!("the kernel once {bytes} bytes were freed"), end.query(), 0);
            Ok(before)
        })?;
        t.yes("the kernel ran before the free", tried);
    }
    Ok(())
}

fn free_waits_for_null_stream(t: &mut Checker) -> Done {
    free_waits(t, &Strm::NULL)
}

fn free_waits_for_blocking_stream(t: &mut Checker) -> Done {
    free_waits(t, &Strm::blocking()?)
}

fn free_waits_for_non_blocking(t: &mut Checker) -> Done {
    free_waits(t, &Strm::non_blocking()?)
}

/// Another context on the device, with a stream and an event.
struct Other {
    context: cudarc::driver::sys::CUcontext,
    kernels: gpumem_kernels::Kernels,
    stream: Strm,
    end: Ev,
}

impl Other {
    fn new(t: &Checker) -> Result<Self, Stop> {
        let context = create_context(t.gpu.device)?;
        let kernels =
            gpumem_kernels::Kernels::load().map_err(|e| Stop::Fail(format!("loading the kernels: {:?}", e.0)))?;
        let other = Self { context, kernels, stream: Strm::non_blocking()?, end: Ev::new()? };
        other.kernels.spin(other.stream.k(), Duration::from_micros(1), None)?;
        other.stream.sync()?;
        Ok(other)
    }

    /// Makes the context current and launches a long kernel, with the event behind it.
    fn spin(&self, ms: u64) -> Done {
        make_current(self.context)?;
        self.kernels.spin(self.stream.k(), Duration::from_millis(ms), None)?;
        self.end.record(&self.stream)
    }

    fn destroy(self, t: &Checker) -> Done {
        let context = self.context;
        make_current(context)?;
        drop(self);
        ok("cuCtxDestroy", cu!(cuCtxDestroy_v2(context)))?;
        make_current(t.gpu.primary)
    }
}

/// A free waits for the memory's own context only, whichever of two contexts on one device is current.
fn free_waits_for_its_context_alone(t: &mut Checker) -> Done {
    let other = Other::new(t)?;
    for bytes in [4096, 3 << 20, 256 << 20] {
        for current in [other.context, t.gpu.primary] {
            let outlasted = outlasted(|ms| {
                make_current(other.context)?;
                let theirs = Mem::new(bytes)?;
                make_current(t.gpu.primary)?;
                let ours = Mem::new(bytes)?;
                other.spin(ms)?;
                make_current(current)?;
                t.eq("the free of another context's memory", ours.free(), 0);
                let then = other.end.query();
                t.eq("the free", theirs.free(), 0);
                t.eq(&format!("the kernel once {bytes} bytes of its context were freed"), other.end.query(), 0);
                Ok(then)
            })?;
            t.yes(&format!("the kernel runs once {bytes} bytes of another context were freed"), outlasted);
        }
    }
    other.destroy(t)
}

/// A copy out of a context's memory is work of that context, on whatever stream it runs. A copy into the memory is not:
/// if the free comes first, the context of that copy fails with 700.
fn free_waits_for_copies_by_another_context(t: &mut Checker) -> Done {
    let bytes = 3 << 20;
    make_current(t.gpu.primary)?;
    let ours = Mem::new(bytes)?;
    let other = Other::new(t)?;
    let theirs = Mem::new(bytes)?;
    other.spin(SPIN_MS)?;
    ok("cuMemcpyDtoDAsync", cu!(cuMemcpyDtoDAsync_v2(theirs.p, ours.p, bytes, other.stream.s)))?;
    make_current(t.gpu.primary)?;
    t.eq("the free", ours.free(), 0);
    t.eq("the kernel before the copy", other.end.query(), 0);
    make_current(other.context)?;
    other.stream.sync()?;
    drop(theirs);
    other.destroy(t)
}

fn spin_graph(t: &Checker, stream: &Strm, ms: u64) -> Result<Graph, Stop> {
    Graph::capture(stream, || t.gpu.spin(stream, ms))
}

fn update_does_not_wait(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let outlasted = outlasted(|ms| {
        let (graph, other) = (spin_graph(t, &stream, ms)?, spin_graph(t, &stream, ms)?);
        let (exec, end) = (graph.instantiate()?, Ev::new()?);
        exec.launch(&stream)?;
        end.record(&stream)?;
        t.eq("cuGraphExecUpdate while it runs", exec.update(&other).0, 0);
        let then = end.query();
        stream.sync()?;
        Ok(then)
    })?;
    t.yes("the launch runs once it returned", outlasted);
    Ok(())
}

fn exec_destroy_does_not_wait(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let mem = t.gpu.words(1024)?;
    let outlasted = outlasted(|ms| {
        let graph = Graph::capture(&stream, || {
            t.gpu.spin(&stream, ms)?;
            Ok(t.gpu.kernels.fill(stream.k(), mem.words(), ms as u32)?)
        })?;
        let (exec, end) = (graph.instantiate()?, Ev::new()?);
        exec.launch(&stream)?;
        end.record(&stream)?;
        let raw = exec.e;
        std::mem::forget(exec);
        t.eq("cuGraphExecDestroy while it runs", cu!(cuGraphExecDestroy(raw)), 0);
        let then = end.query();
        t.eq("words it did not write", t.gpu.wrong_words(&stream, mem.words(), ms as u32)?, 0);
        Ok(then)
    })?;
    t.yes("the launch runs once it returned", outlasted);
    Ok(())
}

fn free_async_does_not_wait(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let outlasted = outlasted(|ms| {
        let mut p = 0;
        ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, 3 << 20, stream.s)))?;
        stream.sync()?;
        let end = busy(t, &stream, ms)?;
        t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)), 0);
        let then = end.query();
        stream.sync()?;
        Ok(then)
    })?;
    t.yes("the kernel runs once it returned", outlasted);
    Ok(())
}

fn context_sync_waits_for_all(t: &mut Checker) -> Done {
    let (a, b) = (Strm::blocking()?, Strm::non_blocking()?);
    let ends = [busy(t, &a, SPIN_MS)?, busy(t, &b, SPIN_MS)?];
    t.eq("cuCtxSynchronize", cu!(cuCtxSynchronize()), 0);
    t.eq("both kernels", ends.each_ref().map(Ev::query), [0, 0]);
    Ok(())
}

fn null_stream_orders_blocking(t: &mut Checker) -> Done {
    let stream = Strm::blocking()?;
    let (mem, end) = (t.gpu.words(1024)?, Ev::new()?);
    t.gpu.spin(&stream, SPIN_MS)?;
    t.gpu.kernels.fill(stream.k(), mem.words(), 5)?;
    end.record(&stream)?;
    // The copy runs on the null stream, which waits for the blocking stream.
    t.eq("what a copy on the null stream sees", mem.read(1)?[0], 5);
    t.eq("the blocking stream by then", end.query(), 0);
    Ok(())
}

fn null_stream_ignores_non_blocking(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(1024)?);
    let outlasted = outlasted(|ms| {
        let end = busy(t, &stream, ms)?;
        t.gpu.kernels.fill(Strm::NULL.k(), mem.words(), 6)?;
        ok("cuStreamSynchronize", cu!(cuStreamSynchronize(null_mut())))?;
        let then = end.query();
        stream.sync()?;
        Ok(then)
    })?;
    t.yes("the non-blocking stream runs once the null stream is done", outlasted);
    Ok(())
}

fn wait_event_orders_streams(t: &mut Checker) -> Done {
    let (a, b) = (Strm::non_blocking()?, Strm::non_blocking()?);
    let mem = t.gpu.words(1024)?;
    t.gpu.spin(&a, SPIN_MS)?;
    t.gpu.kernels.fill(a.k(), mem.words(), 3)?;
    let filled = Ev::new()?;
    filled.record(&a)?;
    ok("cuStreamWaitEvent", cu!(cuStreamWaitEvent(b.s, filled.e, 0)))?;
    t.gpu.kernels.scale(b.k(), mem.words(), mem.words(), 11)?;
    t.eq("words not 3 x 11", t.gpu.wrong_words(&b, mem.words(), 33)?, 0);
    Ok(())
}
