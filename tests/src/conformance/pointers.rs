//! Answers of queries about an address.

use super::{Check, Checker, Done, cu, fixtures::*, ok};
use cudarc::driver::sys::CUpointer_attribute as Attribute;
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("pointers.range_is_what_was_asked", range_is_what_was_asked),
    Check::measured("pointers.buffer_id_is_new", buffer_id_is_new),
    Check::measured("pointers.freed_is_unregistered", freed_is_unregistered),
    Check::documented("pointers.range_outs_may_be_null", range_outs_may_be_null),
    Check::documented("pointers.range_of_freed", range_of_freed),
    Check::documented("pointers.attributes", attributes),
    Check::documented("pointers.legacy_ipc", legacy_ipc),
];

fn get<V: Default>(attribute: Attribute, p: u64) -> (u32, V) {
    let mut value = V::default();
    (cu!(cuPointerGetAttribute((&raw mut value).cast(), attribute, p)), value)
}

fn range_is_what_was_asked(t: &mut Checker) -> Done {
    for bytes in [1, 1000, 4096, (2 << 20) + 1, 3 << 20, 64 << 20] {
        let mem = Mem::new(bytes)?;
        for offset in [0, bytes as u64 / 2, bytes as u64 - 1] {
            let (mut base, mut size) = (0, 0);
            let status = cu!(cuMemGetAddressRange_v2(&mut base, &mut size, mem.p + offset));
            let what = format!("(status, base, size) of {bytes} bytes at +{offset}");
            t.eq(&what, (status, base, size), (0, mem.p, bytes));
        }
        let (_, start): (_, u64) = get(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, mem.p);
        let (_, size): (_, usize) = get(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, mem.p);
        t.eq("RANGE_START_ADDR and RANGE_SIZE", (start, size), (mem.p, bytes));
    }
    Ok(())
}

fn buffer_id_is_new(t: &mut Checker) -> Done {
    let mut ids = Vec::new();
    for _ in 0..8 {
        let mem = Mem::new(3 << 20)?;
        let (status, id): (_, u64) = get(Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID, mem.p);
        t.eq("BUFFER_ID", status, 0);
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    t.eq("different ids of 8 allocations", ids.len(), 8);
    Ok(())
}

fn freed_is_unregistered(t: &mut Checker) -> Done {
    let mem = Mem::new(3 << 20)?;
    let p = mem.p;
    ok("cuMemFree", mem.free())?;
    let (mut memory_type, mut ordinal) = (77u32, 77i32);
    let mut which = [Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let mut data = [(&raw mut memory_type).cast(), (&raw mut ordinal).cast()];
    let status = cu!(cuPointerGetAttributes(2, which.as_mut_ptr(), data.as_mut_ptr(), p));
    t.eq("cuPointerGetAttributes of a freed pointer", status, 0);
    t.eq("its memory type", memory_type, 0);
    Ok(())
}

fn range_outs_may_be_null(t: &mut Checker) -> Done {
    let mem = Mem::new(5000)?;
    let (mut base, mut size) = (0, 0);
    t.eq("base NULL", cu!(cuMemGetAddressRange_v2(null_mut(), &mut size, mem.p)), 0);
    t.eq("size NULL", cu!(cuMemGetAddressRange_v2(&mut base, null_mut(), mem.p + 99)), 0);
    t.eq("what came", (base, size), (mem.p, 5000));
    Ok(())
}

fn range_of_freed(t: &mut Checker) -> Done {
    let mem = Mem::new(64 << 20)?;
    let p = mem.p;
    ok("cuMemFree", mem.free())?;
    let (mut base, mut size) = (42, 42);
    let status = cu!(cuMemGetAddressRange_v2(&mut base, &mut size, p));
    t.one_of("cuMemGetAddressRange of a freed pointer", status, &[1, 500]);
    Ok(())
}

fn attributes(t: &mut Checker) -> Done {
    let mem = Mem::new(4096)?;
    let memory_type = |p| get::<u32>(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
    t.eq("memory type of device memory", memory_type(mem.p + 77), (0, 2));
    let ordinal: (u32, i32) = get(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mem.p);
    t.eq("device ordinal", ordinal, (0, 0));
    let context: (u32, usize) = get(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, mem.p);
    t.eq("context", context, (0, t.gpu.primary as usize));

    let mut host = null_mut();
    ok("cuMemHostAlloc", cu!(cuMemHostAlloc(&mut host, 4096, 0)))?;
    t.eq("memory type of pinned host memory", memory_type(host.addr() as u64), (0, 1));
    ok("cuMemFreeHost", cu!(cuMemFreeHost(host)))?;

    let mut managed = 0;
    ok("cuMemAllocManaged", cu!(cuMemAllocManaged(&mut managed, 4096, 1)))?;
    let is_managed: (u32, u32) = get(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, managed);
    t.eq("IS_MANAGED of managed memory", is_managed, (0, 1));
    let is_managed: (u32, u32) = get(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, mem.p);
    t.eq("IS_MANAGED of device memory", is_managed, (0, 0));
    ok("cuMemFree", cu!(cuMemFree_v2(managed)))?;

    let local = 0u64;
    t.eq("memory type of a stack address", memory_type((&raw const local).addr() as u64).0, 1);
    Ok(())
}

/// Plain allocations can be shared with other processes by IPC handles, and stream-ordered ones cannot.
fn legacy_ipc(t: &mut Checker) -> Done {
    let capable = |p| get::<u32>(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
    // SAFETY: CUipcMemHandle is an array of bytes, so all zeroes is a valid value.
    let mut handle = unsafe { std::mem::zeroed() };
    let mem = Mem::new(3 << 20)?;
    t.eq("capable: cuMemAlloc", capable(mem.p), (0, 1));
    t.eq("cuIpcGetMemHandle: cuMemAlloc", cu!(cuIpcGetMemHandle(&mut handle, mem.p)), 0);

    let (stream, mut p) = (Strm::non_blocking()?, 0);
    ok("cuMemAllocAsync", cu!(cuMemAllocAsync(&mut p, 3 << 20, stream.s)))?;
    stream.sync()?;
    t.eq("capable: cuMemAllocAsync", capable(p), (0, 0));
    t.eq("cuIpcGetMemHandle: cuMemAllocAsync", cu!(cuIpcGetMemHandle(&mut handle, p)), 1);
    ok("cuMemFreeAsync", cu!(cuMemFreeAsync(p, stream.s)))?;
    t.eq("cuIpcGetMemHandle of nothing", cu!(cuIpcGetMemHandle(&mut handle, 0x1000)), 1);
    Ok(())
}
