//! Device memory, and attributes of pointers.

use crate::abi::{Out, answer, device};
use crate::reentry;
use crate::structs::{Extent, PitchedPtr, PointerAttributes};
use gpumem_sim_engine::memory;
use gpumem_sim_engine::{Error, Result, lock};

/// Rows begin at multiples of this.
const PITCH: usize = 256;

fn pitched(width: usize, rows: usize) -> Result<(usize, usize)> {
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(Error::INVALID_VALUE)?;
    Ok((pitch, pitch.checked_mul(rows).ok_or(Error::OUT_OF_MEMORY)?))
}

hip! {
    /// A request of 0 bytes gives NULL and no error.
    Ctx hipMalloc [] (c, out: Out<u64>, bytes: usize) {
        out.need()?;
        if bytes == 0 {
            return out.set(0);
        }
        out.set(memory::alloc(c.ctx, bytes as u64)?)
    }
    /// Fine-grained, uncached and contiguous memory are plain memory here;
    /// signals have 8 bytes.
    Ctx hipExtMallocWithFlags [] (c, out: Out<u64>, bytes: usize, flags: u32) {
        out.need()?;
        if flags > 4 || (flags == 2 && bytes != 8) {
            return Err(Error::INVALID_VALUE);
        }
        if bytes == 0 {
            return out.set(0);
        }
        out.set(memory::alloc(c.ctx, bytes as u64)?)
    }
    Ctx hipMallocPitch [] (c, out: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        out.need()?;
        pitch.need()?;
        let (row, bytes) = pitched(width, height)?;
        let mut ptr = 0;
        answer(reentry::malloc(Out::at(&raw mut ptr as usize), bytes))?;
        pitch.set(row)?;
        out.set(ptr)
    }
    Ctx hipMemAllocPitch [] (c, out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if !matches!(element, 4 | 8 | 16) {
            return Err(Error::INVALID_VALUE);
        }
        answer(reentry::malloc_pitch(out, pitch, width, height))
    }
    Ctx hipMalloc3D [] (c, out: Out<PitchedPtr>, size: Extent) {
        out.need()?;
        let rows = size.height.checked_mul(size.depth).ok_or(Error::INVALID_VALUE)?;
        let (pitch, bytes) = pitched(size.width, rows)?;
        let mut ptr = 0;
        answer(reentry::malloc(Out::at(&raw mut ptr as usize), bytes))?;
        out.set(PitchedPtr { ptr, pitch, xsize: size.width, ysize: size.height })
    }
    Ctx hipMallocManaged [] (c, out: Out<u64>, bytes: usize, flags: u32) {
        out.need()?;
        if bytes == 0 || !matches!(flags, 1 | 2) {
            return Err(Error::INVALID_VALUE);
        }
        out.set(memory::alloc_managed(c.ctx, bytes as u64, flags)?)
    }
    /// Waits for the device first.
    Ctx hipFree [] (c, ptr: u64) { memory::free(ptr) }
    Ctx hipMemGetInfo [] (c, free: Out<usize>, total: Out<usize>) {
        let (f, t) = memory::info(device() as u32);
        free.put(f as usize);
        total.put(t as usize);
        Ok(())
    }
    Ctx hipMemGetAddressRange [] (c, base: Out<u64>, size: Out<usize>, ptr: u64) {
        let (b, s) = memory::address_range(ptr)?;
        base.put(b);
        size.put(s as usize);
        Ok(())
    }
    Ctx hipMemPtrGetInfo [] (c, ptr: u64, size: Out<usize>) {
        let m = lock();
        let a = m.allocs.get(&ptr).ok_or(Error::INVALID_VALUE)?;
        size.set(a.size as usize)
    }
    /// Memory that HIP does not know: success, type unregistered (from 6.0 on).
    Ctx hipPointerGetAttributes [] (c, out: Out<PointerAttributes>, ptr: u64) {
        let m = lock();
        let Some((_, a)) = m.find(ptr) else {
            return out.set(PointerAttributes { host: ptr, ..PointerAttributes::default() });
        };
        let (host, managed) = (m.lies_on_host(a), m.is_managed(a));
        out.set(PointerAttributes {
            kind: if managed { 3 } else if host { 1 } else { 2 },
            device: a.device as i32,
            device_ptr: ptr,
            host: if host || managed { ptr } else { 0 },
            managed: managed as u32,
            flags: a.flags,
        })
    }
}
