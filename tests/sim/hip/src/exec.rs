//! Executable graphs.

use crate::abi::{H, In, Out, answer};
use crate::nodes::{any_kind, drv_memcpy_kind, kernel_kind, memcpy_1d, memcpy_kind, memset_kind};
use crate::reentry;
use crate::structs::{
    DrvMemcpy3D, HostNode, InstantiateParams, KernelNode, MemOpNode, Memcpy3D, MemsetNode, NodeParams,
};
use gpumem_sim_engine::exec::ExecNode;
use gpumem_sim_engine::node::Kind;
use gpumem_sim_engine::params::{event_kind, host_kind, mem_ops_kind};
use gpumem_sim_engine::queue::Fence;
use gpumem_sim_engine::update::Refusal;
use gpumem_sim_engine::{Error, Result, exec, lock, report, update};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Launches of each exec that may still run.
static RUNNING: Mutex<BTreeMap<H, Vec<Fence>>> = Mutex::new(BTreeMap::new());

/// The parameters of kernels and memsets that each exec has in memory; memsets are kernels too. Since ROCm 6.2 each update
/// writes them to new memory, and all of it goes with the exec (clr 6.4, hip_graph_internal.cpp, `UpdateAQLPacket`,
/// `GraphKernelArgManager::AllocKernArg`; ROCm/rocm-systems#10713).
static ARGUMENTS: Mutex<BTreeMap<H, u64>> = Mutex::new(BTreeMap::new());

/// An exec was instantiated or updated.
fn writes_arguments(h: H) -> Result {
    let with = |n: &&ExecNode| matches!(n.step.kind, Kind::Kernel(_) | Kind::Memset(_));
    let more = lock().exec(h)?.body.nodes.iter().filter(with).count() as u64;
    *ARGUMENTS.lock().unwrap_or_else(PoisonError::into_inner).entry(h).or_default() += more;
    Ok(())
}

/// For tests: the number of such parameters of all execs.
pub fn arguments() -> u64 {
    ARGUMENTS.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
}

/// Unlike CUDA's, launches of one exec are ordered by their streams alone. One on
/// another device than that of the instantiate is slower.
fn launch(h: H, s: H) -> Result {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut m = lock();
    let ctx = m.stream(s)?.ctx;
    let device = m.device_of(ctx)?;
    let exec = m.exec(h)?;
    exec.last = None;
    let elsewhere = exec.device != device;
    drop(m);
    report::count("graph_launches_elsewhere", elsewhere.into());
    exec::launch(h, s)?;
    let last = lock().exec(h)?.last.clone();
    let fences = running.entry(h).or_default();
    fences.retain(|f| !f.reached());
    fences.extend(last);
    Ok(())
}

/// Before ROCm 6, destroying an exec also frees the memory that its pending launches use.
fn destroy(h: H) -> Result {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let fences = running.get(&h).map_or(&[][..], Vec::as_slice);
    if fences.iter().any(|f| !f.reached()) {
        report::violation("exec_in_use", "hipGraphExecDestroy of an exec that runs");
    }
    exec::destroy(h)?;
    running.remove(&h);
    ARGUMENTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&h);
    Ok(())
}

/// HIP's number of a refusal. HIP has no number for attributes.
fn number(why: Refusal) -> u32 {
    match why {
        Refusal::Attributes => Refusal::NotSupported as u32,
        other => other as u32,
    }
}

/// No graph here can have external semaphores.
fn no_such_node(h: H) -> Result {
    lock().exec(h)?;
    Err(Error::INVALID_VALUE)
}

/// hipErrorInvalidSymbol: code objects are loaded as modules here, and none
/// registers a variable of the program.
fn no_such_symbol(h: H) -> Result {
    lock().exec(h)?;
    Err(Error(13))
}

hip! {
    Ctx hipGraphInstantiateWithFlags [] (c, out: Out<H>, g: H, flags: u64) {
        out.need()?;
        let h = exec::instantiate(c.ctx, g, flags)?;
        lock().exec(h)?.flags |= exec::ANY_COPY;
        writes_arguments(h)?;
        out.set(h)
    }
    Ctx hipGraphInstantiate [] (c, out: Out<H>, g: H, error_node: Out<H>, log: Out<u8>, size: usize) {
        let _ = (error_node, log, size);
        answer(reentry::instantiate_with_flags(out, g, 0))
    }
    Ctx hipGraphInstantiateWithParams [] (c, out: Out<H>, g: H, params: Out<InstantiateParams>) {
        let mut p = params.get()?;
        if p.flags & 2 != 0 {
            c.stream(p.stream)?;
        }
        let made = answer(reentry::instantiate_with_flags(out, g, p.flags));
        p.error_node = 0;
        p.result = made.is_err() as u32;
        params.set(p)?;
        made
    }
    Init hipGraphExecDestroy [] (c, h: H) { destroy(h) }
    Init hipGraphExecGetFlags [] (c, h: H, out: Out<u64>) { out.set(lock().exec(h)?.flags & !exec::ANY_COPY) }
    Init hipGraphLaunch [hipGraphLaunch_spt] (c, h: H, s: H) { launch(h, c.stream(s)?) }
    Init hipGraphUpload [] (c, h: H, s: H) {
        c.stream(s)?;
        lock().exec(h).map(|_| ())
    }
    Init hipGraphExecUpdate [] (c, h: H, g: H, node: Out<H>, why: Out<u32>) {
        node.need()?;
        why.need()?;
        let outcome = update::update(h, g)?;
        let (result, at) = outcome.refusal.map_or((0, 0), |r| (number(r.why), r.node));
        node.put(at);
        why.put(result);
        outcome.error()?;
        writes_arguments(h)
    }
    Init hipGraphExecKernelNodeSetParams [] (c, h: H, node: H, p: In<KernelNode>) {
        exec::set_node(h, node, kernel_kind(&p.get()?)?)
    }
    Init hipGraphExecMemcpyNodeSetParams [] (c, h: H, node: H, p: In<Memcpy3D>) {
        exec::set_node(h, node, memcpy_kind(&p.get()?)?)
    }
    Init hipGraphExecMemcpyNodeSetParams1D [] (c, h: H, node: H, dst: u64, src: u64, bytes: usize, kind: u32) {
        exec::set_node(h, node, memcpy_1d(dst, src, bytes, kind)?)
    }
    Init hipGraphExecMemcpyNodeSetParamsFromSymbol []
    (c, h: H, node: H, dst: u64, symbol: usize, bytes: usize, offset: usize, kind: u32) {
        let _ = (node, dst, symbol, bytes, offset, kind);
        no_such_symbol(h)
    }
    Init hipGraphExecMemcpyNodeSetParamsToSymbol []
    (c, h: H, node: H, symbol: usize, src: u64, bytes: usize, offset: usize, kind: u32) {
        let _ = (node, symbol, src, bytes, offset, kind);
        no_such_symbol(h)
    }
    Init hipDrvGraphExecMemcpyNodeSetParams [] (c, h: H, node: H, p: In<DrvMemcpy3D>, ctx: H) {
        let _ = ctx;
        exec::set_node(h, node, drv_memcpy_kind(&p.get()?)?)
    }
    Init hipDrvGraphExecMemsetNodeSetParams [] (c, h: H, node: H, p: In<MemsetNode>, ctx: H) {
        let _ = ctx;
        exec::set_node(h, node, memset_kind(&p.get()?)?)
    }
    Init hipGraphExecMemsetNodeSetParams [] (c, h: H, node: H, p: In<MemsetNode>) {
        exec::set_node(h, node, memset_kind(&p.get()?)?)
    }
    Init hipGraphExecHostNodeSetParams [] (c, h: H, node: H, p: In<HostNode>) {
        exec::set_node(h, node, host_kind(&p.get()?)?)
    }
    Init hipGraphExecChildGraphNodeSetParams [] (c, h: H, node: H, g: H) { exec::set_child(h, node, g) }
    Init hipGraphExecEventRecordNodeSetEvent [] (c, h: H, node: H, e: H) { exec::set_node(h, node, event_kind(e, true)?) }
    Init hipGraphExecEventWaitNodeSetEvent [] (c, h: H, node: H, e: H) { exec::set_node(h, node, event_kind(e, false)?) }
    Init hipGraphExecExternalSemaphoresSignalNodeSetParams [] (c, h: H, node: H, p: usize) {
        let _ = (node, p);
        no_such_node(h)
    }
    Init hipGraphExecExternalSemaphoresWaitNodeSetParams [] (c, h: H, node: H, p: usize) {
        let _ = (node, p);
        no_such_node(h)
    }
    Init hipGraphExecBatchMemOpNodeSetParams [] (c, h: H, node: H, p: In<MemOpNode>) {
        exec::set_node(h, node, mem_ops_kind(&p.get()?, Error::INVALID_VALUE)?)
    }
    Init hipGraphExecNodeSetParams [] (c, h: H, node: H, p: In<NodeParams>) {
        let mut p = p.get()?;
        if p.kind == 4 {
            return exec::set_child(h, node, p.body[0] as H);
        }
        exec::set_node(h, node, any_kind(&mut p)?)
    }
    Init hipGraphNodeSetEnabled [] (c, h: H, node: H, on: u32) { exec::set_enabled(h, node, on != 0) }
    Init hipGraphNodeGetEnabled [] (c, h: H, node: H, out: Out<u32>) { out.set(exec::enabled(h, node)? as u32) }
}
