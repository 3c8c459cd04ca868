//! Memory of cuMemAlloc that is freed on a stream: how it comes back beside running work, and beside captures.

use super::capture::{Capture, MODES};
use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("give_back.waits_for_no_work", waits_for_no_work),
    Check::measured("give_back.there_once_its_stream_was_waited_for", there_once_waited_for),
    Check::measured("give_back.beside_captures", beside_captures),
];

const BYTES: usize = 64 << 20;

/// Memory that the check frees itself.
fn block() -> Result<u64, Stop> {
    let mem = Mem::new(BYTES)?;
    let p = mem.p;
    std::mem::forget(mem);
    Ok(p)
}

fn free_bytes() -> Result<usize, Stop> {
    let (mut free, mut total) = (0, 0);
    ok("cuMemGetInfo", cu!(cuMemGetInfo_v2(&mut free, &mut total)))?;
    Ok(free)
}

/// A kernel on another stream of the context, of either kind, is not waited for.
fn waits_for_no_work(t: &mut Checker) -> Done {
    let ours = Strm::non_blocking()?;
    for other in [Strm::non_blocking()?, Strm::blocking()?] {
        let outlasted = outlasted(|ms| {
            let (p, end) = (block()?, Ev::new()?);
            ok("cuCtxSynchronize", cu!(cuCtxSynchronize()))?;
            t.gpu.spin(&other, ms)?;
            end.record(&other)?;
            t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(p, ours.s)), 0);
            t.eq("cuStreamSynchronize", cu!(cuStreamSynchronize(ours.s)), 0);
            let then = end.query();
            t.eq("cuMemFree of what is freed", cu!(cuMemFree_v2(p)), 1);
            other.sync()?;
            Ok(then)
        })?;
        t.yes("the kernel runs by then", outlasted);
    }
    Ok(())
}

/// Memory is not back when the stream was only queried. Another process may allocate and free meanwhile, so one right
/// reading of several is enough.
fn there_once_waited_for(t: &mut Checker) -> Done {
    let (ours, mut seen) = (Strm::non_blocking()?, Vec::new());
    for _ in 0..5 {
        let p = block()?;
        let before = free_bytes()?;
        t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(p, ours.s)), 0);
        while cu!(cuStreamQuery(ours.s)) == RUNNING {
            std::thread::yield_now();
        }
        let asked = free_bytes()? >= before + BYTES / 2;
        ours.sync()?;
        seen.push((asked, free_bytes()? >= before + BYTES / 2));
    }
    let both = format!("the memory is there once its stream was waited for, and not before ({seen:?})");
    t.yes(&both, seen.contains(&(false, true)));
    Ok(())
}

/// The thread's capture mode is exchanged, and the stream is made meanwhile, on this thread and on another.
fn beside_captures(t: &mut Checker) -> Done {
    let give_back = |p: u64, context: usize| {
        let mut mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let (mut stream, mut answers) = (std::ptr::null_mut(), Vec::new());
        answers.push(cu!(cuCtxSetCurrent(context as *mut _)));
        answers.push(cu!(cuThreadExchangeStreamCaptureMode(&mut mode)));
        answers.push(cu!(cuStreamCreate(&mut stream, 1)));
        answers.push(cu!(cuMemFreeAsync(p, stream)));
        answers.push(cu!(cuStreamSynchronize(stream)));
        answers.push(cu!(cuStreamDestroy_v2(stream)));
        answers.push(cu!(cuThreadExchangeStreamCaptureMode(&mut mode)));
        answers
    };
    let context = t.gpu.primary as usize;
    for mode in MODES {
        for elsewhere in [false, true] {
            let p = block()?;
            let capture = Capture::begin(t, mode)?;
            let answers = match elsewhere {
                true => std::thread::spawn(move || give_back(p, context)).join().unwrap_or_default(),
                false => give_back(p, context),
            };
            t.eq(&format!("giving back in {mode:?}, on another thread: {elsewhere}"), answers, vec![0; 7]);
            capture.end(t, "giving back", 0)?;
        }
    }
    Ok(())
}
