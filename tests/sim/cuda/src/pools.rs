//! Stream-ordered allocation and memory pools.

use crate::abi::{H, In, Out};
use crate::structs::{AccessDesc, Location, PoolProps};
use gpumem_sim_engine::{Error, Result, capture, lock, pool};

cu! {
    Ctx cuMemAllocAsync [cuMemAllocAsync 11020] [cuMemAllocAsync_ptsz 11020] (c, out: Out<u64>, size: usize, s: H) {
        out.need()?;
        out.set(pool::alloc(c.ctx, c.stream(s)?, size as u64, 0)?)
    }
    Ctx cuMemAllocFromPoolAsync [cuMemAllocFromPoolAsync 11020] [cuMemAllocFromPoolAsync_ptsz 11020]
    (c, out: Out<u64>, size: usize, h: H, s: H) {
        out.need()?;
        lock().pool(h)?;
        out.set(pool::alloc(c.ctx, c.stream(s)?, size as u64, h)?)
    }
    Ctx cuMemFreeAsync [cuMemFreeAsync 11020] [cuMemFreeAsync_ptsz 11020] (c, ptr: u64, s: H) {
        pool::free(ptr, c.stream(s)?)
    }
    Init cuMemPoolCreate [cuMemPoolCreate 11020] [] (c, out: Out<H>, props: In<PoolProps>) {
        out.need()?;
        let p = props.get()?;
        out.set(pool::create(p.alloc_type, p.location)?)
    }
    Init cuMemPoolDestroy [cuMemPoolDestroy 11020] [] (c, h: H) { pool::destroy(h) }
    Init cuMemPoolTrimTo [cuMemPoolTrimTo 11020] [] (c, h: H, keep: usize) {
        let mut m = lock();
        m.pool(h)?;
        capture::forbid_unsafe(&mut m)?;
        pool::shrink(&mut m, h, keep as u64);
        Ok(())
    }
    Init cuMemPoolGetAttribute [cuMemPoolGetAttribute 11020] [] (c, h: H, id: u32, out: Out<u64>) {
        let mut m = lock();
        let p = m.pool(h)?;
        match id {
            1..=3 => Out::<u32>::cast(out).set(p.flags.get(&id).copied().unwrap_or(1)),
            4 => out.set(p.threshold),
            5 => out.set(p.reserved),
            6 => out.set(p.reserved_high),
            7 => out.set(p.used),
            8 => out.set(p.used_high),
            _ => Err(Error::INVALID_VALUE),
        }
    }
    Init cuMemPoolSetAttribute [cuMemPoolSetAttribute 11020] [] (c, h: H, id: u32, value: In<u64>) {
        let mut m = lock();
        let p = m.pool(h)?;
        match id {
            1..=3 => {
                let on = In::<u32>::cast(value).get()?;
                p.flags.insert(id, on);
            }
            4 => p.threshold = value.get()?,
            6 => reset(value, &mut p.reserved_high, p.reserved)?,
            8 => reset(value, &mut p.used_high, p.used)?,
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }
    Init cuMemPoolSetAccess [cuMemPoolSetAccess 11020] [] (c, h: H, list: In<AccessDesc>, n: usize) {
        list.list(n)?;
        lock().pool(h).map(|_| ())
    }
    Init cuMemPoolGetAccess [cuMemPoolGetAccess 11020] [] (c, out: Out<u32>, h: H, at: In<Location>) {
        at.get()?;
        lock().pool(h)?;
        out.set(3)
    }
    /// The data by which another process can open the address.
    Init cuMemPoolExportPointer [cuMemPoolExportPointer 11020] [] (c, out: Out<[u64; 8]>, ptr: u64) {
        out.need()?;
        out.set(pool::export_pointer(ptr)?)
    }
    Init cuMemPoolExportToShareableHandle [cuMemPoolExportToShareableHandle 11020] []
    (c, out: Out<u64>, h: H, kind: u32, flags: u64) {
        let _ = (out.is_null(), kind, flags);
        lock().pool(h)?;
        Err(Error::NOT_SUPPORTED)
    }
}

/// For tests: a pool that came to the program by no call that anybody sees; 0 if there can be none.
#[unsafe(no_mangle)]
pub extern "C" fn sim_unseen_pool(alloc_type: u32, kind: u32, id: i32) -> H {
    pool::create(alloc_type, Location { kind, id }).unwrap_or(0)
}

/// High-water marks can be reset to what is now, and only by writing 0.
fn reset(value: In<u64>, mark: &mut u64, now: u64) -> Result {
    if value.get()? != 0 {
        return Err(Error::INVALID_VALUE);
    }
    *mark = now;
    Ok(())
}
