//! Stream-ordered memory: pools, and the memory of alloc nodes of graphs.

use crate::abi::Location;
use crate::arena::{BLOCK, carve, release};
use crate::capture;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory::Kind as MemoryKind;
use crate::node::{Kind, MemAlloc};
use crate::place::Place;
use crate::queue::wait_all;
use crate::stream;
use crate::work::Step;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::OnceLock;

/// Pools take memory from the device in steps of this (measured on an H200).
const CHUNK: u64 = 32 << 20;

pub struct Pool {
    pub place: Place,
    /// Bytes that stay reserved when the program synchronises.
    pub threshold: u64,
    pub flags: HashMap<u32, u32>,
    chunks: BTreeMap<u64, Chunk>,
    /// Bytes in use, as asked for.
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    /// Made by the program, not by the driver.
    pub created: bool,
    /// Destroyed while some of its memory was still in use.
    dying: bool,
}

struct Chunk {
    len: u64,
    live: u32,
    free: BTreeMap<u64, u64>,
}

impl Pool {
    pub fn at(place: Place) -> Pool {
        Pool {
            place,
            threshold: 0,
            flags: HashMap::from([(1, 1), (2, 1), (3, 1)]),
            chunks: BTreeMap::new(),
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            created: false,
            dying: false,
        }
    }
}

/// `cuMemPoolExportPointer`: where memory of a pool lies, for others.
pub fn export_pointer(ptr: u64) -> Result<[u64; 8]> {
    let m = lock();
    let (base, a) = m.find(ptr).filter(|(_, a)| matches!(a.kind, MemoryKind::Pool(_))).ok_or(Error::INVALID_VALUE)?;
    Ok([base, a.size, a.id, 0, 0, 0, 0, 0])
}

pub fn create(alloc_type: u32, at: Location) -> Result<H> {
    let mut m = lock();
    let place = Place::of(&m, alloc_type, at)?;
    let h = m.handles.make("memory pool");
    m.pools.insert(h, Pool { created: true, ..Pool::at(place) });
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
    m.current_pools.retain(|_, current| *current != h);
    let p = m.pool(h)?;
    p.dying = true;
    p.threshold = 0;
    collect(&mut m, h);
    Ok(())
}

fn collect(m: &mut Machine, h: H) {
    if m.pools.get(&h).is_some_and(|p| p.dying && p.chunks.is_empty()) {
        m.pools.remove(&h);
        m.handles.retire("memory pool", h);
    }
}

/// cuMemAllocAsync: from the device's current pool (`pool` 0) or a given one.
/// In a capture this is an alloc node.
pub fn alloc(ctx: H, s: H, size: u64, pool: H) -> Result<u64> {
    let mut m = lock();
    if size == 0 {
        return Ok(0);
    }
    let device = m.device_of(ctx)?;
    let pool = if pool == 0 { m.devices[device as usize].current_pool } else { pool };
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
    // Memory whose free is still pending may be enough.
    let fences = m.device_fences(device);
    drop(m);
    wait_all(&fences);
    let mut m = lock();
    release_idle(&mut m);
    take(&mut m, ctx, device, pool, size)
}

fn take(m: &mut Machine, ctx: H, device: u32, pool: H, size: u64) -> Result<u64> {
    let need = size.checked_next_multiple_of(512).ok_or(Error::OUT_OF_MEMORY)?;
    let p = m.pool(pool)?;
    let old = p.chunks.iter_mut().find_map(|(base, c)| Some((*base, carve(&mut c.free, need, 512)?)));
    let (base, off) = match old {
        Some(found) => found,
        None => {
            let len = need.checked_next_multiple_of(CHUNK).ok_or(Error::OUT_OF_MEMORY)?;
            let place = m.pool(pool)?.place;
            m.charge_at(place, len)?;
            let base = match m.arena.take_blocks(len, BLOCK) {
                Ok(base) => base,
                Err(e) => {
                    m.refund_at(place, len);
                    return Err(e);
                }
            };
            if place.host_can_use() {
                m.arena.host_access(base, len, true)?;
            }
            let p = m.pool(pool)?;
            let free = if len > need { BTreeMap::from([(need, len - need)]) } else { BTreeMap::new() };
            p.chunks.insert(base, Chunk { len, live: 0, free });
            p.reserved += len;
            p.reserved_high = p.reserved_high.max(p.reserved);
            (base, 0)
        }
    };
    let p = m.pool(pool)?;
    if let Some(c) = p.chunks.get_mut(&base) {
        c.live += 1;
    }
    p.used += size;
    p.used_high = p.used_high.max(p.used);
    m.add_alloc(base + off, size, MemoryKind::Pool(pool), ctx, device);
    Ok(base + off)
}

/// cuMemFreeAsync. It also frees memory of cuMemAlloc. That memory stays an allocation until
/// the stream reaches the free. It is the device's again once the program waits for that stream, or for its context
/// (measured on an H200, driver 580: neither a query nor a trim is enough, and no other stream is waited for).
pub fn free(ptr: u64, s: H) -> Result {
    let mut m = lock();
    if ptr == 0 {
        return Ok(());
    }
    if capture::active(&mut m, s)? {
        if !m.graph_blocks.contains_key(&ptr) {
            return Err(Error::INVALID_VALUE);
        }
        return capture::add(&mut m, s, Kind::MemFree(ptr)).map(drop);
    }
    capture::forbid_unsafe(&mut m)?;
    let a = m.allocs.get_mut(&ptr).ok_or(Error::INVALID_VALUE)?;
    match a.kind {
        MemoryKind::Device => {
            take_host_memory();
            m.freeing.insert(ptr, s);
            // The stream has no work before it, and the free does not wait for other streams.
            let at = m.stream(s)?;
            if !at.blocking() && at.queue.idle() {
                free_in(&mut m, ptr);
                return Ok(());
            }
            return stream::submit(&mut m, s, Kind::FreeAsync(ptr)).map(drop);
        }
        MemoryKind::Managed => return Err(Error::NOT_SUPPORTED),
        MemoryKind::Pool(_) | MemoryKind::Graph if a.flags & PENDING == 0 => a.flags |= PENDING,
        _ => return Err(Error::INVALID_VALUE),
    }
    hold(&mut m, ptr, false);
    let freed = stream::submit(&mut m, s, Kind::FreeAsync(ptr)).map(drop);
    if freed.is_err()
        && let Some(a) = m.allocs.get_mut(&ptr)
    {
        a.flags &= !PENDING;
        hold(&mut m, ptr, true);
    }
    freed
}

/// Memory of an alloc node is allocated for the program from a launch on, or has been freed by it.
pub fn hold(m: &mut Machine, ptr: u64, held: bool) {
    if let Some(block) = m.graph_blocks.get_mut(&ptr) {
        block.held = held;
    }
}

/// True if the driver knows a live allocation there, whatever work is still to come (measured on an H200, driver 580): one
/// whose free was submitted is none any more, and that of a graph which frees it never was.
pub fn is_known(m: &Machine, base: u64, a: &crate::memory::Alloc) -> bool {
    match a.kind {
        MemoryKind::Graph => m.graph_blocks.get(&base).is_none_or(|block| block.held),
        _ => a.flags & PENDING == 0,
    }
}

/// Host bytes that a process holds for good after its first free of this kind (measured on an H200, driver 580).
fn take_host_memory() {
    const HELD: usize = 10 << 20;
    static TAKEN: OnceLock<Vec<u8>> = OnceLock::new();
    TAKEN.get_or_init(|| vec![1; HELD]);
}

/// A stream-ordered allocation whose free was submitted.
const PENDING: u32 = 1 << 31;

/// The stream reached a free.
pub fn free_now(ptr: u64) {
    free_in(&mut lock(), ptr);
}

fn free_in(m: &mut Machine, ptr: u64) {
    let ours = |k: MemoryKind| matches!(k, MemoryKind::Pool(_) | MemoryKind::Graph | MemoryKind::Device);
    let Some(kind) = m.allocs.get(&ptr).map(|a| a.kind).filter(|kind| ours(*kind)) else {
        return;
    };
    let stream = m.freeing.remove(&ptr).filter(|_| kind == MemoryKind::Device);
    match (stream, m.allocs.get(&ptr).map(|a| (a.ctx, a.device, a.size))) {
        (Some(stream), Some((ctx, device, size))) => {
            m.allocs.remove(&ptr);
            m.freed.push(Freed { ptr, size, device, ctx, stream });
        }
        _ => crate::memory::drop_alloc(m, ptr),
    }
}

/// Memory of cuMemAlloc that a stream has freed and that has not gone back to the device yet.
pub struct Freed {
    ptr: u64,
    size: u64,
    device: u32,
    pub ctx: H,
    pub stream: H,
}

/// The program has waited for a stream or a context. The memory that was freed there goes back to the device.
pub fn waited(m: &mut Machine, here: impl Fn(&Freed) -> bool) {
    let (back, stay) = std::mem::take(&mut m.freed).into_iter().partition(here);
    m.freed = stay;
    for Freed { ptr, size, device, .. } in back {
        let bytes = m.arena.give(ptr, size);
        m.refund(device, bytes);
    }
}

/// Takes memory back into its pool.
pub fn give(m: &mut Machine, pool: H, ptr: u64, size: u64) {
    let Some(p) = m.pools.get_mut(&pool) else {
        return;
    };
    p.used = p.used.saturating_sub(size);
    if let Some((base, c)) = p.chunks.range_mut(..=ptr).next_back() {
        release(&mut c.free, ptr - base, size.next_multiple_of(512));
        c.live -= 1;
    }
}

/// Gives idle chunks back until at most `keep` bytes stay reserved.
pub fn shrink(m: &mut Machine, pool: H, keep: u64) {
    let Some(p) = m.pools.get_mut(&pool) else {
        return;
    };
    let place = p.place;
    let mut back = Vec::new();
    for (base, c) in p.chunks.iter().rev().filter(|(_, c)| c.live == 0) {
        if p.reserved <= keep {
            break;
        }
        p.reserved -= c.len;
        back.push((*base, c.len));
    }
    for (base, len) in back {
        if let Some(p) = m.pools.get_mut(&pool) {
            p.chunks.remove(&base);
        }
        if place.host_can_use() {
            let _ = m.arena.host_access(base, len, false);
        }
        m.arena.give_blocks(base, len);
        m.refund_at(place, len);
    }
    collect(m, pool);
}

/// Every synchronisation shrinks pools to their threshold.
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
    /// Allocated by a launch, and not freed since.
    pub held: bool,
}

/// Makes an alloc node's parameters, with a fresh address.
pub fn alloc_node(m: &mut Machine, device: u32, size: u64, pool: H) -> Result<Kind> {
    if size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let span = size.next_multiple_of(CHUNK);
    let addr = m.arena.take_blocks(span, BLOCK)?;
    m.graph_blocks.insert(addr, GraphBlock { device, span, charged: false, held: false });
    Ok(Kind::MemAlloc(MemAlloc { addr, size, device, pool }))
}

/// Charges what a launch allocates, so that out-of-memory appears there.
pub fn prepare_launch(m: &mut Machine, plan: &[Step], auto_free: bool) -> Result {
    let freed: HashSet<u64> =
        plan.iter().filter_map(|s| if let Kind::MemFree(p) = s.kind { Some(p) } else { None }).collect();
    for step in plan {
        let Kind::MemAlloc(a) = &step.kind else {
            continue;
        };
        let balanced = freed.contains(&a.addr);
        // A previous allocation whose free is pending will be gone when this launch runs.
        let open_now = m.allocs.get(&a.addr).is_some_and(|x| x.flags & PENDING == 0);
        if !balanced && open_now {
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
            let heap = &mut m.devices[a.device as usize].graph_mem;
            heap.live += span;
            heap.held = heap.held.max(heap.live);
            if let Some(b) = m.graph_blocks.get_mut(&a.addr) {
                b.charged = true;
            }
        }
        if !balanced {
            open(m, a);
            hold(m, a.addr, true);
        }
    }
    let made: HashSet<u64> =
        plan.iter().filter_map(|s| if let Kind::MemAlloc(a) = &s.kind { Some(a.addr) } else { None }).collect();
    freed.difference(&made).for_each(|&addr| hold(m, addr, false));
    Ok(())
}

fn open(m: &mut Machine, a: &MemAlloc) {
    if !m.allocs.contains_key(&a.addr) {
        let ctx = m.devices[a.device as usize].primary;
        m.add_alloc(a.addr, a.size, MemoryKind::Graph, ctx, a.device);
    }
}

/// An alloc node ran.
pub fn graph_alloc_now(a: &MemAlloc) {
    open(&mut lock(), a);
}

/// cuDeviceGraphMemTrim: gives back memory that no graph allocation holds now.
pub fn graph_trim(device: u32) {
    let mut m = lock();
    let idle = |m: &Machine, p: u64| !m.allocs.contains_key(&p);
    let list: Vec<u64> =
        m.graph_blocks.iter().filter(|(_, b)| b.charged && b.device == device).map(|(p, _)| *p).collect();
    for p in list {
        if idle(&m, p)
            && let Some(b) = m.graph_blocks.get_mut(&p)
        {
            b.charged = false;
            let span = b.span;
            m.refund(device, span);
            let heap = &mut m.devices[device as usize].graph_mem;
            heap.live = heap.live.saturating_sub(span);
        }
    }
}
