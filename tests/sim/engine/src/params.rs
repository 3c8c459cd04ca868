//! Parameters of nodes that CUDA and HIP declare alike, and the work that they describe.

use crate::abi::{In, PoolProps};
use crate::handle::H;
use crate::node::{HostFn, Kind, MemOp};
use crate::{Error, Result, graph, lock, pool};

/// Parameters of a node that is added or set by a function for all kinds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeParams {
    pub kind: u32,
    pub reserved: [i32; 3],
    pub body: [u64; 29],
    pub reserved2: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct HostNode {
    pub f: usize,
    pub data: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemAllocNode {
    pub props: PoolProps,
    pub access: usize,
    pub access_count: usize,
    pub size: usize,
    pub ptr: u64,
}

/// Six words: operation, address, value, flags, ...
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemOpParams {
    pub op: u32,
    pub address: u64,
    pub value: u64,
    pub flags: u32,
    pub alias: u64,
    pub rest: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemOpNode {
    pub ctx: H,
    pub count: u32,
    pub list: usize,
    pub flags: u32,
}

/// A launch attribute: its number, and 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: [u8; 64],
}

pub fn host_kind(p: &HostNode) -> Result<Kind> {
    if p.f == 0 {
        return Err(Error::INVALID_VALUE);
    }
    Ok(Kind::Host(HostFn { f: p.f, data: p.data, stream: None }))
}

pub fn child_kind(g: H) -> Result<Kind> {
    Ok(Kind::Child(graph::copy(&mut lock(), g)?))
}

pub fn event_kind(h: H, record: bool) -> Result<Kind> {
    lock().event(h)?;
    Ok(if record { Kind::EventRecord(h) } else { Kind::EventWait(h) })
}

pub fn free_kind(ptr: u64) -> Result<Kind> {
    if !lock().graph_blocks.contains_key(&ptr) {
        return Err(Error::INVALID_VALUE);
    }
    Ok(Kind::MemFree(ptr))
}

/// The address is written into the parameters. `device` is that of their location.
pub fn alloc_kind(p: &mut MemAllocNode, device: u32) -> Result<Kind> {
    if p.props.location.kind != 1 {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let default = m.devices[device as usize].default_pool;
    let kind = pool::alloc_node(&mut m, device, p.size as u64, default)?;
    if let Kind::MemAlloc(a) = &kind {
        p.ptr = a.addr;
    }
    Ok(kind)
}

/// Returns a wait or a write of a value, `None` for an operation that does neither. `unknown` is the answer to an
/// operation that does not exist.
pub fn mem_op(p: &MemOpParams, unknown: Error) -> Result<Option<MemOp>> {
    let wide = matches!(p.op, 4 | 5);
    let value = if wide { p.value } else { p.value as u32 as u64 };
    Ok(match p.op {
        1 | 4 => Some(MemOp::Wait { addr: p.address, wide, value, flags: p.flags }),
        2 | 5 => Some(MemOp::Write { addr: p.address, wide, value }),
        3 | 6 => None,
        _ => return Err(unknown),
    })
}

/// As [`mem_op`], for a list of operations.
pub fn mem_ops(list: In<MemOpParams>, n: u32, unknown: Error) -> Result<Vec<MemOp>> {
    let mut ops = Vec::new();
    for p in list.list(n as usize)? {
        ops.extend(mem_op(&p, unknown)?);
    }
    Ok(ops)
}

pub fn mem_ops_kind(p: &MemOpNode, unknown: Error) -> Result<Kind> {
    Ok(Kind::MemOps(mem_ops(In::at(p.list), p.count, unknown)?))
}
