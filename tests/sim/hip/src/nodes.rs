//! Nodes of graphs: added, read, changed; one conversion per kind.

use crate::abi::{H, In, Out};
use crate::copies::{copy3, drv_copy3, linear};
use crate::modules::build;
use crate::structs::{
    DrvMemcpy3D, HostNode, KernelNode, MemAllocNode, MemOpNode, Memcpy3D, MemcpyNode, MemsetNode, NodeParams,
};
use gpumem_sim_engine::exec::node_attrs;
use gpumem_sim_engine::graph::{self, add_node};
use gpumem_sim_engine::launch::Shape;
use gpumem_sim_engine::node::{Attrs, Copy3D, Kind, Memset};
use gpumem_sim_engine::params::{alloc_kind, child_kind, event_kind, free_kind, host_kind, mem_ops_kind};
use gpumem_sim_engine::{Error, Result, copy, lock, work};

fn add(out: Out<H>, g: H, nodes: In<H>, n: usize, kind: Kind) -> Result {
    out.need()?;
    let deps: Vec<_> = nodes.list(n)?.into_iter().map(|h| (h, [0; 8])).collect();
    out.set(add_node(&mut lock(), g, &deps, kind)?)
}

pub fn kernel_kind(p: &KernelNode) -> Result<Kind> {
    let shape = Shape { func: p.func, grid: p.grid, block: p.block, shared: p.shared, attrs: Attrs::new() };
    Ok(Kind::Kernel(build(shape, p.params, p.extra)?))
}

fn checked(c: Copy3D) -> Result<Kind> {
    let kind = Kind::Memcpy(c);
    work::check(&lock(), &kind)?;
    Ok(kind)
}

pub fn memcpy_kind(p: &Memcpy3D) -> Result<Kind> {
    checked(copy3(p)?)
}

pub fn drv_memcpy_kind(p: &DrvMemcpy3D) -> Result<Kind> {
    checked(drv_copy3(p)?)
}

pub fn memcpy_1d(dst: u64, src: u64, n: usize, kind: u32) -> Result<Kind> {
    if dst == 0 || src == 0 || n == 0 {
        return Err(Error::INVALID_VALUE);
    }
    checked(linear(dst, src, n, kind)?)
}

pub fn memset_kind(p: &MemsetNode) -> Result<Kind> {
    let (width, height, pitch) = (p.width as u64, p.height as u64, p.pitch as u64);
    let s = Memset { dst: p.dst, pitch, value: p.value, elem: p.elem, width, height };
    if width == 0 || height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    copy::set_check(&lock(), &s)?;
    Ok(Kind::Memset(s))
}

/// Parameters of any kind, for hipGraphAddNode and the setters. An alloc
/// node's address is written back.
pub fn any_kind(p: &mut NodeParams) -> Result<Kind> {
    let at = p.body.as_mut_ptr() as usize;
    match p.kind {
        0 => kernel_kind(&In::at(at).get()?),
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
        _ => Err(Error::NOT_SUPPORTED),
    }
}

/// Setting a kernel node's parameters leaves its attributes alone.
fn keep_attrs(node: H, mut kind: Kind) -> Result<Kind> {
    if let Kind::Kernel(k) = &mut kind {
        k.attrs = node_attrs(&mut lock(), node)?.clone();
    }
    Ok(kind)
}

hip! {
    Init hipGraphAddKernelNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<KernelNode>) {
        add(out, g, d, n, kernel_kind(&p.get()?)?)
    }
    Init hipGraphKernelNodeGetParams [] (c, node: H, out: Out<KernelNode>) {
        let mut m = lock();
        let n = graph::node(&mut m, node)?;
        let Kind::Kernel(k) = &n.kind else { return Err(Error::INVALID_VALUE) };
        let (params, extra) = (n.views.params(), n.views.extra());
        out.set(KernelNode { block: k.block, extra, func: k.func, grid: k.grid, params, shared: k.shared })
    }
    Init hipGraphKernelNodeSetParams [] (c, node: H, p: In<KernelNode>) {
        graph::set_node(node, keep_attrs(node, kernel_kind(&p.get()?)?)?)
    }
    Init hipGraphAddMemcpyNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<Memcpy3D>) {
        add(out, g, d, n, memcpy_kind(&p.get()?)?)
    }
    Init hipGraphAddMemcpyNode1D []
    (c, out: Out<H>, g: H, d: In<H>, n: usize, dst: u64, src: u64, bytes: usize, kind: u32) {
        add(out, g, d, n, memcpy_1d(dst, src, bytes, kind)?)
    }
    Init hipGraphMemcpyNodeSetParams [] (c, node: H, p: In<Memcpy3D>) { graph::set_node(node, memcpy_kind(&p.get()?)?) }
    Init hipGraphMemcpyNodeSetParams1D [] (c, node: H, dst: u64, src: u64, bytes: usize, kind: u32) {
        graph::set_node(node, memcpy_1d(dst, src, bytes, kind)?)
    }
    Init hipGraphAddMemsetNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<MemsetNode>) {
        add(out, g, d, n, memset_kind(&p.get()?)?)
    }
    Init hipGraphMemsetNodeGetParams [] (c, node: H, out: Out<MemsetNode>) {
        let Kind::Memset(s) = graph::node(&mut lock(), node)?.kind else { return Err(Error::INVALID_VALUE) };
        let (height, pitch, width) = (s.height as usize, s.pitch as usize, s.width as usize);
        out.set(MemsetNode { dst: s.dst, elem: s.elem, height, pitch, value: s.value, width })
    }
    Init hipGraphMemsetNodeSetParams [] (c, node: H, p: In<MemsetNode>) { graph::set_node(node, memset_kind(&p.get()?)?) }
    Init hipGraphAddHostNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<HostNode>) {
        add(out, g, d, n, host_kind(&p.get()?)?)
    }
    Init hipGraphHostNodeSetParams [] (c, node: H, p: In<HostNode>) { graph::set_node(node, host_kind(&p.get()?)?) }
    Init hipGraphAddChildGraphNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, child: H) {
        add(out, g, d, n, child_kind(child)?)
    }
    Init hipGraphAddEmptyNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize) { add(out, g, d, n, Kind::Empty) }
    Init hipGraphAddEventRecordNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, h: H) {
        add(out, g, d, n, event_kind(h, true)?)
    }
    Init hipGraphAddEventWaitNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, h: H) {
        add(out, g, d, n, event_kind(h, false)?)
    }
    Init hipGraphAddMemAllocNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: Out<MemAllocNode>) {
        let mut a = p.get()?;
        let device = crate::devices::check(a.props.location.id)?;
            let kind = alloc_kind(&mut a, device)?;
        add(out, g, d, n, kind)?;
        p.set(a)
    }
    Init hipGraphAddMemFreeNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, ptr: u64) {
        add(out, g, d, n, free_kind(ptr)?)
    }
    Init hipGraphAddBatchMemOpNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, p: In<MemOpNode>) {
        add(out, g, d, n, mem_ops_kind(&p.get()?, Error::INVALID_VALUE)?)
    }
    Init hipGraphAddNode [] (c, out: Out<H>, g: H, d: In<H>, n: usize, params: Out<NodeParams>) {
        let mut p = params.get()?;
        let kind = any_kind(&mut p)?;
        add(out, g, d, n, kind)?;
        params.set(p)
    }
}
