//! Executable graphs.

use crate::abi::{H, In, Out};
use crate::nodes::{any_kind, kernel_kind, memcpy_kind, memset_kind, widen};
use crate::structs::{
    HostNode, InstantiateParams, KernelNode, KernelNodeV1, MemOpNode, Memcpy3D, MemsetNode, NodeParams, UpdateResult,
};
use gpumem_sim_engine::node::Kind;
use gpumem_sim_engine::params::{event_kind, host_kind, mem_ops_kind};
use gpumem_sim_engine::{Error, Result, exec, lock, update};

fn told(o: update::Outcome) -> (UpdateResult, Result) {
    let info = o.refusal.map_or(UpdateResult::default(), |r| UpdateResult {
        result: r.why as u32,
        error_node: r.node,
        error_from: r.from,
    });
    (info, o.error())
}

cu! {
    Ctx cuGraphInstantiateWithFlags [cuGraphInstantiateWithFlags 11040] [] (c, out: Out<H>, g: H, flags: u64) {
        out.need()?;
        // UPLOAD needs a stream, which only the form with parameters has.
        if flags & 2 != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(exec::instantiate(c.ctx, g, flags)?)
    }
    Ctx cuGraphInstantiate [cuGraphInstantiate_v2 11000, cuGraphInstantiate 10000] []
    (c, out: Out<H>, g: H, error_node: Out<H>, log: Out<u8>, size: usize) {
        out.need()?;
        error_node.put(0);
        if size > 0 {
            log.put(0);
        }
        out.set(exec::instantiate(c.ctx, g, 0)?)
    }
    Ctx cuGraphInstantiateWithParams [cuGraphInstantiateWithParams 12000] [cuGraphInstantiateWithParams_ptsz 12000]
    (c, out: Out<H>, g: H, params: Out<InstantiateParams>) {
        out.need()?;
        let mut p = params.get()?;
        if p.flags & 2 != 0 {
            c.stream(p.stream)?;
        }
        let made = exec::instantiate_or_why(c.ctx, g, p.flags);
        (p.result, p.error_node) = made.as_ref().map_or_else(|why| (why.result, why.node), |_| (0, 0));
        params.set(p)?;
        out.set(made.map_err(|why| why.error)?)
    }
    Init cuGraphExecDestroy [cuGraphExecDestroy 10000] [] (c, h: H) { exec::destroy(h) }
    /// Tells neither UPLOAD nor USE_NODE_PRIORITY (H200, driver 580).
    Init cuGraphExecGetFlags [cuGraphExecGetFlags 12000] [] (c, h: H, out: Out<u64>) {
        out.set(lock().exec(h)?.flags & !(exec::UPLOAD | exec::USE_NODE_PRIORITY))
    }
    Init cuGraphLaunch [cuGraphLaunch 10000] [cuGraphLaunch_ptsz 10000] (c, h: H, s: H) {
        exec::launch(h, c.stream(s)?)
    }
    Init cuGraphUpload [cuGraphUpload 11010] [cuGraphUpload_ptsz 11010] (c, h: H, s: H) {
        c.stream(s)?;
        lock().exec(h)?.uploaded = true;
        Ok(())
    }
    Init cuGraphExecUpdate [cuGraphExecUpdate_v2 12000] [] (c, h: H, g: H, out: Out<UpdateResult>) {
        let (info, result) = told(update::update(h, g)?);
        out.put(info);
        result
    }
    Init cuGraphExecUpdate [cuGraphExecUpdate 10020] [] (c, h: H, g: H, node: Out<H>, why: Out<u32>) {
        let (info, result) = told(update::update_before_12(h, g)?);
        node.put(info.error_node);
        why.put(info.result);
        result
    }
    Init cuGraphExecKernelNodeSetParams [cuGraphExecKernelNodeSetParams_v2 12000] [] (c, h: H, node: H, p: In<KernelNode>) {
        lock().exec(h)?;
        exec::set_node(h, node, kernel_kind(&p.get()?)?)
    }
    Init cuGraphExecKernelNodeSetParams [cuGraphExecKernelNodeSetParams 10010] [] (c, h: H, node: H, p: In<KernelNodeV1>) {
        lock().exec(h)?;
        exec::set_node(h, node, kernel_kind(&widen(p.get()?))?)
    }
    Init cuGraphExecMemcpyNodeSetParams [cuGraphExecMemcpyNodeSetParams 10020] [] (c, h: H, node: H, p: In<Memcpy3D>, ctx: H) {
        lock().exec(h)?;
        let _ = ctx;
        exec::set_node(h, node, memcpy_kind(&p.get()?)?)
    }
    Init cuGraphExecMemsetNodeSetParams [cuGraphExecMemsetNodeSetParams 10020] [] (c, h: H, node: H, p: In<MemsetNode>, ctx: H) {
        lock().exec(h)?;
        let _ = ctx;
        exec::set_node(h, node, memset_kind(&p.get()?)?)
    }
    Init cuGraphExecHostNodeSetParams [cuGraphExecHostNodeSetParams 10020] [] (c, h: H, node: H, p: In<HostNode>) {
        lock().exec(h)?;
        exec::set_node(h, node, host_kind(&p.get()?)?)
    }
    Init cuGraphExecChildGraphNodeSetParams [cuGraphExecChildGraphNodeSetParams 11010] [] (c, h: H, node: H, g: H) {
        lock().exec(h)?;
        exec::set_child(h, node, g)
    }
    Init cuGraphExecEventRecordNodeSetEvent [cuGraphExecEventRecordNodeSetEvent 11010] [] (c, h: H, node: H, e: H) {
        lock().exec(h)?;
        exec::set_node(h, node, event_kind(e, true)?)
    }
    Init cuGraphExecEventWaitNodeSetEvent [cuGraphExecEventWaitNodeSetEvent 11010] [] (c, h: H, node: H, e: H) {
        lock().exec(h)?;
        exec::set_node(h, node, event_kind(e, false)?)
    }
    Init cuGraphExecBatchMemOpNodeSetParams [cuGraphExecBatchMemOpNodeSetParams 11070] [] (c, h: H, node: H, p: In<MemOpNode>) {
        lock().exec(h)?;
        exec::set_node(h, node, mem_ops_kind(&p.get()?, Error::NOT_SUPPORTED)?)
    }
    Init cuGraphExecNodeSetParams [cuGraphExecNodeSetParams 12020] [] (c, h: H, node: H, p: In<NodeParams>) {
        lock().exec(h)?;
        let mut p = p.get()?;
        if p.kind == 4 {
            return exec::set_child(h, node, p.body[0] as H);
        }
        if p.kind == 13 {
            return Err(Error::NOT_SUPPORTED);
        }
        let kind: Kind = any_kind(&mut p)?;
        exec::set_node(h, node, kind)
    }
    Init cuGraphNodeSetEnabled [cuGraphNodeSetEnabled 11060] [] (c, h: H, node: H, on: u32) {
        exec::set_enabled(h, node, on != 0)
    }
    Init cuGraphNodeGetEnabled [cuGraphNodeGetEnabled 11060] [] (c, h: H, node: H, out: Out<u32>) {
        out.set(exec::enabled(h, node)? as u32)
    }
}
