//! Stream-ordered allocation and memory pools.

use crate::abi::{H, In, Out};
use crate::devices::check;
use crate::structs::{AccessDesc, PoolProps};
use gpumem_sim_engine::place::Place;
use gpumem_sim_engine::{Error, lock, pool};

hip! {
    Ctx hipMallocAsync [] (c, out: Out<u64>, bytes: usize, s: H) {
        out.need()?;
        out.set(pool::alloc(c.ctx, c.stream(s)?, bytes as u64, 0)?)
    }
    Ctx hipMallocFromPoolAsync [] (c, out: Out<u64>, bytes: usize, h: H, s: H) {
        out.need()?;
        lock().pool(h)?;
        out.set(pool::alloc(c.ctx, c.stream(s)?, bytes as u64, h)?)
    }
    Ctx hipFreeAsync [] (c, ptr: u64, s: H) {
        if ptr == 0 {
            return Err(Error::INVALID_VALUE);
        }
        pool::free(ptr, c.stream(s)?)
    }
    Init hipMemPoolCreate [] (c, out: Out<H>, props: In<PoolProps>) {
        out.need()?;
        let p = props.get()?;
        out.set(pool::create(p.alloc_type, p.location)?)
    }
    Init hipMemPoolDestroy [] (c, h: H) { pool::destroy(h) }
    Init hipMemPoolTrimTo [] (c, h: H, keep: usize) {
        let mut m = lock();
        m.pool(h)?;
        pool::shrink(&mut m, h, keep as u64);
        Ok(())
    }
    Init hipMemPoolGetAttribute [] (c, h: H, id: u32, out: Out<u64>) {
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
    Init hipMemPoolSetAttribute [] (c, h: H, id: u32, value: In<u64>) {
        let mut m = lock();
        let p = m.pool(h)?;
        match id {
            1..=3 => {
                let on = In::<u32>::cast(value).get()?;
                p.flags.insert(id, on);
            }
            4 => p.threshold = value.get()?,
            6 if value.get()? == 0 => p.reserved_high = p.reserved,
            8 if value.get()? == 0 => p.used_high = p.used,
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }
    Init hipMemPoolSetAccess [] (c, h: H, list: In<AccessDesc>, n: usize) {
        list.list(n)?;
        lock().pool(h).map(|_| ())
    }
    Init hipDeviceGetDefaultMemPool [] (c, out: Out<H>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].default_pool)
    }
    Init hipDeviceGetMemPool [] (c, out: Out<H>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].current_pool)
    }
    Init hipDeviceSetMemPool [] (c, dev: i32, h: H) {
        let dev = check(dev)?;
        lock().set_current_pool(Place::Device(dev), h)
    }
    Init hipDeviceGraphMemTrim [] (c, dev: i32) {
        pool::graph_trim(check(dev)?);
        Ok(())
    }
}
