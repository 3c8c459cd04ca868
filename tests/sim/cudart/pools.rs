//! Memory pools.

use super::driver::P;

rt! {
    Ctx cudaMemPoolCreate [] (rt, out: P, props: P) { rt.cuMemPoolCreate(out, props) }
    Ctx cudaMemPoolDestroy [] (rt, pool: P) { rt.cuMemPoolDestroy(pool) }
    Ctx cudaMemPoolTrimTo [] (rt, pool: P, keep: usize) { rt.cuMemPoolTrimTo(pool, keep) }
    Ctx cudaMemPoolGetAttribute [] (rt, pool: P, id: u32, out: P) { rt.cuMemPoolGetAttribute(pool, id, out) }
    Ctx cudaMemPoolSetAttribute [] (rt, pool: P, id: u32, value: P) { rt.cuMemPoolSetAttribute(pool, id, value) }
    Ctx cudaMemPoolSetAccess [] (rt, pool: P, list: P, n: usize) { rt.cuMemPoolSetAccess(pool, list, n) }
    Ctx cudaMemPoolGetAccess [] (rt, out: P, pool: P, at: P) { rt.cuMemPoolGetAccess(out, pool, at) }
    Ctx cudaDeviceGetDefaultMemPool [] (rt, out: P, dev: i32) { rt.cuDeviceGetDefaultMemPool(out, dev) }
    Ctx cudaDeviceGetMemPool [] (rt, out: P, dev: i32) { rt.cuDeviceGetMemPool(out, dev) }
    Ctx cudaDeviceSetMemPool [] (rt, dev: i32, pool: P) { rt.cuDeviceSetMemPool(dev, pool) }
}
