//! Events.

use crate::abi::{H, Out};
use gpumem_sim_engine::{Error, Result, event, lock};

/// Blocking, no timing, interprocess; the rest says which fences AMD's
/// hardware needs.
fn flags_of(flags: u32) -> u32 {
    flags & 7
}

/// An event is for the streams of its device.
pub fn record(h: H, stream: H, flags: u32) -> Result {
    let mut m = lock();
    let (of_event, of_stream) = (m.event(h)?.ctx, m.stream(stream)?.ctx);
    if m.device_of(of_event)? != m.device_of(of_stream)? {
        return Err(Error::INVALID_HANDLE);
    }
    drop(m);
    event::record(h, stream, flags)
}

hip! {
    Ctx hipEventCreate [] (c, out: Out<H>) {
        out.need()?;
        out.set(event::create(c.ctx, 0)?)
    }
    Ctx hipEventCreateWithFlags [] (c, out: Out<H>, flags: u32) {
        out.need()?;
        out.set(event::create(c.ctx, flags_of(flags))?)
    }
    Init hipEventDestroy [] (c, h: H) { event::destroy(h) }
    Init hipEventRecord [hipEventRecord_spt] (c, h: H, s: H) { record(h, c.stream(s)?, 0) }
    Init hipEventRecordWithFlags [] (c, h: H, s: H, flags: u32) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        record(h, c.stream(s)?, flags)
    }
    Init hipEventQuery [] (c, h: H) { event::query(h) }
    Init hipEventSynchronize [] (c, h: H) { event::synchronize(h) }
    Init hipEventElapsedTime [] (c, out: Out<f32>, from: H, to: H) { out.set(event::elapsed(from, to)?) }
    Init hipStreamWaitEvent [hipStreamWaitEvent_spt] (c, s: H, h: H, flags: u32) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        event::wait(h, c.stream(s)?, flags)
    }
}
