//! In what order launches of one exec run.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok};

pub(super) const CHECKS: &[Check] = &[
    Check::measured("serial.one_exec_two_streams", one_exec_two_streams),
    Check::measured("serial.update_while_running", update_while_running),
    Check::documented("serial.one_exec_one_stream", one_exec_one_stream),
];

fn milliseconds(from: &Ev, to: &Ev) -> Result<f32, Stop> {
    let mut ms = 0f32;
    ok("cuEventElapsedTime", cu!(cuEventElapsedTime_v2(&mut ms, from.e, to.e)))?;
    Ok(ms)
}

/// Two launches of one exec on two streams take as long as one after the other. Each launch takes at least as long as
/// its kernel spins. Other work on the machine only adds time, so the shortest of several tries counts.
fn one_exec_two_streams(t: &mut Checker) -> Done {
    const SPIN_MS: u64 = 50;
    let (a, b) = (Strm::non_blocking()?, Strm::non_blocking()?);
    let graph = Graph::capture(&a, || t.gpu.spin(&a, SPIN_MS))?;
    let exec = graph.instantiate()?;
    let [start, end_a, end_b] = [Ev::timed()?, Ev::timed()?, Ev::timed()?];
    exec.launch(&a)?; // the first launch pays for what comes once
    a.sync()?;
    let mut both = f32::MAX;
    for _ in 0..4 {
        start.record(&a)?;
        ok("cuStreamWaitEvent", cu!(cuStreamWaitEvent(b.s, start.e, 0)))?;
        exec.launch(&a)?;
        exec.launch(&b)?;
        end_a.record(&a)?;
        end_b.record(&b)?;
        a.sync()?;
        b.sync()?;
        both = both.min(milliseconds(&start, &end_a)?.max(milliseconds(&start, &end_b)?));
    }
    let ratio = both / SPIN_MS as f32;
    t.yes(&format!("two launches take about twice as long as one (x {ratio:.2})"), ratio > 1.8);
    Ok(())
}

fn one_exec_one_stream(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, t.gpu.words(1024)?);
    let graph = Graph::capture(&stream, || Ok(t.gpu.kernels.scale(stream.k(), mem.words(), mem.words(), 3)?))?;
    let exec = graph.instantiate()?;
    ok("cuMemsetD32Async", cu!(cuMemsetD32Async(mem.p, 1, 1024, stream.s)))?;
    for _ in 0..10 {
        exec.launch(&stream)?;
    }
    t.eq("words not 3^10", t.gpu.wrong_words(&stream, mem.words(), 59049)?, 0);
    Ok(())
}

/// An update does not change a run that has begun: that run writes the old value, and the next one the new value.
fn update_while_running(t: &mut Checker) -> Done {
    let (stream, copied) = (Strm::non_blocking()?, Ev::new()?);
    let (mem, first) = (t.gpu.words(1024)?, t.gpu.words(1024)?);
    let outlasted = outlasted(|ms| {
        let write = |value| {
            Graph::capture(&stream, || {
                t.gpu.spin(&stream, ms)?;
                Ok(t.gpu.kernels.fill(stream.k(), mem.words(), value)?)
            })
        };
        let (old, new) = (write(5)?, write(6)?);
        let exec = old.instantiate()?;
        exec.launch(&stream)?;
        t.gpu.kernels.scale(stream.k(), first.words(), mem.words(), 1)?;
        copied.record(&stream)?;
        let updated = exec.update(&new).0;
        let running = copied.query();
        exec.launch(&stream)?;
        t.eq("the update", updated, 0);
        t.eq("words of the first launch not 5", t.gpu.wrong_words(&stream, first.words(), 5)?, 0);
        t.eq("words of the second launch not 6", t.gpu.wrong_words(&stream, mem.words(), 6)?, 0);
        Ok(running)
    })?;
    t.yes("the first launch runs once the update returned", outlasted);
    Ok(())
}
