//! Events.

use crate::abi::{H, Out};
use gpumem_sim_engine::{Error, context, event, lock};

cu! {
    Ctx cuEventCreate [cuEventCreate 2000] [] (c, out: Out<H>, flags: u32) {
        out.need()?;
        out.set(event::create(c.ctx, flags)?)
    }
    Init cuEventDestroy [cuEventDestroy_v2 4000, cuEventDestroy 2000] [] (c, h: H) {
        context::check_current(&mut lock())?;
        event::destroy(h)
    }
    Init cuEventRecord [cuEventRecord 2000] [cuEventRecord_ptsz 7000] (c, h: H, s: H) {
        event::record(h, c.stream(s)?, 0)
    }
    Init cuEventRecordWithFlags [cuEventRecordWithFlags 11010] [cuEventRecordWithFlags_ptsz 11010] (c, h: H, s: H, flags: u32) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        event::record(h, c.stream(s)?, flags)
    }
    Init cuEventQuery [cuEventQuery 2000] [] (c, h: H) { event::query(h) }
    Init cuEventSynchronize [cuEventSynchronize 2000] [] (c, h: H) { event::synchronize(h) }
    Init cuEventElapsedTime [cuEventElapsedTime_v2 12080, cuEventElapsedTime 2000] [] (c, out: Out<f32>, a: H, b: H) {
        out.set(event::elapsed(a, b)?)
    }
    Init cuStreamWaitEvent [cuStreamWaitEvent 3020] [cuStreamWaitEvent_ptsz 7000] (c, s: H, h: H, flags: u32) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        event::wait(h, c.stream(s)?, flags)
    }
}
