//! Stream-ordered memory: pools, and what alloc nodes of graphs hold.

use crate::arena::BLOCK;
use crate::capture;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory::{Alloc, Kind as MemoryKind};
use crate::node::{Kind, MemAlloc};
use crate::queue::wait_all;
use crate::stream;
use crate::work::Step;
use std::collections::{BTreeMap, HashMap, HashSet};

pub struct Pool {
    pub device: u32,
    /// Bytes that stay reserved when the program synchronises.
    pub threshold: u64,
    pub flags: HashMap<u32, u32>,
    free: BTreeMap<u64, u64>,
    blocks: HashMap<u64, u64>,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    /// Made by the program, not by the driver.
    pub created: bool,
}

impl Pool {
    pub fn new(device: u32) -> Pool {
        Pool {
            device,
            threshold: 0,
            flags: HashMap::from([(1, 1), (2, 1), (3, 1)]),
            free: BTreeMap::new(),
            blocks: HashMap::new(),
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            created: false,
        }
    }
}

pub fn create(device: i32) -> Result<H> {
    let mut m = lock();
    if device < 0 || device as usize >= m.devices.len() {
        return Err(Error::INVALID_DEVICE);
    }
    let h = m.handles.make("memory pool");
    m.pools.insert(
        h,
        Pool {
            created: true,
            ..Pool::new(device as u32)
        },
    );
    Ok(h)
}

pub fn destroy(h: H) -> Result {
    let mut m = lock();
    if !m.pool(h)?.created {
        return Err(Error::INVALID_VALUE);
    }
    shrink(&mut m, h, 0);
    for d in &mut m.devices {
        if d.current_pool == h {
            d.current_pool = d.default_pool;
        }
    }
    // Blocks in use go back to the device one by one.
    if m.pool(h)?.blocks.is_empty() {
        m.pools.remove(&h);
        m.handles.retire("memory pool", h);
    } else {
        m.pool(h)?.threshold = 0;
    }
    Ok(())
}

/// cuMemAllocAsync: from the device's current pool (`pool` 0) or a given one.
/// In a capture this is an alloc node.
pub fn alloc(ctx: H, s: H, size: u64, pool: H) -> Result<u64> {
    let mut m = lock();
    if size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let device = m.device_of(ctx)?;
    let pool = if pool == 0 {
        m.devices[device as usize].current_pool
    } else {
        pool
    };
    m.pool(pool)?;
    if capture::active(&mut m, s)? {
        let kind = alloc_node(&mut m, device, size, pool)?;
        let Kind::MemAlloc(a) = kind else {
            return Err(Error::UNKNOWN);
        };
        capture::add(&mut m, s, kind)?;
        return Ok(a.addr);
    }
    capture::forbid_unsafe(&mut m)?;
    capture::forbid_implicit(&mut m, s)?;
    match take(&mut m, ctx, device, pool, size) {
        Err(Error::OUT_OF_MEMORY) => {}
        other => return other,
    }
    // What is freed but not reached yet may be enough.
    let fences = m.device_fences(device);
    drop(m);
    wait_all(&fences);
    let mut m = lock();
    release_idle(&mut m);
    take(&mut m, ctx, device, pool, size)
}

fn take(m: &mut Machine, ctx: H, device: u32, pool: H, size: u64) -> Result<u64> {
    let need = size.next_multiple_of(512);
    let p = m.pool(pool)?;
    let fit = p
        .free
        .iter()
        .filter(|(_, len)| **len >= need && **len <= need * 2)
        .min_by_key(|(_, len)| **len);
    let addr = match fit.map(|(a, _)| *a) {
        Some(addr) => {
            p.free.remove(&addr);
            addr
        }
        None => {
            if m.devices[device as usize].used + m.arena.cost(device, need)
                > m.devices[device as usize].total
            {
                return Err(Error::OUT_OF_MEMORY);
            }
            let range = m.arena.take(device, need)?;
            m.charge(device, range.charge)?;
            let p = m.pool(pool)?;
            p.blocks.insert(range.addr, need);
            p.reserved += need;
            p.reserved_high = p.reserved_high.max(p.reserved);
            range.addr
        }
    };
    let p = m.pool(pool)?;
    p.used += p.blocks.get(&addr).copied().unwrap_or(need);
    p.used_high = p.used_high.max(p.used);
    m.add_alloc(addr, size, MemoryKind::Pool(pool), ctx, device);
    Ok(addr)
}

/// cuMemFreeAsync. Only stream-ordered memory: a cudaMalloc pointer gives 1.
pub fn free(ptr: u64, s: H) -> Result {
    let mut m = lock();
    if ptr == 0 {
        return Err(Error::INVALID_VALUE);
    }
    if capture::active(&mut m, s)? {
        if !m.graph_blocks.contains_key(&ptr) {
            capture::invalidate_of(&mut m, s);
            return Err(Error::INVALID_VALUE);
        }
        return capture::add(&mut m, s, Kind::MemFree(ptr)).map(drop);
    }
    let a = m.allocs.get_mut(&ptr).ok_or(Error::INVALID_VALUE)?;
    if !matches!(a.kind, MemoryKind::Pool(_) | MemoryKind::Graph) || a.flags & PENDING != 0 {
        return Err(Error::INVALID_VALUE);
    }
    a.flags |= PENDING;
    let freed = stream::submit(&mut m, s, Kind::FreeAsync(ptr)).map(drop);
    if freed.is_err()
        && let Some(a) = m.allocs.get_mut(&ptr)
    {
        a.flags &= !PENDING;
    }
    freed
}

/// A stream-ordered allocation whose free was submitted.
const PENDING: u32 = 1 << 31;

/// The stream reached a free.
pub fn free_now(ptr: u64) {
    let mut m = lock();
    if m.allocs
        .get(&ptr)
        .is_some_and(|a| matches!(a.kind, MemoryKind::Pool(_) | MemoryKind::Graph))
    {
        crate::memory::drop_alloc(&mut m, ptr);
    }
}

/// Takes a block back into its pool.
pub fn give(m: &mut Machine, pool: H, ptr: u64, size: u64) {
    let Some(p) = m.pools.get_mut(&pool) else {
        return;
    };
    let len = p.blocks.get(&ptr).copied().unwrap_or(size);
    p.used = p.used.saturating_sub(len);
    p.free.insert(ptr, len);
}

/// Gives idle blocks back until at most `keep` bytes stay reserved.
pub fn shrink(m: &mut Machine, pool: H, keep: u64) {
    let Some(p) = m.pools.get_mut(&pool) else {
        return;
    };
    let device = p.device;
    let mut back = Vec::new();
    while p.reserved > keep
        && let Some((addr, len)) = p.free.pop_last()
    {
        p.blocks.remove(&addr);
        p.reserved -= len;
        back.push((addr, len));
    }
    for (addr, len) in back {
        let refund = m.arena.give(addr, len);
        m.refund(device, refund);
    }
}

/// What every synchronisation does: pools shrink to their threshold.
pub fn release_idle(m: &mut Machine) {
    let list: Vec<(H, u64)> = m.pools.iter().map(|(h, p)| (*h, p.threshold)).collect();
    for (h, keep) in list {
        shrink(m, h, keep);
    }
}

/// Memory of an alloc node: its address is fixed when the node is made, its
/// pages are taken at the first launch and kept until a trim.
pub struct GraphBlock {
    pub device: u32,
    pub span: u64,
    pub charged: bool,
}

/// Makes an alloc node's parameters, with a fresh address.
pub fn alloc_node(m: &mut Machine, device: u32, size: u64, pool: H) -> Result<Kind> {
    if size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let span = size.next_multiple_of(BLOCK);
    let addr = m.arena.take_blocks(span, BLOCK)?;
    m.graph_blocks.insert(
        addr,
        GraphBlock {
            device,
            span,
            charged: false,
        },
    );
    Ok(Kind::MemAlloc(MemAlloc {
        addr,
        size,
        device,
        pool,
    }))
}

/// Charges what a launch allocates, so that out-of-memory appears there.
pub fn prepare_launch(m: &mut Machine, plan: &[Step], auto_free: bool) -> Result {
    let freed: HashSet<u64> = plan
        .iter()
        .filter_map(|s| {
            if let Kind::MemFree(p) = s.kind {
                Some(p)
            } else {
                None
            }
        })
        .collect();
    for step in plan {
        let Kind::MemAlloc(a) = &step.kind else {
            continue;
        };
        let balanced = freed.contains(&a.addr);
        if !balanced && m.allocs.contains_key(&a.addr) {
            if !auto_free {
                return Err(Error::INVALID_VALUE);
            }
            crate::memory::drop_alloc(m, a.addr);
        }
        let Some(b) = m.graph_blocks.get(&a.addr) else {
            return Err(Error::INVALID_VALUE);
        };
        let (span, charged) = (b.span, b.charged);
        if !charged {
            m.charge(a.device, span)?;
            m.devices[a.device as usize].graph_mem.held += span;
            if let Some(b) = m.graph_blocks.get_mut(&a.addr) {
                b.charged = true;
            }
        }
        if !balanced {
            open(m, a);
        }
    }
    Ok(())
}

fn open(m: &mut Machine, a: &MemAlloc) {
    if !m.allocs.contains_key(&a.addr) {
        let ctx = m.devices[a.device as usize].primary;
        m.add_alloc(a.addr, a.size, MemoryKind::Graph, ctx, a.device);
        let span = m.graph_blocks.get(&a.addr).map_or(0, |b| b.span);
        m.devices[a.device as usize].graph_mem.live += span;
    }
}

/// An alloc node ran.
pub fn graph_alloc_now(a: &MemAlloc) {
    open(&mut lock(), a);
}

pub fn graph_free(m: &mut Machine, ptr: u64, a: &Alloc) {
    let span = m.graph_blocks.get(&ptr).map_or(0, |b| b.span);
    let heap = &mut m.devices[a.device as usize].graph_mem;
    heap.live = heap.live.saturating_sub(span);
}

/// cuDeviceGraphMemTrim: gives back what no graph allocation holds now.
pub fn graph_trim(device: u32) {
    let mut m = lock();
    let idle = |m: &Machine, p: u64| !m.allocs.contains_key(&p);
    let list: Vec<u64> = m
        .graph_blocks
        .iter()
        .filter(|(_, b)| b.charged && b.device == device)
        .map(|(p, _)| *p)
        .collect();
    for p in list {
        if idle(&m, p)
            && let Some(b) = m.graph_blocks.get_mut(&p)
        {
            b.charged = false;
            let span = b.span;
            m.refund(device, span);
            let heap = &mut m.devices[device as usize].graph_mem;
            heap.held = heap.held.saturating_sub(span);
        }
    }
}
