//! Allocations, host memory, and attributes of pointers.

use crate::abi::{H, In, Out};
use crate::structs::Location;
use gpumem_sim_engine::machine::Machine;
use gpumem_sim_engine::memory::{self, Kind};
use gpumem_sim_engine::{Error, Result, capture, context, lock};

mod attribute {
    pub const CONTEXT: u32 = 1;
    pub const MEMORY_TYPE: u32 = 2;
    pub const DEVICE_POINTER: u32 = 3;
    pub const HOST_POINTER: u32 = 4;
    pub const SYNC_MEMOPS: u32 = 6;
    pub const BUFFER_ID: u32 = 7;
    pub const IS_MANAGED: u32 = 8;
    pub const DEVICE_ORDINAL: u32 = 9;
    pub const IS_LEGACY_IPC: u32 = 10;
    pub const RANGE_START: u32 = 11;
    pub const RANGE_SIZE: u32 = 12;
    pub const MAPPED: u32 = 13;
    pub const HANDLE_TYPES: u32 = 14;
    pub const RDMA: u32 = 15;
    pub const ACCESS: u32 = 16;
    pub const MEMPOOL: u32 = 17;
}

/// One attribute of a pointer, as bytes of its own size. Unknown pointers:
/// `None`.
fn pointer_attribute(m: &Machine, ptr: u64, id: u32) -> Result<Option<Vec<u8>>> {
    use attribute::*;
    if !(1..=22).contains(&id) || id == 5 {
        return Err(Error::INVALID_VALUE);
    }
    let Some((base, a)) = m.find(ptr) else {
        return Ok(None);
    };
    let word = |v: u64| v.to_le_bytes().to_vec();
    let int = |v: u32| v.to_le_bytes().to_vec();
    let (host, managed) = (m.lies_on_host(a), m.is_managed(a));
    Ok(Some(match id {
        CONTEXT => word(if matches!(a.kind, Kind::Pool(_) | Kind::Mapped(_) | Kind::Graph) { 0 } else { a.ctx as u64 }),
        MEMORY_TYPE if m.lies_elsewhere(a) => int(9),
        MEMORY_TYPE => int(if host { 1 } else { 2 }),
        DEVICE_POINTER => word(ptr),
        HOST_POINTER if host || managed => word(ptr),
        HOST_POINTER => return Err(Error::INVALID_VALUE),
        SYNC_MEMOPS => int(a.flags >> 30 & 1),
        BUFFER_ID => word(a.id),
        IS_MANAGED => int(managed as u32),
        DEVICE_ORDINAL => int(a.device),
        IS_LEGACY_IPC => int((a.kind == Kind::Device) as u32),
        RANGE_START => word(base),
        RANGE_SIZE => word(a.size),
        MAPPED => int(a.accessible as u32),
        HANDLE_TYPES => int(0),
        RDMA => int(!host as u32),
        ACCESS => int(3),
        MEMPOOL => word(if let Kind::Pool(p) = a.kind { p as u64 } else { 0 }),
        _ => word(0),
    }))
}

/// Returns the answer of cuPointerGetAttributes for an unknown pointer.
fn absent(id: u32, ptr: u64) -> Vec<u8> {
    match id {
        attribute::HOST_POINTER => ptr.to_le_bytes().to_vec(),
        attribute::DEVICE_ORDINAL => (-2i32).to_le_bytes().to_vec(),
        attribute::MEMORY_TYPE | attribute::IS_MANAGED | attribute::MAPPED => vec![0; 4],
        _ => vec![0; 8],
    }
}

fn host_pointer(ptr: u64) -> Result<u64> {
    let m = lock();
    m.find(ptr).filter(|(_, a)| a.kind.on_host()).map(|_| ptr).ok_or(Error::INVALID_VALUE)
}

cu! {
    /// Sets its result to 0 when it is refused, without a current context too
    /// (H200, driver 580).
    Init cuMemAlloc [cuMemAlloc_v2 3020] [] (c, out: Out<u64>, size: usize) {
        out.need()?;
        out.put(0);
        let ctx = context::require(&mut lock())?;
        out.set(memory::alloc(ctx, size as u64)?)
    }
    Ctx cuMemAllocPitch [cuMemAllocPitch_v2 3020] []
    (c, out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        out.need()?;
        pitch.need()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(Error::INVALID_VALUE);
        }
        let (ptr, p) = memory::alloc_pitch(c.ctx, width as u64, height as u64)?;
        pitch.set(p as usize)?;
        out.set(ptr)
    }
    Ctx cuMemAllocManaged [cuMemAllocManaged 6000] [] (c, out: Out<u64>, size: usize, flags: u32) {
        out.need()?;
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(memory::alloc_managed(c.ctx, size as u64, flags)?)
    }
    /// Works without a current context.
    Init cuMemFree [cuMemFree_v2 3020] [] (c, ptr: u64) {
        context::check_current(&mut lock())?;
        memory::free_ordered_at_once(ptr)
    }
    Ctx cuMemGetInfo [cuMemGetInfo_v2 3020] [] (c, free: Out<usize>, total: Out<usize>) {
        let device = lock().context(c.ctx)?.device;
        let (f, t) = memory::info(device);
        free.need()?;
        total.set(t as usize)?;
        free.set(f as usize)
    }
    Ctx cuMemGetAddressRange [cuMemGetAddressRange_v2 3020] [] (c, base: Out<u64>, size: Out<usize>, ptr: u64) {
        let (b, s) = memory::address_range(ptr)?;
        base.put(b);
        size.put(s as usize);
        Ok(())
    }
    Ctx cuMemAllocHost [cuMemAllocHost_v2 3020] [] (c, out: Out<u64>, size: usize) {
        out.need()?;
        out.set(memory::alloc_host(c.ctx, size as u64, 0)?)
    }
    Ctx cuMemHostAlloc [cuMemHostAlloc 2020] [] (c, out: Out<u64>, size: usize, flags: u32) {
        out.need()?;
        out.set(memory::alloc_host(c.ctx, size as u64, flags)?)
    }
    Ctx cuMemFreeHost [cuMemFreeHost 2000] [] (c, ptr: u64) { memory::free_host(ptr) }
    Ctx cuMemHostRegister [cuMemHostRegister_v2 6050] [] (c, ptr: u64, size: usize, flags: u32) {
        memory::register(c.ctx, ptr, size as u64, flags)
    }
    Ctx cuMemHostUnregister [cuMemHostUnregister 4000] [] (c, ptr: u64) { memory::unregister(ptr) }
    Ctx cuMemHostGetDevicePointer [cuMemHostGetDevicePointer_v2 3020] [] (c, out: Out<u64>, ptr: u64, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        out.set(host_pointer(ptr)?)
    }
    Ctx cuMemHostGetFlags [cuMemHostGetFlags 2030] [] (c, out: Out<u32>, ptr: u64) {
        let m = lock();
        let (_, a) = m.find(ptr).filter(|(_, a)| a.kind.on_host()).ok_or(Error::INVALID_VALUE)?;
        out.set(a.flags)
    }
    Init cuPointerGetAttribute [cuPointerGetAttribute 4000] [] (c, out: Out<u8>, id: u32, ptr: u64) {
        let bytes = pointer_attribute(&lock(), ptr, id)?.ok_or(Error::INVALID_VALUE)?;
        out.need()?.fill(bytes.len(), bytes.iter().copied());
        Ok(())
    }
    Init cuPointerGetAttributes [cuPointerGetAttributes 7000] []
    (c, count: u32, ids: In<u32>, out: In<usize>, ptr: u64) {
        let (ids, places) = (ids.list(count as usize)?, out.list(count as usize)?);
        let m = lock();
        for (id, place) in ids.into_iter().zip(places) {
            let bytes = match pointer_attribute(&m, ptr, id) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => absent(id, ptr),
                Err(_) if id == attribute::HOST_POINTER => absent(id, 0),
                Err(e) => return Err(e),
            };
            Out::<u8>::at(place).need()?.fill(bytes.len(), bytes.iter().copied());
        }
        Ok(())
    }
    Init cuPointerSetAttribute [cuPointerSetAttribute 6000] [] (c, value: In<u32>, id: u32, ptr: u64) {
        let on = value.get()? != 0;
        let mut m = lock();
        let base = m.find(ptr).map(|(b, _)| b).ok_or(Error::INVALID_VALUE)?;
        if id != attribute::SYNC_MEMOPS {
            return Err(Error::INVALID_VALUE);
        }
        if let Some(a) = m.allocs.get_mut(&base) {
            a.flags = a.flags & !(1 << 30) | (on as u32) << 30;
        }
        Ok(())
    }
    Ctx cuMemAdvise [cuMemAdvise_v2 12020] [] (c, ptr: u64, size: usize, advice: u32, at: Location) {
        let _ = (size, advice, at.id);
        lock().find(ptr).map(|_| ()).ok_or(Error::INVALID_VALUE)
    }
    Ctx cuMemAdvise [cuMemAdvise 8000] [] (c, ptr: u64, size: usize, advice: u32, dev: i32) {
        let _ = (size, advice, dev);
        lock().find(ptr).map(|_| ()).ok_or(Error::INVALID_VALUE)
    }
    Ctx cuMemPrefetchAsync [cuMemPrefetchAsync 8000] [cuMemPrefetchAsync_ptsz 8000]
    (c, ptr: u64, size: usize, dev: i32, h: H) {
        let _ = (size, dev, c.stream(h)?);
        prefetch(ptr)
    }
    Ctx cuMemPrefetchAsync [cuMemPrefetchAsync_v2 12020] [cuMemPrefetchAsync_v2_ptsz 12020]
    (c, ptr: u64, size: usize, at: Location, flags: u32, h: H) {
        let _ = (size, at.id, flags, c.stream(h)?);
        prefetch(ptr)
    }
    Ctx cuMemRangeGetAttribute [cuMemRangeGetAttribute 8000] []
    (c, out: Out<u32>, size: usize, id: u32, ptr: u64, count: usize) {
        let _ = (id, count);
        lock().find(ptr).filter(|(_, a)| a.kind == Kind::Managed).ok_or(Error::INVALID_VALUE)?;
        out.need()?.fill(size / 4, std::iter::repeat_n(0, size / 4));
        Ok(())
    }
    Ctx cuStreamAttachMemAsync [cuStreamAttachMemAsync 6000] [cuStreamAttachMemAsync_ptsz 7000]
    (c, h: H, ptr: u64, size: usize, flags: u32) {
        let _ = (size, flags, c.stream(h)?);
        prefetch(ptr)
    }
}

fn prefetch(ptr: u64) -> Result {
    let mut m = lock();
    capture::forbid_unsafe(&mut m)?;
    m.find(ptr).filter(|(_, a)| a.kind == Kind::Managed).map(|_| ()).ok_or(Error::INVALID_VALUE)
}
