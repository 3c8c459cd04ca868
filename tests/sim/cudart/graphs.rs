//! Graphs and their nodes.

use super::core::{ask, read, write};
use super::driver::{P, Result, Rt};
use super::params::{CuKernelNode, CuMemcpy3D, KernelNode, convert, copy2, copy3, unconvert};

/// A kernel node's parameters for the driver, which takes a library's kernel in
/// another place than a function.
pub fn kernel_node(rt: Rt, p: P) -> Result<CuKernelNode> {
    let node: KernelNode = read(p)?;
    Ok(match ask::<P>(|f| rt.cuKernelGetFunction(f, node.func)) {
        Ok(_) => CuKernelNode { node: KernelNode { func: 0, ..node }, kern: node.func, ctx: 0 },
        Err(_) => CuKernelNode { node, kern: 0, ctx: 0 },
    })
}

/// A linear copy for the driver.
pub fn linear(d: P, s: P, n: usize, kind: u32) -> Result<CuMemcpy3D> {
    copy2(d, n, s, n, n, 1, kind)
}

pub fn context(rt: Rt) -> Result<P> {
    ask(|p| rt.cuCtxGetCurrent(p))
}

#[repr(C)]
struct KernelParams {
    head: [u32; 4],
    kernel: CuKernelNode,
    rest: [u64; 21],
}

/// cudaGraphNodeParams has the driver's layout except for kernels and copies,
/// whose parameters are converted; `call` gets the driver's form, whose body is
/// copied back afterwards (an alloc node's address).
pub fn with_params(rt: Rt, p: P, call: impl FnOnce(P) -> Result) -> Result {
    let kind: u32 = read(p)?;
    if kind == 0 {
        let (head, rest) = ([0; 4], [0; 21]);
        let q = KernelParams { head, kernel: kernel_node(rt, p + 16)?, rest };
        return call(&raw const q as P);
    }
    if kind != 1 {
        return call(p);
    }
    #[repr(C)]
    struct Params {
        kind: u32,
        reserved: [i32; 3],
        flags: u32,
        pad: u32,
        ctx: P,
        copy: CuMemcpy3D,
        rest: [u64; 8],
    }
    let copy = convert(rt, &read(p + 32)?)?;
    let q = Params { kind, reserved: [0; 3], flags: 0, pad: 0, ctx: context(rt)?, copy, rest: [0; 8] };
    call(&raw const q as P)
}

rt! {
    Ctx cudaGraphCreate [] (rt, out: P, flags: u32) { rt.cuGraphCreate(out, flags) }
    Ctx cudaGraphDestroy [] (rt, g: P) { rt.cuGraphDestroy(g) }
    Ctx cudaGraphClone [] (rt, out: P, g: P) { rt.cuGraphClone(out, g) }
    Ctx cudaGraphNodeFindInClone [] (rt, out: P, node: P, g: P) { rt.cuGraphNodeFindInClone(out, node, g) }
    Ctx cudaGraphNodeGetType [] (rt, node: P, out: P) { rt.cuGraphNodeGetType(node, out) }
    Ctx cudaGraphGetNodes [] (rt, g: P, out: P, n: P) { rt.cuGraphGetNodes(g, out, n) }
    Ctx cudaGraphGetRootNodes [] (rt, g: P, out: P, n: P) { rt.cuGraphGetRootNodes(g, out, n) }
    Ctx cudaGraphDestroyNode [] (rt, node: P) { rt.cuGraphDestroyNode(node) }
    Ctx cudaGraphDebugDotPrint [] (rt, g: P, path: P, flags: u32) { rt.cuGraphDebugDotPrint(g, path, flags) }
    Ctx cudaGraphAddKernelNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) {
        let k = kernel_node(rt, p)?;
        rt.cuGraphAddKernelNode(out, g, deps, n, &raw const k as P)
    }
    Ctx cudaGraphKernelNodeGetParams [] (rt, node: P, out: P) {
        let k: CuKernelNode = ask(|p| rt.cuGraphKernelNodeGetParams(node, p))?;
        write(out, k.node)
    }
    Ctx cudaGraphKernelNodeSetParams [] (rt, node: P, p: P) {
        let k = kernel_node(rt, p)?;
        rt.cuGraphKernelNodeSetParams(node, &raw const k as P)
    }
    Ctx cudaGraphKernelNodeGetAttribute [] (rt, node: P, id: u32, out: P) { rt.cuGraphKernelNodeGetAttribute(node, id, out) }
    Ctx cudaGraphKernelNodeSetAttribute [] (rt, node: P, id: u32, value: P) { rt.cuGraphKernelNodeSetAttribute(node, id, value) }
    Ctx cudaGraphAddMemcpyNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) {
        let c = copy3(rt, p)?;
        rt.cuGraphAddMemcpyNode(out, g, deps, n, &raw const c as P, context(rt)?)
    }
    Ctx cudaGraphAddMemcpyNode1D [] (rt, out: P, g: P, deps: P, n: usize, d: P, s: P, len: usize, kind: u32) {
        let c = linear(d, s, len, kind)?;
        rt.cuGraphAddMemcpyNode(out, g, deps, n, &raw const c as P, context(rt)?)
    }
    Ctx cudaGraphMemcpyNodeGetParams [] (rt, node: P, out: P) {
        let c: CuMemcpy3D = ask(|p| rt.cuGraphMemcpyNodeGetParams(node, p))?;
        write(out, unconvert(&c))
    }
    Ctx cudaGraphMemcpyNodeSetParams [] (rt, node: P, p: P) {
        let c = copy3(rt, p)?;
        rt.cuGraphMemcpyNodeSetParams(node, &raw const c as P)
    }
    Ctx cudaGraphMemcpyNodeSetParams1D [] (rt, node: P, d: P, s: P, n: usize, kind: u32) {
        let c = linear(d, s, n, kind)?;
        rt.cuGraphMemcpyNodeSetParams(node, &raw const c as P)
    }
    Ctx cudaGraphAddMemsetNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) {
        rt.cuGraphAddMemsetNode(out, g, deps, n, p, context(rt)?)
    }
    Ctx cudaGraphMemsetNodeGetParams [] (rt, node: P, out: P) { rt.cuGraphMemsetNodeGetParams(node, out) }
    Ctx cudaGraphMemsetNodeSetParams [] (rt, node: P, p: P) { rt.cuGraphMemsetNodeSetParams(node, p) }
    Ctx cudaGraphAddHostNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) { rt.cuGraphAddHostNode(out, g, deps, n, p) }
    Ctx cudaGraphHostNodeGetParams [] (rt, node: P, out: P) { rt.cuGraphHostNodeGetParams(node, out) }
    Ctx cudaGraphHostNodeSetParams [] (rt, node: P, p: P) { rt.cuGraphHostNodeSetParams(node, p) }
    Ctx cudaGraphAddChildGraphNode [] (rt, out: P, g: P, deps: P, n: usize, child: P) {
        rt.cuGraphAddChildGraphNode(out, g, deps, n, child)
    }
    Ctx cudaGraphChildGraphNodeGetGraph [] (rt, node: P, out: P) { rt.cuGraphChildGraphNodeGetGraph(node, out) }
    Ctx cudaGraphAddEmptyNode [] (rt, out: P, g: P, deps: P, n: usize) { rt.cuGraphAddEmptyNode(out, g, deps, n) }
    Ctx cudaGraphAddEventRecordNode [] (rt, out: P, g: P, deps: P, n: usize, e: P) {
        rt.cuGraphAddEventRecordNode(out, g, deps, n, e)
    }
    Ctx cudaGraphAddEventWaitNode [] (rt, out: P, g: P, deps: P, n: usize, e: P) {
        rt.cuGraphAddEventWaitNode(out, g, deps, n, e)
    }
    Ctx cudaGraphEventRecordNodeGetEvent [] (rt, node: P, out: P) { rt.cuGraphEventRecordNodeGetEvent(node, out) }
    Ctx cudaGraphEventRecordNodeSetEvent [] (rt, node: P, e: P) { rt.cuGraphEventRecordNodeSetEvent(node, e) }
    Ctx cudaGraphEventWaitNodeGetEvent [] (rt, node: P, out: P) { rt.cuGraphEventWaitNodeGetEvent(node, out) }
    Ctx cudaGraphEventWaitNodeSetEvent [] (rt, node: P, e: P) { rt.cuGraphEventWaitNodeSetEvent(node, e) }
    Ctx cudaGraphAddMemAllocNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) { rt.cuGraphAddMemAllocNode(out, g, deps, n, p) }
    Ctx cudaGraphMemAllocNodeGetParams [] (rt, node: P, out: P) { rt.cuGraphMemAllocNodeGetParams(node, out) }
    Ctx cudaGraphAddMemFreeNode [] (rt, out: P, g: P, deps: P, n: usize, p: P) { rt.cuGraphAddMemFreeNode(out, g, deps, n, p) }
    Ctx cudaGraphMemFreeNodeGetParams [] (rt, node: P, out: P) { rt.cuGraphMemFreeNodeGetParams(node, out) }
    Ctx cudaGraphNodeSetParams [] (rt, node: P, p: P) { with_params(rt, p, |q| rt.cuGraphNodeSetParams(node, q)) }
    Ctx cudaUserObjectCreate [] (rt, out: P, data: P, f: P, refs: u32, flags: u32) {
        rt.cuUserObjectCreate(out, data, f, refs, flags)
    }
    Ctx cudaUserObjectRetain [] (rt, h: P, n: u32) { rt.cuUserObjectRetain(h, n) }
    Ctx cudaUserObjectRelease [] (rt, h: P, n: u32) { rt.cuUserObjectRelease(h, n) }
    Ctx cudaGraphRetainUserObject [] (rt, g: P, h: P, n: u32, flags: u32) { rt.cuGraphRetainUserObject(g, h, n, flags) }
    Ctx cudaGraphReleaseUserObject [] (rt, g: P, h: P, n: u32) { rt.cuGraphReleaseUserObject(g, h, n) }
}
