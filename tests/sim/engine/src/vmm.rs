//! Virtual memory management: addresses, physical memory, mappings.

use crate::abi::Location;
use crate::arena::BLOCK;
use crate::error::{Error, Result};
use crate::handle::H;
use crate::machine::{Machine, lock};
use crate::memory::Kind;
use crate::place::{PINNED, Place};

/// Recommended and minimum granularity.
pub const GRANULARITY: u64 = BLOCK;

pub struct Physical {
    pub place: Place,
    pub size: u64,
    /// Creation, imports and retains.
    pub refs: u32,
    pub maps: u32,
    /// The place of its pages in the arena.
    pub addr: u64,
    /// Pages of another process: the file they are in.
    pub foreign: Option<(i32, u64)>,
    pub handle_types: u32,
}

pub struct Reservation {
    pub size: u64,
}

fn aligned(size: u64) -> Result {
    if size == 0 || !size.is_multiple_of(GRANULARITY) { Err(Error::INVALID_VALUE) } else { Ok(()) }
}

pub fn reserve(size: u64, align: u64, hint: u64) -> Result<u64> {
    aligned(size)?;
    if align != 0 && !align.is_power_of_two() {
        return Err(Error::INVALID_VALUE);
    }
    let mut m = lock();
    let at = if hint == 0 { None } else { m.arena.take_at(hint, size) };
    let addr = match at {
        Some(addr) => addr,
        None => m.arena.take_blocks(size, align.max(BLOCK))?,
    };
    m.reservations.insert(addr, Reservation { size });
    Ok(addr)
}

pub fn address_free(addr: u64, size: u64) -> Result {
    let mut m = lock();
    if m.reservations.get(&addr).is_none_or(|r| r.size != size) {
        return Err(Error::INVALID_VALUE);
    }
    if m.allocs.range(addr..addr + size).next().is_some() {
        return Err(Error::INVALID_VALUE);
    }
    m.reservations.remove(&addr);
    m.arena.give_blocks(addr, size);
    Ok(())
}

/// Pinned memory at a location.
pub fn create(at: Location, size: u64, handle_types: u32) -> Result<H> {
    aligned(size)?;
    let mut m = lock();
    let place = Place::of(&m, PINNED, at)?;
    m.charge_at(place, size)?;
    let addr = match m.arena.take_blocks(size, BLOCK) {
        Ok(addr) => addr,
        Err(e) => {
            m.refund_at(place, size);
            return Err(e);
        }
    };
    let h = m.handles.make("physical memory");
    m.physical.insert(h, Physical { place, size, refs: 1, maps: 0, addr, foreign: None, handle_types });
    Ok(h)
}

pub fn retain(h: H) -> Result {
    lock().physical.get_mut(&h).ok_or(Error::INVALID_VALUE)?.refs += 1;
    Ok(())
}

/// The handle that is mapped at an address, retained.
pub fn retain_at(addr: u64) -> Result<H> {
    let mut m = lock();
    let Some((_, a)) = m.find(addr) else {
        return Err(Error::INVALID_VALUE);
    };
    let Kind::Mapped(h) = a.kind else {
        return Err(Error::INVALID_VALUE);
    };
    m.physical.get_mut(&h).ok_or(Error::INVALID_VALUE)?.refs += 1;
    Ok(h)
}

/// Mapped memory stays until it is unmapped.
pub fn release(h: H) -> Result {
    let mut m = lock();
    let p = m.physical.get_mut(&h).filter(|p| p.refs > 0).ok_or(Error::INVALID_VALUE)?;
    p.refs -= 1;
    collect(&mut m, h);
    Ok(())
}

fn collect(m: &mut Machine, h: H) {
    let Some(p) = m.physical.get(&h) else { return };
    if p.refs > 0 || p.maps > 0 {
        return;
    }
    if let Some(p) = m.physical.remove(&h) {
        match p.foreign {
            // SAFETY: `import` opened the descriptor. It left the table above with its entry, so it
            // is closed once.
            Some((fd, _)) => unsafe {
                libc::close(fd);
            },
            None => {
                m.arena.give_blocks(p.addr, p.size);
                m.refund_at(p.place, p.size);
            }
        }
        m.handles.retire("physical memory", h);
    }
}

pub fn map(addr: u64, size: u64, offset: u64, h: H) -> Result {
    aligned(size)?;
    let mut m = lock();
    let inside = m
        .reservations
        .range(..=addr)
        .next_back()
        .is_some_and(|(base, r)| addr + size <= base + r.size && addr.is_multiple_of(GRANULARITY));
    let p = m.physical.get(&h).ok_or(Error::INVALID_VALUE)?;
    let (device, phys, foreign) = (p.place.device().unwrap_or(0), p.addr, p.foreign);
    if offset != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    if !inside || size > p.size || m.allocs.range(addr..addr + size).next().is_some() {
        return Err(Error::INVALID_VALUE);
    }
    let (fd, at) = foreign.unwrap_or_else(|| (m.arena.fd, m.arena.offset(phys)));
    m.arena.back(addr, size, fd, at)?;
    let ctx = m.devices[device as usize].primary;
    m.add_alloc(addr, size, Kind::Mapped(h), ctx, device);
    if let Some(a) = m.allocs.get_mut(&addr) {
        a.accessible = false;
    }
    if let Some(p) = m.physical.get_mut(&h) {
        p.maps += 1;
    }
    Ok(())
}

/// The mappings that fill `[addr, addr+size)` exactly.
fn mappings(m: &Machine, addr: u64, size: u64) -> Result<Vec<u64>> {
    let mut at = addr;
    let mut list = Vec::new();
    while at < addr + size {
        let a = m.allocs.get(&at).filter(|a| matches!(a.kind, Kind::Mapped(_))).ok_or(Error::INVALID_VALUE)?;
        list.push(at);
        at += a.size;
    }
    if at == addr + size { Ok(list) } else { Err(Error::INVALID_VALUE) }
}

/// Unmaps whole mappings, or reserved addresses without mappings. It does not wait for work that uses them.
pub fn unmap(addr: u64, size: u64) -> Result {
    aligned(size)?;
    let mut m = lock();
    let reserved = m.reservations.range(..=addr).next_back();
    let inside = reserved.is_some_and(|(base, r)| addr + size <= base + r.size);
    if inside && m.allocs.range(addr..addr + size).next().is_none() {
        return Ok(());
    }
    for at in mappings(&m, addr, size)? {
        let Some(a) = m.allocs.remove(&at) else {
            continue;
        };
        m.arena.back(at, a.size, -1, 0)?;
        m.arena.host_access(at, a.size, false)?;
        if let Kind::Mapped(h) = a.kind {
            if let Some(p) = m.physical.get_mut(&h) {
                p.maps -= 1;
            }
            collect(&mut m, h);
        }
    }
    Ok(())
}

/// Lets the host's processors use mapped memory of the host.
pub fn set_host_access(addr: u64, size: u64) -> Result {
    aligned(size)?;
    let m = lock();
    for at in mappings(&m, addr, size)? {
        let Some(a) = m.allocs.get(&at) else { continue };
        let Kind::Mapped(h) = a.kind else { continue };
        let p = m.physical.get(&h).filter(|p| p.place.on_host()).ok_or(Error::INVALID_VALUE)?;
        m.arena.host_view(at, a.size, m.arena.offset(p.addr))?;
    }
    Ok(())
}

pub fn set_access(addr: u64, size: u64, accessible: bool) -> Result {
    aligned(size)?;
    let mut m = lock();
    for at in mappings(&m, addr, size)? {
        if let Some(a) = m.allocs.get_mut(&at) {
            a.accessible = accessible;
        }
    }
    Ok(())
}

/// A descriptor that another process can import.
pub fn export(h: H) -> Result<i32> {
    let m = lock();
    let p = m.physical.get(&h).ok_or(Error::INVALID_VALUE)?;
    if p.handle_types & 1 == 0 || p.foreign.is_some() {
        return Err(Error::NOT_SUPPORTED);
    }
    crate::ipc::describe_fd(m.arena.fd, m.arena.offset(p.addr), p.size)
}

pub fn import(fd: i32) -> Result<H> {
    let (file, off, size) = crate::ipc::open_described(fd)?;
    let mut m = lock();
    let h = m.handles.make("physical memory");
    let foreign = Some((file, off));
    m.physical
        .insert(h, Physical { place: Place::Device(0), size, refs: 1, maps: 0, addr: 0, foreign, handle_types: 1 });
    Ok(h)
}
