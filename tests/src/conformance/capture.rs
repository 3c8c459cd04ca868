//! Which calls are allowed while a stream captures, and what they do to the capture.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok, skip};
use cudarc::driver::sys::CUstreamCaptureMode::{
    self as Mode, CU_STREAM_CAPTURE_MODE_GLOBAL as GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
};
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("capture.alloc_same_thread", alloc_same_thread),
    Check::measured("capture.alloc_other_thread", alloc_other_thread),
    Check::measured("capture.free_same_thread", free_same_thread),
    Check::measured("capture.context_sync", context_sync),
    Check::measured("capture.sync_other_stream", sync_other_stream),
    Check::measured("capture.alloc_async_other_stream", alloc_async_other_stream),
    Check::measured("capture.harmless_calls", harmless_calls),
    Check::measured("capture.stream_flags", stream_flags),
    Check::measured("capture.exchanged_mode", exchanged_mode),
    Check::measured("capture.record_event_of_context", record_event_of_context),
];

pub(super) const MODES: [Mode; 3] = [GLOBAL, THREAD_LOCAL, RELAXED];
pub(super) const UNSUPPORTED: u32 = 900;
pub(super) const INVALIDATED: u32 = 901;

/// An open capture with one kernel in it.
pub(super) struct Capture {
    pub(super) stream: Strm,
    pub(super) mem: Mem,
    mode: Mode,
}

impl Capture {
    pub(super) fn begin(t: &Checker, mode: Mode) -> Result<Capture, Stop> {
        let capture = Capture { stream: Strm::non_blocking()?, mem: t.gpu.words(512)?, mode };
        begin(&capture.stream, mode)?;
        t.gpu.kernels.fill(capture.stream.k(), capture.mem.words(), 5)?;
        Ok(capture)
    }

    /// Ends the capture. With `want` 0 the graph must work, otherwise there must be no graph.
    pub(super) fn end(self, t: &mut Checker, after: &str, want: u32) -> Done {
        let mut g = null_mut();
        let status = cu!(cuStreamEndCapture(self.stream.s, &mut g));
        t.eq(&format!("ending the {:?} capture after {after}", self.mode), status, want);
        if status != 0 {
            t.yes("no graph comes of it", g.is_null());
            return Ok(());
        }
        let graph = Graph { g };
        let exec = graph.instantiate()?;
        ok("cuMemsetD32", cu!(cuMemsetD32_v2(self.mem.p, 0, 512)))?;
        ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
        exec.launch(&self.stream)?;
        let wrong = t.gpu.wrong_words(&self.stream, self.mem.words(), 5)?;
        t.eq(&format!("words that the graph of {:?} missed", self.mode), wrong, 0);
        Ok(())
    }
}

/// The status of a call that is forbidden in strict modes, and the status of the capture's end.
fn strict(mode: Mode) -> (u32, u32) {
    if mode == RELAXED { (0, 0) } else { (UNSUPPORTED, INVALIDATED) }
}

fn alloc_same_thread(t: &mut Checker) -> Done {
    for mode in MODES {
        let (want, end) = strict(mode);
        let capture = Capture::begin(t, mode)?;
        let mut p = 42;
        let status = cu!(cuMemAlloc_v2(&mut p, 4096));
        t.eq(&format!("cuMemAlloc in {mode:?}"), status, want);
        t.yes("its out-parameter is written, refused or not", p != 42);
        capture.end(t, "cuMemAlloc", end)?;
        if status == 0 {
            cu!(cuMemFree_v2(p));
        }
    }
    Ok(())
}

fn alloc_other_thread(t: &mut Checker) -> Done {
    for (mode, want) in [(GLOBAL, UNSUPPORTED), (THREAD_LOCAL, 0), (RELAXED, 0)] {
        let capture = Capture::begin(t, mode)?;
        let primary = t.gpu.primary as usize;
        let thread = std::thread::spawn(move || {
            let mut p = 0;
            cu!(cuCtxSetCurrent(primary as *mut _));
            (cu!(cuMemAlloc_v2(&mut p, 4096)), p)
        });
        let (status, p) = thread.join().unwrap_or((u32::MAX, 0));
        t.eq(&format!("cuMemAlloc on another thread in {mode:?}"), status, want);
        let end = if want == 0 { 0 } else { INVALIDATED };
        capture.end(t, "cuMemAlloc on another thread", end)?;
        if status == 0 {
            cu!(cuMemFree_v2(p));
        }
    }
    Ok(())
}

fn free_same_thread(t: &mut Checker) -> Done {
    for mode in MODES {
        let (want, end) = strict(mode);
        let mem = Mem::new(4096)?;
        let capture = Capture::begin(t, mode)?;
        let (p, status) = (mem.p, mem.free());
        t.eq(&format!("cuMemFree in {mode:?}"), status, want);
        capture.end(t, "cuMemFree", end)?;
        if status != 0 {
            t.eq("the refused free, once more", cu!(cuMemFree_v2(p)), 0);
        }
    }
    Ok(())
}

fn context_sync(t: &mut Checker) -> Done {
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        t.eq(&format!("cuCtxSynchronize in {mode:?}"), cu!(cuCtxSynchronize()), UNSUPPORTED);
        capture.end(t, "cuCtxSynchronize", INVALIDATED)?;
    }
    Ok(())
}

fn sync_other_stream(t: &mut Checker) -> Done {
    let other = Strm::non_blocking()?;
    for mode in MODES {
        let (want, end) = strict(mode);
        let capture = Capture::begin(t, mode)?;
        let status = cu!(cuStreamSynchronize(other.s));
        t.eq(&format!("cuStreamSynchronize of another stream in {mode:?}"), status, want);
        capture.end(t, "cuStreamSynchronize of another stream", end)?;
    }
    Ok(())
}

fn alloc_async_other_stream(t: &mut Checker) -> Done {
    let other = Strm::non_blocking()?;
    for mode in MODES {
        let (want, end) = strict(mode);
        let capture = Capture::begin(t, mode)?;
        let mut p = 0;
        let status = cu!(cuMemAllocAsync(&mut p, 4096, other.s));
        t.eq(&format!("cuMemAllocAsync on another stream in {mode:?}"), status, want);
        capture.end(t, "cuMemAllocAsync on another stream", end)?;
        if status == 0 {
            ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, other.s)))?;
        }
    }
    Ok(())
}

fn harmless_calls(t: &mut Checker) -> Done {
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        let (mut free, mut total) = (0, 0);
        t.eq("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total)), 0);
        let mut event = null_mut();
        t.eq("cuEventCreate", cu!(cuEventCreate(&mut event, 2)), 0);
        t.eq("cuEventDestroy", cu!(cuEventDestroy_v2(event)), 0);
        capture.end(t, "cuMemGetInfo and cuEventCreate", 0)?;
    }
    Ok(())
}

/// A capturing stream tells its priority and its context. To be asked for its flags ends the capture.
fn stream_flags(t: &mut Checker) -> Done {
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        let (mut priority, mut context) = (0, null_mut());
        t.eq("cuStreamGetPriority", cu!(cuStreamGetPriority(capture.stream.s, &mut priority)), 0);
        t.eq("cuStreamGetCtx", cu!(cuStreamGetCtx(capture.stream.s, &mut context)), 0);
        capture.end(t, "cuStreamGetPriority and cuStreamGetCtx", 0)?;
        let capture = Capture::begin(t, mode)?;
        let mut flags = 0;
        t.eq("cuStreamGetFlags", cu!(cuStreamGetFlags(capture.stream.s, &mut flags)), UNSUPPORTED);
        capture.end(t, "cuStreamGetFlags", INVALIDATED)?;
    }
    Ok(())
}

fn exchanged_mode(t: &mut Checker) -> Done {
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        let mut thread_mode = RELAXED;
        ok("exchange", cu!(cuThreadExchangeStreamCaptureMode(&mut thread_mode)))?;
        t.eq("the thread's mode before", thread_mode, GLOBAL);
        let mut p = 0;
        t.eq("cuMemAlloc between exchanges", cu!(cuMemAlloc_v2(&mut p, 4096)), 0);
        t.eq("cuMemFree between exchanges", cu!(cuMemFree_v2(p)), 0);
        ok("exchange back", cu!(cuThreadExchangeStreamCaptureMode(&mut thread_mode)))?;
        t.eq("the thread's mode between", thread_mode, RELAXED);
        capture.end(t, "allocations between exchanges", 0)?;
    }
    Ok(())
}

fn record_event_of_context(t: &mut Checker) -> Done {
    let mut version = 0;
    ok("cuDriverGetVersion", cu!(cuDriverGetVersion(&mut version)))?;
    if version < 12050 {
        return skip(format!("cuCtxRecordEvent came with 12.5, the driver has {version}"));
    }
    let event = Ev::new()?;
    t.eq("cuCtxRecordEvent", cu!(cuCtxRecordEvent(t.gpu.primary, event.e)), 0);
    for mode in MODES {
        let capture = Capture::begin(t, mode)?;
        let status = cu!(cuCtxRecordEvent(t.gpu.primary, event.e));
        t.eq(&format!("cuCtxRecordEvent in {mode:?}"), status, UNSUPPORTED);
        capture.end(t, "cuCtxRecordEvent", INVALIDATED)?;
    }
    Ok(())
}
