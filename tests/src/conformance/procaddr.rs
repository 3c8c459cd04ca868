//! cuGetProcAddress: one name, several functions.

use super::{Check, Checker, Done, Stop, cu, ok};
use cudarc::driver::sys::{CUdeviceptr, CUdriverProcAddressQueryResult as Found};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("procaddr.versions_differ", versions_differ),
    Check::measured("procaddr.flags_differ", flags_differ),
    Check::documented("procaddr.functions_work", functions_work),
    Check::documented("procaddr.per_thread_functions_work", per_thread_functions_work),
    Check::documented("procaddr.unknown_name", unknown_name),
    Check::documented("procaddr.version_too_early", version_too_early),
    Check::documented("procaddr.status_may_be_null", status_may_be_null),
    Check::documented("procaddr.finds_itself", finds_itself),
];

const DEFAULT: u64 = 0;
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

fn look_up(name: &CStr, version: i32, flags: u64) -> (u32, *mut c_void, Found) {
    let (mut f, mut found) = (null_mut(), Found::CU_GET_PROC_ADDRESS_SUCCESS);
    let status = cu!(cuGetProcAddress_v2(name.as_ptr(), &mut f, version, flags, &mut found));
    (status, f, found)
}

fn get(name: &CStr, version: i32, flags: u64) -> Result<*mut c_void, Stop> {
    let (status, f, _) = look_up(name, version, flags);
    ok(&format!("cuGetProcAddress({name:?}, {version}, {flags})"), status)?;
    Ok(f)
}

fn versions_differ(t: &mut Checker) -> Done {
    let pairs = [
        (c"cuGraphInstantiate", 10000, 11000),
        (c"cuGraphExecUpdate", 10020, 12000),
        (c"cuMemAlloc", 2000, 3020),
        (c"cuCtxCreate", 3020, 11040),
        (c"cuGraphAddKernelNode", 10000, 12000),
    ];
    for (name, early, late) in pairs {
        let differ = get(name, early, DEFAULT)? != get(name, late, DEFAULT)?;
        t.yes(&format!("{name:?} at {early} and at {late} are two functions"), differ);
    }
    let same = get(c"cuMemAlloc", 3020, DEFAULT)? == get(c"cuMemAlloc", 12000, DEFAULT)?;
    t.yes("cuMemAlloc at 3020 and at 12000 are one function", same);
    Ok(())
}

fn flags_differ(t: &mut Checker) -> Done {
    for name in [c"cuGraphLaunch", c"cuLaunchKernel", c"cuMemAllocAsync", c"cuMemcpyHtoD"] {
        let default = get(name, 12000, DEFAULT)?;
        let per_thread = get(name, 12000, PER_THREAD_STREAM)?;
        t.yes(&format!("{name:?} for per-thread streams is another"), default != per_thread);
        let legacy = get(name, 12000, LEGACY_STREAM)?;
        t.yes(&format!("{name:?} for the legacy stream is the default one"), default == legacy);
    }
    // A function without a stream has one form only.
    let same = get(c"cuMemAlloc", 12000, DEFAULT)? == get(c"cuMemAlloc", 12000, PER_THREAD_STREAM)?;
    t.yes("cuMemAlloc is the same with either flag", same);
    Ok(())
}

fn functions_work(t: &mut Checker) -> Done {
    type Alloc = unsafe extern "C" fn(*mut CUdeviceptr, usize) -> u32;
    type Free = unsafe extern "C" fn(CUdeviceptr) -> u32;
    for version in [3020, 11000, 12000] {
        let alloc = get(c"cuMemAlloc", version, DEFAULT)?;
        let free = get(c"cuMemFree", version, DEFAULT)?;
        // SAFETY: cuda.h gives cuMemAlloc this type since 3.2, and no older version is asked for.
        let alloc: Alloc = unsafe { std::mem::transmute(alloc) };
        // SAFETY: cuda.h gives cuMemFree this type since 3.2, and no older version is asked for.
        let free: Free = unsafe { std::mem::transmute(free) };
        let mut p = 0;
        // SAFETY: both functions have the types that the driver gives them. A context is current,
        // and `p` is a local.
        let (made, freed) = unsafe { (alloc(&mut p, 5000), free(p)) };
        t.eq(&format!("alloc and free of version {version}"), (made, freed), (0, 0));
        // SAFETY: cuMemFree takes a number, and for an address that is not allocated it answers
        // with an error.
        t.eq("a second free", unsafe { free(p) }, 1);
    }
    Ok(())
}

/// The per-thread twins reach the same memory as the plain ones.
fn per_thread_functions_work(t: &mut Checker) -> Done {
    type Alloc = unsafe extern "C" fn(*mut CUdeviceptr, usize, *mut c_void) -> u32;
    type Free = unsafe extern "C" fn(CUdeviceptr, *mut c_void) -> u32;
    type Set = unsafe extern "C" fn(CUdeviceptr, u32, usize, *mut c_void) -> u32;
    type Sync = unsafe extern "C" fn(*mut c_void) -> u32;
    let get = |name| get(name, 12000, PER_THREAD_STREAM);
    // SAFETY: cuda.h gives cuMemAllocAsync this type in every version that has it.
    let alloc: Alloc = unsafe { std::mem::transmute(get(c"cuMemAllocAsync")?) };
    // SAFETY: cuda.h gives cuMemFreeAsync this type in every version that has it.
    let free: Free = unsafe { std::mem::transmute(get(c"cuMemFreeAsync")?) };
    // SAFETY: cuda.h gives cuMemsetD32Async this type in every version that has it.
    let set: Set = unsafe { std::mem::transmute(get(c"cuMemsetD32Async")?) };
    // SAFETY: cuda.h gives cuStreamSynchronize this type in every version that has it.
    let sync: Sync = unsafe { std::mem::transmute(get(c"cuStreamSynchronize")?) };
    let (mut p, mut word) = (0, 0u32);
    // SAFETY: a context is current, and the null stream is this thread's own here. `p` takes 4096
    // bytes, which is 1024 words.
    let used = unsafe { [alloc(&mut p, 4096, null_mut()), set(p, 78, 1024, null_mut()), sync(null_mut())] };
    t.eq("cuMemAllocAsync, cuMemsetD32Async, cuStreamSynchronize", used, [0; 3]);
    t.eq("cuMemcpyDtoH", cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), p, 4)), 0);
    // SAFETY: `p` was allocated above, and all its uses are on the stream on which it is freed.
    let freed = unsafe { [free(p, null_mut()), sync(null_mut())] };
    t.eq("cuMemFreeAsync, cuStreamSynchronize", freed, [0; 2]);
    t.eq("the word", word, 78);
    Ok(())
}

/// No function comes back, with this reason. Drivers differ in whether the call itself fails.
fn not_found(t: &mut Checker, name: &CStr, version: i32, why: Found) {
    let (status, f, found) = look_up(name, version, DEFAULT);
    t.one_of(&format!("{name:?} at {version}"), status, &[0, 500]);
    t.yes("no function comes back", f.is_null());
    t.eq("the reason", found, why);
}

fn unknown_name(t: &mut Checker) -> Done {
    let why = Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for name in [c"cuNoSuchFunction", c"cudaMalloc", c"cudnnCreate", c"cuda"] {
        not_found(t, name, 12000, why);
    }
    Ok(())
}

fn version_too_early(t: &mut Checker) -> Done {
    let why = Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    not_found(t, c"cuGraphInstantiate", 9000, why);
    not_found(t, c"cuMemAllocAsync", 11000, why);
    Ok(())
}

fn status_may_be_null(t: &mut Checker) -> Done {
    let mut f = null_mut();
    let name = c"cuMemFree".as_ptr();
    t.eq("with NULL", cu!(cuGetProcAddress_v2(name, &mut f, 12000, 0, null_mut())), 0);
    t.yes("the function", !f.is_null());
    Ok(())
}

fn finds_itself(t: &mut Checker) -> Done {
    let v1 = get(c"cuGetProcAddress", 11030, DEFAULT)?;
    let v2 = get(c"cuGetProcAddress", 12000, DEFAULT)?;
    t.yes("four and five arguments are two functions", v1 != v2);
    type Lookup = unsafe extern "C" fn(*const i8, *mut *mut c_void, i32, u64, *mut u32) -> u32;
    // SAFETY: cuda.h gives cuGetProcAddress this type since 12.0, which is the version asked for.
    let v2: Lookup = unsafe { std::mem::transmute(v2) };
    let (mut f, mut found) = (null_mut(), 9);
    // SAFETY: `v2` has the type that the driver gives it. The name is a literal that ends in NUL,
    // and `f` and `found` are locals.
    let status = unsafe { v2(c"cuMemAlloc".as_ptr().cast(), &mut f, 12000, 0, &mut found) };
    t.eq("looking up through it", (status, found), (0, 0));
    t.eq("the same function", f, get(c"cuMemAlloc", 12000, DEFAULT)?);
    Ok(())
}
