//! Nodes of graphs: added, read, changed; one pair of conversions per kind.

use crate::abi::{H, In, Out};
use crate::copies::{copy3, uncopy3};
use crate::graphs::deps;
use crate::structs::{
    AccessDesc, ConditionalNode, HostNode, KernelNode, KernelNodeV1, Location, MemAllocNode, MemOpNode, MemOpParams,
    Memcpy3D, MemcpyNode, MemsetNode, NodeParams, PoolProps,
};
use gpumem_sim_engine::config::config;
use gpumem_sim_engine::exec::{node_attrs, node_kernel};
use gpumem_sim_engine::graph::{self, add_node};
use gpumem_sim_engine::node::{Kind, Memset, NEWER, NEWER_SINCE};
use gpumem_sim_engine::params::{alloc_kind, child_kind, event_kind, free_kind, host_kind, mem_ops_kind};
use gpumem_sim_engine::{Error, Result, attrs, context, copy, lock, module};

type Edge = [u8; 8];

fn add(out: Out<H>, g: H, nodes: In<H>, n: usize, kind: Kind) -> Result {
    add_with(out, g, nodes, In::at(0), n, kind)
}

fn add_with(out: Out<H>, g: H, nodes: In<H>, edges: In<Edge>, n: usize, kind: Kind) -> Result {
    out.need()?;
    let deps = deps(nodes, edges, n)?;
    out.set(add_node(&mut lock(), g, &deps, kind)?)
}

fn ctx_or_current(ctx: H) -> H {
    if ctx != 0 { ctx } else { context::current().unwrap_or(0) }
}

pub fn kernel_kind(p: &KernelNode) -> Result<Kind> {
    Ok(Kind::Kernel(crate::launches::node_kernel(p, ctx_or_current(0))?))
}

pub fn widen(v1: KernelNodeV1) -> KernelNode {
    KernelNode { v1, ..KernelNode::default() }
}

pub fn memcpy_kind(p: &Memcpy3D) -> Result<Kind> {
    let c = copy3(p)?;
    if c.width == 0 || c.height == 0 || c.depth == 0 {
        return Err(Error::INVALID_VALUE);
    }
    copy::check(&lock(), &c)?;
    Ok(Kind::Memcpy(c))
}

pub fn memset_kind(p: &MemsetNode) -> Result<Kind> {
    let s = Memset {
        dst: p.dst,
        pitch: p.pitch as u64,
        value: p.value,
        elem: p.elem,
        width: p.width as u64,
        height: p.height as u64,
    };
    if s.width == 0 || s.height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    copy::set_check(&lock(), &s)?;
    Ok(Kind::Memset(s))
}

fn kernel_params(node: H) -> Result<KernelNode> {
    let mut m = lock();
    let n = graph::node(&mut m, node)?;
    let Kind::Kernel(k) = &n.kind else {
        return Err(Error::INVALID_VALUE);
    };
    let (params, extra) = (n.views.params(), n.views.extra());
    let (func, grid, block, shared) = (k.func, k.grid, k.block, k.shared);
    let v1 = KernelNodeV1 { func, grid, block, shared, params, extra };
    let ctx = m.functions.get(&func).and_then(|f| m.modules.get(&f.module)).map_or(0, |module| module.ctx);
    Ok(KernelNode { v1, kern: module::kernel_of(&m, func), ctx })
}

fn alloc_params(node: H) -> Result<MemAllocNode> {
    let mut m = lock();
    let Kind::MemAlloc(a) = graph::node(&mut m, node)?.kind else {
        return Err(Error::INVALID_VALUE);
    };
    let location = Location { kind: 1, id: a.device as i32 };
    let props = PoolProps { alloc_type: 1, handle_types: 0, location, security: 0, max_size: 0, rest: [0; 56] };
    Ok(MemAllocNode { props, access: 0, access_count: 0, size: a.size as usize, ptr: a.addr })
}

fn event_of(node: H, record: bool) -> Result<H> {
    match graph::node(&mut lock(), node)?.kind {
        Kind::EventRecord(h) if record => Ok(h),
        Kind::EventWait(h) if !record => Ok(h),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Parameters of any kind, for cuGraphAddNode and the setters. An alloc node's
/// address and a conditional node's bodies are written back.
pub fn any_kind(p: &mut NodeParams) -> Result<Kind> {
    let at = p.body.as_mut_ptr() as usize;
    match p.kind {
        0 => {
            let k: KernelNode = In::at(at).get()?;
            Ok(Kind::Kernel(crate::launches::node_kernel(&k, ctx_or_current(k.ctx))?))
        }
        1 => memcpy_kind(&In::<MemcpyNode>::at(at).get()?.copy),
        2 => memset_kind(&In::at(at).get()?),
        3 => host_kind(&In::at(at).get()?),
        4 => child_kind(p.body[0] as H),
        5 => Ok(Kind::Empty),
        6 => event_kind(p.body[0] as H, false),
        7 => event_kind(p.body[0] as H, true),
        10 => {
            let mut a: MemAllocNode = In::at(at).get()?;
            let device = crate::devices::check(a.props.location.id)?;
            let kind = alloc_kind(&mut a, device)?;
            Out::at(at).set(a)?;
            Ok(kind)
        }
        11 => free_kind(p.body[0]),
        12 => mem_ops_kind(&In::at(at).get()?, Error::NOT_SUPPORTED),
        13 => {
            let mut c: ConditionalNode = In::at(at).get()?;
            let kind = graph::conditional(c.handle, c.form, c.size)?;
            if let Kind::Conditional(made) = &kind {
                c.graphs = made.bodies.as_ptr() as usize;
            }
            Out::at(at).set(c)?;
            Ok(kind)
        }
        // Its parameters: the number to add; a graph to look at, or none; and where to write the nodes of that graph.
        NEWER if config().driver_version >= NEWER_SINCE => {
            if p.body[1] != 0 {
                p.body[2] = lock().graph(p.body[1] as H)?.nodes.len() as u64;
            }
            Ok(Kind::Newer(p.body[0]))
        }
        _ => Err(Error::NOT_SUPPORTED),
    }
}

fn add_any(out: Out<H>, g: H, nodes: In<H>, edges: In<Edge>, n: usize, params: Out<NodeParams>) -> Result {
    let mut p = params.get()?;
    let kind = any_kind(&mut p)?;
    add_with(out, g, nodes, edges, n, kind)?;
    params.set(p)
}

cu! {
    Init cuGraphAddKernelNode [cuGraphAddKernelNode_v2 12000] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<KernelNode>) {
        add(out, g, d, n, kernel_kind(&p.get()?)?)
    }
    Init cuGraphAddKernelNode [cuGraphAddKernelNode 10000] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<KernelNodeV1>) {
        add(out, g, d, n, kernel_kind(&widen(p.get()?))?)
    }
    Init cuGraphKernelNodeGetParams [cuGraphKernelNodeGetParams_v2 12000] [] (c, node: H, out: Out<KernelNode>) {
        out.set(kernel_params(node)?)
    }
    Init cuGraphKernelNodeGetParams [cuGraphKernelNodeGetParams 10000] [] (c, node: H, out: Out<KernelNodeV1>) {
        out.set(kernel_params(node)?.v1)
    }
    Init cuGraphKernelNodeSetParams [cuGraphKernelNodeSetParams_v2 12000] [] (c, node: H, p: In<KernelNode>) {
        graph::set_node(node, keep_attrs(node, kernel_kind(&p.get()?)?)?)
    }
    Init cuGraphKernelNodeSetParams [cuGraphKernelNodeSetParams 10000] [] (c, node: H, p: In<KernelNodeV1>) {
        graph::set_node(node, keep_attrs(node, kernel_kind(&widen(p.get()?))?)?)
    }
    Init cuGraphKernelNodeGetAttribute [cuGraphKernelNodeGetAttribute 11000] [] (c, node: H, id: u32, out: Out<u8>) {
        let value = attrs::get(node_kernel(&mut lock(), node)?, id)?;
        out.need()?.fill(value.len(), value);
        Ok(())
    }
    Init cuGraphKernelNodeSetAttribute [cuGraphKernelNodeSetAttribute 11000] [] (c, node: H, id: u32, value: In<[u8; 64]>) {
        let value = value.get()?;
        attrs::set(node_kernel(&mut lock(), node)?, id, value)
    }
    Init cuGraphKernelNodeCopyAttributes [cuGraphKernelNodeCopyAttributes 11000] [] (c, dst: H, src: H) {
        let mut m = lock();
        let attrs = node_kernel(&mut m, src)?.attrs.clone();
        let to = node_kernel(&mut m, dst)?;
        // Not the 912 of the setter (seen on an H200, driver 580).
        attrs::divides(to.grid, &attrs).map_err(|_| Error::INVALID_VALUE)?;
        attrs::takes_block(to.packed, &attrs)?;
        to.attrs = attrs;
        Ok(())
    }
    Init cuGraphAddMemcpyNode [cuGraphAddMemcpyNode 10000] []
    (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<Memcpy3D>, ctx: H) {
        let _ = ctx;
        add(out, g, d, n, memcpy_kind(&p.get()?)?)
    }
    Init cuGraphMemcpyNodeGetParams [cuGraphMemcpyNodeGetParams 10000] [] (c, node: H, out: Out<Memcpy3D>) {
        match &graph::node(&mut lock(), node)?.kind {
            Kind::Memcpy(k) => out.set(uncopy3(k)),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init cuGraphMemcpyNodeSetParams [cuGraphMemcpyNodeSetParams 10000] [] (c, node: H, p: In<Memcpy3D>) {
        graph::set_node(node, memcpy_kind(&p.get()?)?)
    }
    Init cuGraphAddMemsetNode [cuGraphAddMemsetNode 10000] []
    (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<MemsetNode>, ctx: H) {
        let _ = ctx;
        add(out, g, d, n, memset_kind(&p.get()?)?)
    }
    Init cuGraphMemsetNodeGetParams [cuGraphMemsetNodeGetParams 10000] [] (c, node: H, out: Out<MemsetNode>) {
        let Kind::Memset(s) = graph::node(&mut lock(), node)?.kind else { return Err(Error::INVALID_VALUE) };
        let (pitch, width, height) = (s.pitch as usize, s.width as usize, s.height as usize);
        out.set(MemsetNode { dst: s.dst, pitch, value: s.value, elem: s.elem, width, height })
    }
    Init cuGraphMemsetNodeSetParams [cuGraphMemsetNodeSetParams 10000] [] (c, node: H, p: In<MemsetNode>) {
        graph::set_node(node, memset_kind(&p.get()?)?)
    }
    Init cuGraphAddHostNode [cuGraphAddHostNode 10000] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<HostNode>) {
        add(out, g, d, n, host_kind(&p.get()?)?)
    }
    Init cuGraphHostNodeGetParams [cuGraphHostNodeGetParams 10000] [] (c, node: H, out: Out<HostNode>) {
        match &graph::node(&mut lock(), node)?.kind {
            Kind::Host(f) => out.set(HostNode { f: f.f, data: f.data }),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init cuGraphHostNodeSetParams [cuGraphHostNodeSetParams 10000] [] (c, node: H, p: In<HostNode>) {
        graph::set_node(node, host_kind(&p.get()?)?)
    }
    Init cuGraphAddChildGraphNode [cuGraphAddChildGraphNode 10000] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, child: H) {
        add(out, g, d, n, child_kind(child)?)
    }
    Init cuGraphAddEmptyNode [cuGraphAddEmptyNode 10000] [] (c, out: Out<H>, g: H, d: In<H>, n: usize) {
        add(out, g, d, n, Kind::Empty)
    }
    Init cuGraphAddEventRecordNode [cuGraphAddEventRecordNode 11010] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, h: H) {
        add(out, g, d, n, event_kind(h, true)?)
    }
    Init cuGraphAddEventWaitNode [cuGraphAddEventWaitNode 11010] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, h: H) {
        add(out, g, d, n, event_kind(h, false)?)
    }
    Init cuGraphEventRecordNodeGetEvent [cuGraphEventRecordNodeGetEvent 11010] [] (c, node: H, out: Out<H>) {
        out.set(event_of(node, true)?)
    }
    Init cuGraphEventWaitNodeGetEvent [cuGraphEventWaitNodeGetEvent 11010] [] (c, node: H, out: Out<H>) {
        out.set(event_of(node, false)?)
    }
    Init cuGraphEventRecordNodeSetEvent [cuGraphEventRecordNodeSetEvent 11010] [] (c, node: H, h: H) {
        graph::set_node(node, event_kind(h, true)?)
    }
    Init cuGraphEventWaitNodeSetEvent [cuGraphEventWaitNodeSetEvent 11010] [] (c, node: H, h: H) {
        graph::set_node(node, event_kind(h, false)?)
    }
    Init cuGraphAddMemAllocNode [cuGraphAddMemAllocNode 11040] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: Out<MemAllocNode>) {
        let mut a = p.get()?;
        let _ = In::<AccessDesc>::at(a.access).is_null();
        let device = crate::devices::check(a.props.location.id)?;
            let kind = alloc_kind(&mut a, device)?;
        add(out, g, d, n, kind)?;
        p.set(a)
    }
    Init cuGraphMemAllocNodeGetParams [cuGraphMemAllocNodeGetParams 11040] [] (c, node: H, out: Out<MemAllocNode>) {
        out.set(alloc_params(node)?)
    }
    Init cuGraphAddMemFreeNode [cuGraphAddMemFreeNode 11040] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, ptr: u64) {
        add(out, g, d, n, free_kind(ptr)?)
    }
    Init cuGraphMemFreeNodeGetParams [cuGraphMemFreeNodeGetParams 11040] [] (c, node: H, out: Out<u64>) {
        match graph::node(&mut lock(), node)?.kind {
            Kind::MemFree(p) => out.set(p),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init cuGraphAddBatchMemOpNode [cuGraphAddBatchMemOpNode 11070] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<MemOpNode>) {
        add(out, g, d, n, mem_ops_kind(&p.get()?, Error::NOT_SUPPORTED)?)
    }
    Init cuGraphBatchMemOpNodeSetParams [cuGraphBatchMemOpNodeSetParams 11070] [] (c, node: H, p: In<MemOpNode>) {
        let _ = In::<MemOpParams>::at(0).is_null();
        graph::set_node(node, mem_ops_kind(&p.get()?, Error::NOT_SUPPORTED)?)
    }
    Init cuGraphConditionalHandleCreate [cuGraphConditionalHandleCreate 12030] []
    (c, out: Out<u64>, g: H, ctx: H, value: u32, flags: u32) {
        let _ = ctx;
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        // Without ASSIGN_DEFAULT no launch gives it a value; it is 0 here.
        out.set(graph::create_condition(g, if flags == 1 { value } else { 0 })?)
    }
    Init cuGraphAddNode [cuGraphAddNode_v2 12030] []
    (c, out: Out<H>, g: H, d: In<H>, edges: In<Edge>, n: usize, p: Out<NodeParams>) {
        add_any(out, g, d, edges, n, p)
    }
    Init cuGraphAddNode [cuGraphAddNode 12020] [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: Out<NodeParams>) {
        add_any(out, g, d, In::at(0), n, p)
    }
    Init cuGraphNodeSetParams [cuGraphNodeSetParams 12020] [] (c, node: H, p: In<NodeParams>) {
        let mut p = p.get()?;
        if p.kind == 13 {
            return Err(Error::NOT_SUPPORTED);
        }
        graph::set_node(node, keep_attrs(node, any_kind(&mut p)?)?)
    }
}

/// Setting a kernel node's parameters leaves its attributes alone.
fn keep_attrs(node: H, mut kind: Kind) -> Result<Kind> {
    if let Kind::Kernel(k) = &mut kind {
        k.attrs = node_attrs(&mut lock(), node)?.clone();
    }
    Ok(kind)
}
