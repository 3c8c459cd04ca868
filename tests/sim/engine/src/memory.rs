//! Allocations of every kind, and which allocation a pointer belongs to; [`record`].

mod record;

use crate::arena::BLOCK;
use crate::capture;
use crate::config::{Managed, config};
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::place::Place;
use crate::queue::wait_all;
use crate::report;
use record::Record;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Managed,
    /// Page-locked host memory that the driver allocated.
    Host,
    /// The program's own memory, registered.
    Registered,
    /// Stream-ordered, from this pool.
    Pool(H),
    /// Held by an alloc node of a graph.
    Graph,
    /// A VMM mapping of this physical handle.
    Mapped(H),
    /// Opened from another process.
    Imported,
}

impl Kind {
    /// True if leak checks count it, since the program must free it.
    pub fn counts(self) -> bool {
        !matches!(self, Kind::Graph)
    }

    pub fn on_host(self) -> bool {
        matches!(self, Kind::Host | Kind::Registered)
    }

    /// True if its pages are the arena's at its own addresses.
    pub fn owns_arena(self) -> bool {
        matches!(self, Kind::Device | Kind::Managed | Kind::Pool(_) | Kind::Graph)
    }
}

pub struct Alloc {
    /// Bytes that were asked for.
    pub size: u64,
    /// Number of the allocation. No other one has it, at the same address neither.
    pub id: u64,
    pub kind: Kind,
    pub ctx: H,
    pub device: u32,
    pub flags: u32,
    /// For VMM mappings: whether access was granted.
    pub accessible: bool,
    /// True if a handle to it was given to other processes.
    pub exported: bool,
    /// The driver's own records of the allocation, in the program's heap.
    _record: Record,
}

impl Machine {
    pub fn add_alloc(&mut self, addr: u64, size: u64, kind: Kind, ctx: H, device: u32) {
        let (id, ctx) = (self.id(), self.owner(ctx));
        let a = Alloc {
            size,
            id,
            kind,
            ctx,
            device,
            flags: 0,
            accessible: true,
            exported: false,
            _record: Record::new(addr, size, id, crate::config::config().bare_records && id % 3 == 0),
        };
        self.allocs.insert(addr, a);
    }

    /// The allocation that contains `addr`, with its base.
    pub fn find(&self, addr: u64) -> Option<(u64, &Alloc)> {
        let (base, a) = self.allocs.range(..=addr).next_back()?;
        (addr < base + a.size.max(1)).then_some((*base, a))
    }

    /// The id of the live allocation at `addr`, if `[addr, addr+len)` is all
    /// live and accessible; adjacent VMM mappings count as one.
    pub fn cover(&self, addr: u64, len: u64) -> Option<u64> {
        let (base, first) = self.find(addr)?;
        if !first.accessible {
            return None;
        }
        let mut end = base + first.size;
        while end < addr + len {
            let next = self.allocs.get(&end)?;
            if !matches!(next.kind, Kind::Mapped(_)) || !next.accessible {
                return None;
            }
            end += next.size;
        }
        Some(first.id)
    }

    /// True if the host's processors hold the memory of an allocation.
    pub fn lies_on_host(&self, a: &Alloc) -> bool {
        match a.kind {
            Kind::Pool(pool) => self.pools.get(&pool).is_some_and(|pool| pool.place.on_host()),
            Kind::Mapped(h) => self.physical.get(&h).is_some_and(|p| p.place.on_host()),
            kind => kind.on_host(),
        }
    }

    /// True if the memory of an allocation is in a place that no driver has yet.
    pub fn lies_elsewhere(&self, a: &Alloc) -> bool {
        matches!(a.kind, Kind::Pool(pool) if self.pools.get(&pool).is_some_and(|p| matches!(p.place, Place::Later(_))))
    }

    /// True if the driver moves the memory of an allocation.
    pub fn is_managed(&self, a: &Alloc) -> bool {
        let of_pool = |pool| self.pools.get(&pool).is_some_and(|pool| matches!(pool.place, Place::Managed(..)));
        a.kind == Kind::Managed || matches!(a.kind, Kind::Pool(pool) if of_pool(pool))
    }

    pub fn device_of(&mut self, ctx: H) -> Result<u32> {
        Ok(self.context(ctx)?.device)
    }
}

/// cuMemAlloc: `size` bytes in the context's device.
pub fn alloc(ctx: H, size: u64) -> Result<u64> {
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    alloc_kind(&mut m, ctx, size, Kind::Device)
}

/// cuMemAllocManaged: readable by the host at the same address.
pub fn alloc_managed(ctx: H, size: u64, flags: u32) -> Result<u64> {
    if !matches!(flags, 1 | 2 | 4) {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    if config().managed == Managed::None {
        return Err(Error::NOT_SUPPORTED);
    }
    // Whole blocks, so that access for the host can be switched for this memory alone.
    let span = size.max(1).checked_next_multiple_of(BLOCK).ok_or(Error::OUT_OF_MEMORY)?;
    let device = m.device_of(ctx)?;
    // Its pages move to the device when they are used there, and may move back. If host and device
    // cannot use it at the same time, all of it has to fit on the device.
    if config().managed == Managed::Exclusive {
        m.charge(device, span)?;
    }
    let addr = m.arena.take_blocks(span, BLOCK)?;
    m.arena.host_access(addr, span, true)?;
    m.add_alloc(addr, size, Kind::Managed, ctx, device);
    if let Some(a) = m.allocs.get_mut(&addr) {
        a.flags = flags;
    }
    Ok(addr)
}

pub fn alloc_kind(m: &mut Machine, ctx: H, size: u64, kind: Kind) -> Result<u64> {
    if size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let device = m.device_of(ctx)?;
    if size > m.devices[device as usize].total {
        return Err(Error::OUT_OF_MEMORY);
    }
    let cost = m.arena.cost(device, size);
    m.charge(device, cost)?;
    let addr = m.arena.take(device, size).inspect_err(|_| m.refund(device, cost))?;
    m.add_alloc(addr, size, kind, ctx, device);
    Ok(addr)
}

/// cuMemFree: waits for all work of the memory's context first, of non-blocking streams
/// too, whichever context is current (measured on an H200, for any size). Anything but the start of a live
/// allocation gives 1.
pub fn free(ptr: u64) -> Result {
    free_by(ptr, false)
}

/// As [`free`], but with CUDA's rule for stream-ordered memory: it is freed without a wait (NVIDIA's reference of
/// cuMemFree: the caller has to make sure that no work uses it).
pub fn free_ordered_at_once(ptr: u64) -> Result {
    free_by(ptr, true)
}

fn free_by(ptr: u64, ordered_at_once: bool) -> Result {
    if ptr == 0 {
        return capture::forbid_unsafe(&mut lock());
    }
    let freeable = |k: Kind| matches!(k, Kind::Device | Kind::Managed | Kind::Pool(_) | Kind::Graph);
    let (fences, id) = {
        let mut m = lock();
        capture::forbid_unsafe(&mut m)?;
        let a = m.allocs.get(&ptr).filter(|a| freeable(a.kind)).ok_or(Error::INVALID_VALUE)?;
        let (device, ctx, id) = (a.device, a.ctx, a.id);
        if ordered_at_once && matches!(a.kind, Kind::Pool(_)) {
            drop_alloc(&mut m, ptr);
            return Ok(());
        }
        report::count("barriers", 1);
        (if crate::config::config().free_waits { m.free_fences(device, ctx) } else { Vec::new() }, id)
    };
    count_wait(&fences);
    wait_all(&fences);
    let mut m = lock();
    if m.allocs.get(&ptr).is_none_or(|a| a.id != id) {
        return Err(Error::INVALID_VALUE);
    }
    drop_alloc(&mut m, ptr);
    crate::pool::hold(&mut m, ptr, false);
    Ok(())
}

/// A call that waits for the device: counted if there is anything to wait for.
pub fn count_wait(fences: &[crate::queue::Fence]) {
    if fences.iter().any(|f| !f.reached()) {
        report::count("waits", 1);
    }
}

/// Removes an allocation at once, without regard to pending work.
pub fn drop_alloc(m: &mut Machine, ptr: u64) {
    let Some(a) = m.allocs.remove(&ptr) else {
        return;
    };
    match a.kind {
        Kind::Device => {
            let back = m.arena.give(ptr, a.size);
            m.refund(a.device, back);
        }
        Kind::Managed => {
            let span = a.size.max(1).next_multiple_of(BLOCK);
            let _ = m.arena.host_access(ptr, span, false);
            m.arena.give_blocks(ptr, span);
            if config().managed == Managed::Exclusive {
                m.refund(a.device, span);
            }
        }
        Kind::Pool(pool) => crate::pool::give(m, pool, ptr, a.size),
        Kind::Host => {
            // SAFETY: `alloc_host` mapped this range with this rounded size. The entry was taken
            // out of the table above, so it is unmapped once.
            unsafe { libc::munmap(ptr as *mut _, a.size.next_multiple_of(4096) as usize) };
        }
        Kind::Imported => crate::ipc::unmap(m, ptr, a.size),
        // A graph keeps its memory until a trim.
        Kind::Registered | Kind::Mapped(_) | Kind::Graph => {}
    }
}

/// Removes everything that ends with a context.
pub fn drop_context(m: &mut Machine, ctx: H) {
    crate::pool::waited(m, |freed| freed.ctx == ctx);
    let mine = |a: &Alloc| a.ctx == ctx && !matches!(a.kind, Kind::Mapped(_));
    let list: Vec<u64> = m.allocs.iter().filter(|(_, a)| mine(a)).map(|(p, _)| *p).collect();
    for p in list {
        drop_alloc(m, p);
    }
}

/// cuMemAllocHost and cuMemHostAlloc: page-locked host memory, 0 for size 0.
pub fn alloc_host(ctx: H, size: u64, flags: u32) -> Result<u64> {
    if flags & !7 != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    if size == 0 {
        return Ok(0);
    }
    let len = size.checked_next_multiple_of(4096).ok_or(Error::OUT_OF_MEMORY)?;
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free, so no other mapping is
    // touched.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(Error::OUT_OF_MEMORY);
    }
    let device = m.device_of(ctx)?;
    m.add_alloc(p as u64, size, Kind::Host, ctx, device);
    if let Some(a) = m.allocs.get_mut(&(p as u64)) {
        a.flags = flags;
    }
    Ok(p as u64)
}

/// cuMemFreeHost: waits for the device as well, since work may still read the memory.
pub fn free_host(ptr: u64) -> Result {
    if ptr == 0 {
        return Ok(());
    }
    let fences = {
        let mut m = lock();
        capture::forbid_unsafe(&mut m)?;
        let a = m.allocs.get(&ptr).filter(|a| a.kind == Kind::Host).ok_or(Error::INVALID_VALUE)?;
        let device = a.device;
        m.device_fences(device)
    };
    wait_all(&fences);
    drop_alloc(&mut lock(), ptr);
    Ok(())
}

pub fn register(ctx: H, ptr: u64, size: u64, flags: u32) -> Result {
    if ptr == 0 || size == 0 || flags & !0xf != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    let overlaps = m.allocs.range(..ptr + size).next_back().is_some_and(|(b, a)| b + a.size > ptr);
    if overlaps {
        return Err(Error::HOST_ALREADY_REGISTERED);
    }
    let device = m.device_of(ctx)?;
    m.add_alloc(ptr, size, Kind::Registered, ctx, device);
    if let Some(a) = m.allocs.get_mut(&ptr) {
        a.flags = flags;
    }
    Ok(())
}

pub fn unregister(ptr: u64) -> Result {
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    match m.allocs.get(&ptr) {
        Some(a) if a.kind == Kind::Registered => {
            m.allocs.remove(&ptr);
            Ok(())
        }
        _ => Err(Error::HOST_NOT_REGISTERED),
    }
}

/// `(free, total)` bytes of a device. Memory that graphs and pools hold is not free.
pub fn info(device: u32) -> (u64, u64) {
    let m = lock();
    let d = &m.devices[device as usize];
    let of_all = if device == 0 { crate::card::used() } else { None };
    (d.total - of_all.unwrap_or(d.used), d.total)
}

/// `(base, size)` as asked for. Host memory is not a device range.
pub fn address_range(ptr: u64) -> Result<(u64, u64)> {
    let m = lock();
    let is_known = |(base, a): &(u64, &Alloc)| a.kind != Kind::Registered && crate::pool::is_known(&m, *base, a);
    let (base, a) = m.find(ptr).filter(is_known).ok_or(Error::NOT_FOUND)?;
    Ok((base, a.size))
}

/// Memory for `height` rows of a length that suits the device: its address, and the length of a row.
pub fn alloc_pitch(ctx: H, width: u64, height: u64) -> Result<(u64, u64)> {
    if width == 0 || height == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let pitch = width.checked_next_multiple_of(512).ok_or(Error::OUT_OF_MEMORY)?;
    let size = pitch.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?;
    Ok((alloc(ctx, size)?, pitch))
}
