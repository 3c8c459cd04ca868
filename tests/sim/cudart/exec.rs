//! Executable graphs.

use super::driver::P;
use super::graphs::{context, kernel_node, linear, with_params};
use super::params::copy3;

rt! {
    Ctx cudaGraphInstantiateWithFlags [] (rt, out: P, g: P, flags: u64) { rt.cuGraphInstantiateWithFlags(out, g, flags) }
    Ctx cudaGraphInstantiateWithParams [cudaGraphInstantiateWithParams_ptsz] (rt, out: P, g: P, p: P) {
        rt.cuGraphInstantiateWithParams(out, g, p)
    }
    Ctx cudaGraphLaunch [cudaGraphLaunch_ptsz] (rt, h: P, s: P) { rt.cuGraphLaunch(h, s) }
    Ctx cudaGraphUpload [cudaGraphUpload_ptsz] (rt, h: P, s: P) { rt.cuGraphUpload(h, s) }
    Ctx cudaGraphExecDestroy [] (rt, h: P) { rt.cuGraphExecDestroy(h) }
    Ctx cudaGraphExecGetFlags [] (rt, h: P, out: P) { rt.cuGraphExecGetFlags(h, out) }
    Ctx cudaGraphExecKernelNodeSetParams [] (rt, h: P, node: P, p: P) {
        let k = kernel_node(rt, p)?;
        rt.cuGraphExecKernelNodeSetParams(h, node, &raw const k as P)
    }
    Ctx cudaGraphExecMemcpyNodeSetParams [] (rt, h: P, node: P, p: P) {
        let c = copy3(rt, p)?;
        rt.cuGraphExecMemcpyNodeSetParams(h, node, &raw const c as P, context(rt)?)
    }
    Ctx cudaGraphExecMemcpyNodeSetParams1D [] (rt, h: P, node: P, d: P, s: P, n: usize, kind: u32) {
        let c = linear(d, s, n, kind)?;
        rt.cuGraphExecMemcpyNodeSetParams(h, node, &raw const c as P, context(rt)?)
    }
    Ctx cudaGraphExecMemsetNodeSetParams [] (rt, h: P, node: P, p: P) {
        rt.cuGraphExecMemsetNodeSetParams(h, node, p, context(rt)?)
    }
    Ctx cudaGraphExecHostNodeSetParams [] (rt, h: P, node: P, p: P) { rt.cuGraphExecHostNodeSetParams(h, node, p) }
    Ctx cudaGraphExecChildGraphNodeSetParams [] (rt, h: P, node: P, g: P) { rt.cuGraphExecChildGraphNodeSetParams(h, node, g) }
    Ctx cudaGraphExecEventRecordNodeSetEvent [] (rt, h: P, node: P, e: P) { rt.cuGraphExecEventRecordNodeSetEvent(h, node, e) }
    Ctx cudaGraphExecEventWaitNodeSetEvent [] (rt, h: P, node: P, e: P) { rt.cuGraphExecEventWaitNodeSetEvent(h, node, e) }
    Ctx cudaGraphExecNodeSetParams [] (rt, h: P, node: P, p: P) {
        with_params(rt, p, |q| rt.cuGraphExecNodeSetParams(h, node, q))
    }
    Ctx cudaGraphNodeSetEnabled [] (rt, h: P, node: P, on: u32) { rt.cuGraphNodeSetEnabled(h, node, on) }
    Ctx cudaGraphNodeGetEnabled [] (rt, h: P, node: P, out: P) { rt.cuGraphNodeGetEnabled(h, node, out) }
}
