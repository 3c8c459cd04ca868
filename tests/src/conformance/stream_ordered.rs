//! Stream-ordered allocation and its pools.

use super::{Check, Checker, Done, Stop, cu, fixtures::*, ok, skip};
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute};
use gpumem_kernels::Words;
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("async.plain_free_of_async", plain_free_of_async),
    Check::measured("async.async_free_of_plain", async_free_of_plain),
    Check::documented("async.in_order", in_order),
    Check::documented("async.default_pool", default_pool),
    Check::documented("async.release_threshold", release_threshold),
    Check::documented("async.used_bytes", used_bytes),
    Check::documented("async.own_pool", own_pool),
    Check::documented("async.current_pool", current_pool),
    Check::measured("async.pool_of_the_host", pool_of_the_host),
    Check::measured("async.managed_pool", managed_pool),
    Check::documented("async.trim", trim),
    Check::documented("async.too_big", too_big),
];

const BYTES: usize = 3 << 20;

fn alloc(stream: &Strm, bytes: usize) -> Result<sys::CUdeviceptr, Stop> {
    let mut p = 0;
    ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, bytes, stream.s)))?;
    Ok(p)
}

fn words(p: sys::CUdeviceptr) -> Result<Words, Stop> {
    // SAFETY: callers allocate `p` in stream order before the kernels that use it, and free it in
    // stream order behind them. It has BYTES bytes.
    Ok(unsafe { Words::from_raw(p, BYTES as u64 / 4) }?)
}

/// The driver does not wait here. Its reference makes the caller responsible that nothing uses the memory. So the check
/// does not ask what pending work would find.
fn plain_free_of_async(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let p = alloc(&stream, BYTES)?;
    t.gpu.kernels.fill(stream.k(), words(p)?, 1)?;
    stream.sync()?;
    t.eq("cuMemFree", cu!(cuMemFree_v2(p)), 0);
    t.eq("cuMemFree again", cu!(cuMemFree_v2(p)), 1);
    Ok(())
}

/// The driver takes a plain allocation too, and frees it when the stream gets there.
fn async_free_of_plain(t: &mut Checker) -> Done {
    let (stream, mem) = (Strm::non_blocking()?, Mem::new(BYTES)?);
    let p = mem.p;
    std::mem::forget(mem);
    let status = cu!(cuMemFreeAsync(p, stream.s));
    t.eq("cuMemFreeAsync", status, 0);
    stream.sync()?;
    let again = cu!(cuMemFree_v2(p));
    t.eq("cuMemFree once the stream got there", again, if status == 0 { 1 } else { 0 });
    Ok(())
}

/// Many short-lived blocks on one stream, each with its own value. Reuse is never visible.
fn in_order(t: &mut Checker) -> Done {
    let (stream, sum) = (Strm::non_blocking()?, t.gpu.words(2)?);
    ok("cuMemsetD32Async", cu!(cuMemsetD32Async(sum.p, 0, 2, stream.s)))?;
    for i in 0..20 {
        let p = alloc(&stream, BYTES)?;
        t.gpu.kernels.fill(stream.k(), words(p)?, i)?;
        t.gpu.kernels.verify(stream.k(), words(p)?, i, sum.words())?;
        t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)), 0);
    }
    stream.sync()?;
    t.eq("mismatches", sum.read(2)?, vec![0, 0]);
    Ok(())
}

fn get(pool: sys::CUmemoryPool, attribute: Attribute) -> Result<u64, Stop> {
    let mut value = 0u64;
    let got = cu!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    ok("cuMemPoolGetAttribute", got)?;
    Ok(value)
}

fn default_of(t: &Checker) -> Result<sys::CUmemoryPool, Stop> {
    let mut pool = null_mut();
    let got = cu!(cuDeviceGetDefaultMemPool(&mut pool, t.gpu.device));
    ok("cuDeviceGetDefaultMemPool", got)?;
    Ok(pool)
}

fn default_pool(t: &mut Checker) -> Done {
    let mut current = null_mut();
    ok("cuDeviceGetMemPool", cu!(cuDeviceGetMemPool(&mut current, t.gpu.device)))?;
    let default = default_of(t)?;
    t.yes("the current pool is the default one", current == default);
    t.yes("the default pool cannot be destroyed", cu!(cuMemPoolDestroy(default)) != 0);
    Ok(())
}

fn release_threshold(t: &mut Checker) -> Done {
    let pool = default_of(t)?;
    let id = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let before = get(pool, id)?;
    let mut value = 7u64 << 20;
    let set = cu!(cuMemPoolSetAttribute(pool, id, (&raw mut value).cast()));
    t.eq("setting RELEASE_THRESHOLD", set, 0);
    t.eq("reading it", get(pool, id)?, 7 << 20);
    let mut before = before;
    ok("setting it back", cu!(cuMemPoolSetAttribute(pool, id, (&raw mut before).cast())))
}

fn used_bytes(t: &mut Checker) -> Done {
    let (stream, pool) = (Strm::non_blocking()?, default_of(t)?);
    let used = |pool| get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    let before = used(pool)?;
    let p = alloc(&stream, BYTES)?;
    let during = used(pool)? - before;
    t.yes(&format!("USED_MEM_CURRENT grows by the request ({during})"), during >= BYTES as u64);
    let reserved = get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    t.yes("RESERVED_MEM_CURRENT covers it", reserved >= before + during);
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    stream.sync()?;
    t.eq("USED_MEM_CURRENT after the free", used(pool)?, before);
    Ok(())
}

fn create_pool(t: &Checker) -> Result<sys::CUmemoryPool, Stop> {
    create_pool_at(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, t.gpu.device)
}

fn create_pool_at(location: sys::CUmemLocationType, id: i32) -> Result<sys::CUmemoryPool, Stop> {
    // SAFETY: the struct holds numbers, pointers, and enums that have a member 0, so all zeroes is
    // a valid value.
    let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = location;
    props.location.id = id;
    let mut pool = null_mut();
    ok("cuMemPoolCreate", cu!(cuMemPoolCreate(&mut pool, &props)))?;
    Ok(pool)
}

fn own_pool(t: &mut Checker) -> Done {
    let (stream, pool, mut p) = (Strm::non_blocking()?, create_pool(t)?, 0);
    let made = cu!(cuMemAllocFromPoolAsync(&mut p, BYTES, pool, stream.s));
    ok("cuMemAllocFromPoolAsync", made)?;
    t.gpu.kernels.fill(stream.k(), words(p)?, 77)?;
    t.eq("words not written", t.gpu.wrong_words(&stream, words(p)?, 77)?, 0);
    let used = get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    t.yes("the pool holds it", used >= BYTES as u64);
    t.eq("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)), 0);
    stream.sync()?;
    t.eq("cuMemPoolDestroy", cu!(cuMemPoolDestroy(pool)), 0);
    Ok(())
}

/// A device allocates from the pool that was chosen last, by either function.
fn current_pool(t: &mut Checker) -> Done {
    let (stream, pool, usual) = (Strm::non_blocking()?, create_pool(t)?, default_of(t)?);
    t.eq("cuDeviceSetMemPool", cu!(cuDeviceSetMemPool(t.gpu.device, pool)), 0);
    let mut current = null_mut();
    ok("cuDeviceGetMemPool", cu!(cuDeviceGetMemPool(&mut current, t.gpu.device)))?;
    t.yes("it is the current one", current == pool);
    let p = alloc(&stream, BYTES)?;
    let used = get(pool, Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    t.yes("cuMemAllocAsync takes from it", used >= BYTES as u64);
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    stream.sync()?;
    t.eq("cuDeviceSetMemPool back", cu!(cuDeviceSetMemPool(t.gpu.device, usual)), 0);
    t.eq("cuMemPoolDestroy", cu!(cuMemPoolDestroy(pool)), 0);
    Ok(())
}

/// Returns the driver's answer about an address: the type of memory, and true if it is managed.
fn place_of(p: sys::CUdeviceptr) -> Result<(u32, bool), Stop> {
    use sys::CUpointer_attribute::{CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    let (mut kind, mut managed) = (0_u32, 0_u32);
    let got = cu!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    ok("MEMORY_TYPE", got)?;
    let got = cu!(cuPointerGetAttribute((&raw mut managed).cast(), CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    ok("IS_MANAGED", got)?;
    Ok((kind, managed != 0))
}

/// Memory of a pool on a node of the host is the host's: the device's free memory stays as it is.
fn pool_of_the_host(t: &mut Checker) -> Done {
    let stream = Strm::non_blocking()?;
    let (pool, mut p) = (create_pool_at(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)?, 0);
    ok("cuMemAllocFromPoolAsync", cu!(cuMemAllocFromPoolAsync(&mut p, BYTES, pool, stream.s)))?;
    stream.sync()?;
    t.eq("its type, and whether it is managed", place_of(p)?, (1, false));
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    stream.sync()?;
    t.eq("cuMemPoolDestroy", cu!(cuMemPoolDestroy(pool)), 0);
    Ok(())
}

/// The default pool for managed memory is another one than that of the device, and stays when the device's changes.
fn managed_pool(t: &mut Checker) -> Done {
    use sys::CUmemAllocationType::{CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_ALLOCATION_TYPE_PINNED};
    let mut version = 0;
    ok("cuDriverGetVersion", cu!(cuDriverGetVersion(&mut version)))?;
    if version < 13000 {
        return skip(format!("pools of a location came with 13.0, the driver has {version}"));
    }
    let stream = Strm::non_blocking()?;
    let kind = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the struct holds an enum that has a member 0, and a number, so all zeroes is a valid value.
    let mut device: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    (device.type_, device.id) = (kind, t.gpu.device);
    let (mut managed, mut current, mut p) = (null_mut(), null_mut(), 0);
    let got = cu!(cuMemGetDefaultMemPool(&mut managed, &mut device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    ok("cuMemGetDefaultMemPool", got)?;
    ok("cuMemGetMemPool", cu!(cuMemGetMemPool(&mut current, &mut device, CU_MEM_ALLOCATION_TYPE_MANAGED)))?;
    t.yes("it is the current one", managed == current);
    let usual = default_of(t)?;
    t.yes("it is not the device's", managed != usual);
    ok("cuMemAllocFromPoolAsync", cu!(cuMemAllocFromPoolAsync(&mut p, BYTES, managed, stream.s)))?;
    stream.sync()?;
    t.yes("it is managed", place_of(p)?.1);
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    stream.sync()?;
    let own = create_pool(t)?;
    t.eq("cuMemSetMemPool", cu!(cuMemSetMemPool(&mut device, CU_MEM_ALLOCATION_TYPE_PINNED, own)), 0);
    ok("cuDeviceGetMemPool", cu!(cuDeviceGetMemPool(&mut current, t.gpu.device)))?;
    t.yes("it is the device's current one", current == own);
    t.eq("set back", cu!(cuMemSetMemPool(&mut device, CU_MEM_ALLOCATION_TYPE_PINNED, usual)), 0);
    t.eq("cuMemPoolDestroy", cu!(cuMemPoolDestroy(own)), 0);
    Ok(())
}

fn trim(t: &mut Checker) -> Done {
    let (stream, pool, mut p) = (Strm::non_blocking()?, create_pool(t)?, 0);
    let (id, mut keep) = (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX);
    ok("threshold", cu!(cuMemPoolSetAttribute(pool, id, (&raw mut keep).cast())))?;
    let made = cu!(cuMemAllocFromPoolAsync(&mut p, BYTES, pool, stream.s));
    ok("cuMemAllocFromPoolAsync", made)?;
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    stream.sync()?;
    let reserved = |pool| get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    t.yes("a pool with a high threshold keeps what was freed", reserved(pool)? >= BYTES as u64);
    t.eq("cuMemPoolTrimTo(0)", cu!(cuMemPoolTrimTo(pool, 0)), 0);
    t.eq("what is left", reserved(pool)?, 0);
    t.eq("cuMemPoolDestroy", cu!(cuMemPoolDestroy(pool)), 0);
    Ok(())
}

fn too_big(t: &mut Checker) -> Done {
    let (stream, mut p) = (Strm::non_blocking()?, 42);
    t.eq("cuMemAllocAsync of 1 PiB", cu!(cuMemAllocAsync(&mut p, 1 << 50, stream.s)), 2);
    stream.sync()
}
