//! Events.

use super::driver::P;

rt! {
    Ctx cudaEventCreate [] (rt, out: P) { rt.cuEventCreate(out, 0) }
    Ctx cudaEventCreateWithFlags [] (rt, out: P, flags: u32) { rt.cuEventCreate(out, flags) }
    Ctx cudaEventDestroy [] (rt, e: P) { rt.cuEventDestroy(e) }
    Ctx cudaEventRecord [cudaEventRecord_ptsz] (rt, e: P, s: P) { rt.cuEventRecord(e, s) }
    Ctx cudaEventRecordWithFlags [cudaEventRecordWithFlags_ptsz] (rt, e: P, s: P, flags: u32) {
        rt.cuEventRecordWithFlags(e, s, flags)
    }
    Ctx cudaEventQuery [] (rt, e: P) { rt.cuEventQuery(e) }
    Ctx cudaEventSynchronize [] (rt, e: P) { rt.cuEventSynchronize(e) }
    Ctx cudaEventElapsedTime [] (rt, out: P, a: P, b: P) { rt.cuEventElapsedTime(out, a, b) }
    Ctx cudaStreamWaitEvent [cudaStreamWaitEvent_ptsz] (rt, s: P, e: P, flags: u32) { rt.cuStreamWaitEvent(s, e, flags) }
}
