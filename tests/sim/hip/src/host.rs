//! Host memory that the device may use.

use crate::abi::{Out, answer};
use crate::reentry;
use gpumem_sim_engine::{Error, Result, lock, memory};

/// The flags that the engine knows: portable, mapped, write-combined.
const COMMON: u32 = 7;
/// All flags: those from portable to write-combined, NUMA, coherent, non-coherent.
const KNOWN: u32 = COMMON | 0xe000_0000;

fn flags_of(flags: u32) -> Result<u32> {
    let both = flags & 0xc000_0000 == 0xc000_0000;
    if flags & !KNOWN != 0 || both { Err(Error::INVALID_VALUE) } else { Ok(flags & COMMON) }
}

hip! {
    Ctx hipHostMalloc [] (c, out: Out<u64>, bytes: usize, flags: u32) {
        out.need()?;
        let flags = flags_of(flags)?;
        out.set(memory::alloc_host(c.ctx, bytes as u64, flags)?)
    }
    Ctx hipHostAlloc [] (c, out: Out<u64>, bytes: usize, flags: u32) {
        answer(reentry::host_malloc(out, bytes, flags))
    }
    /// The same as hipHostMalloc, by a name of its own (ROCm 6.3).
    Ctx hipExtHostAlloc [] (c, out: Out<u64>, bytes: usize, flags: u32) {
        out.need()?;
        let flags = flags_of(flags)?;
        out.set(memory::alloc_host(c.ctx, bytes as u64, flags)?)
    }
    Ctx hipMallocHost [] (c, out: Out<u64>, bytes: usize) { answer(reentry::host_malloc(out, bytes, 0)) }
    Ctx hipMemAllocHost [] (c, out: Out<u64>, bytes: usize) { answer(reentry::host_malloc(out, bytes, 0)) }
    /// Waits for the device first.
    Ctx hipHostFree [] (c, ptr: u64) { memory::free_host(ptr) }
    Ctx hipFreeHost [] (c, ptr: u64) { answer(reentry::host_free(ptr)) }
    Ctx hipHostRegister [] (c, ptr: u64, bytes: usize, flags: u32) {
        memory::register(c.ctx, ptr, bytes as u64, flags & 0xf)
    }
    Ctx hipHostUnregister [] (c, ptr: u64) { memory::unregister(ptr) }
    Ctx hipHostGetDevicePointer [] (c, out: Out<u64>, ptr: u64, flags: u32) {
        let m = lock();
        m.find(ptr).filter(|(_, a)| flags == 0 && a.kind.on_host()).ok_or(Error::INVALID_VALUE)?;
        out.set(ptr)
    }
    Ctx hipHostGetFlags [] (c, out: Out<u32>, ptr: u64) {
        let m = lock();
        let (_, a) = m.find(ptr).filter(|(_, a)| a.kind.on_host()).ok_or(Error::INVALID_VALUE)?;
        out.set(a.flags)
    }
}
