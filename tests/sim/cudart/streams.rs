//! Streams and captures.

use super::driver::P;

rt! {
    Ctx cudaStreamCreate [] (rt, out: P) { rt.cuStreamCreate(out, 0) }
    Ctx cudaStreamCreateWithFlags [] (rt, out: P, flags: u32) { rt.cuStreamCreate(out, flags) }
    Ctx cudaStreamCreateWithPriority [] (rt, out: P, flags: u32, priority: i32) {
        rt.cuStreamCreateWithPriority(out, flags, priority)
    }
    Ctx cudaStreamDestroy [] (rt, s: P) { rt.cuStreamDestroy(s) }
    Ctx cudaStreamSynchronize [cudaStreamSynchronize_ptsz] (rt, s: P) { rt.cuStreamSynchronize(s) }
    Ctx cudaStreamQuery [cudaStreamQuery_ptsz] (rt, s: P) { rt.cuStreamQuery(s) }
    Ctx cudaStreamGetFlags [cudaStreamGetFlags_ptsz] (rt, s: P, out: P) { rt.cuStreamGetFlags(s, out) }
    Ctx cudaStreamGetPriority [cudaStreamGetPriority_ptsz] (rt, s: P, out: P) { rt.cuStreamGetPriority(s, out) }
    Ctx cudaStreamGetId [cudaStreamGetId_ptsz] (rt, s: P, out: P) { rt.cuStreamGetId(s, out) }
    Ctx cudaStreamGetDevice [cudaStreamGetDevice_ptsz] (rt, s: P, out: P) { rt.cuStreamGetDevice(s, out) }
    Ctx cudaStreamGetAttribute [cudaStreamGetAttribute_ptsz] (rt, s: P, id: u32, out: P) { rt.cuStreamGetAttribute(s, id, out) }
    Ctx cudaStreamSetAttribute [cudaStreamSetAttribute_ptsz] (rt, s: P, id: u32, value: P) {
        rt.cuStreamSetAttribute(s, id, value)
    }
    Ctx cudaStreamCopyAttributes [cudaStreamCopyAttributes_ptsz] (rt, d: P, s: P) { rt.cuStreamCopyAttributes(d, s) }
    Ctx cudaStreamAddCallback [cudaStreamAddCallback_ptsz] (rt, s: P, f: P, data: P, flags: u32) {
        rt.cuStreamAddCallback(s, f, data, flags)
    }
    Ctx cudaLaunchHostFunc [cudaLaunchHostFunc_ptsz] (rt, s: P, f: P, data: P) { rt.cuLaunchHostFunc(s, f, data) }
    Ctx cudaStreamBeginCapture [cudaStreamBeginCapture_ptsz] (rt, s: P, mode: u32) { rt.cuStreamBeginCapture(s, mode) }
    Ctx cudaStreamBeginCaptureToGraph [cudaStreamBeginCaptureToGraph_ptsz]
    (rt, s: P, g: P, deps: P, edges: P, n: usize, mode: u32) {
        rt.cuStreamBeginCaptureToGraph(s, g, deps, edges, n, mode)
    }
    Ctx cudaStreamEndCapture [cudaStreamEndCapture_ptsz] (rt, s: P, out: P) { rt.cuStreamEndCapture(s, out) }
    Ctx cudaStreamIsCapturing [cudaStreamIsCapturing_ptsz] (rt, s: P, out: P) { rt.cuStreamIsCapturing(s, out) }
    Ctx cudaThreadExchangeStreamCaptureMode [] (rt, mode: P) { rt.cuThreadExchangeStreamCaptureMode(mode) }
}
