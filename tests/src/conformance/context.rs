//! Contexts: which one is current, and what ends with it.

use super::{Check, Checker, Done, cu, fixtures::*, ok, skip};
use gpumem_kernels::Kernel;
use std::ffi::CString;
use std::ptr::null_mut;

pub(super) const CHECKS: &[Check] = &[
    Check::measured("context.none_is_current", none_is_current),
    Check::documented("context.current_is_per_thread", current_is_per_thread),
    Check::documented("context.push_and_pop", push_and_pop),
    Check::documented("context.destroy_takes_its_memory", destroy_takes_its_memory),
    Check::documented("context.free_from_another_context", free_from_another_context),
    Check::documented("context.primary_is_one", primary_is_one),
    Check::documented("context.pop_with_none_current", pop_with_none_current),
    Check::documented("context.limits_are_the_contexts", limits_are_the_contexts),
    Check::documented("context.code_comes_from_memory_and_files", code_comes_from_memory_and_files),
];

fn none_is_current(t: &mut Checker) -> Done {
    let thread = std::thread::spawn(|| {
        let (mut current, mut p) = (null_mut(), 42);
        let got = cu!(cuCtxGetCurrent(&mut current));
        (got, current.is_null(), cu!(cuMemAlloc_v2(&mut p, 4096)), p, cu!(cuCtxSynchronize()))
    });
    let Ok((got, none, alloc, p, sync)) = thread.join() else {
        return skip("the thread died");
    };
    t.eq("cuCtxGetCurrent on a fresh thread", (got, none), (0, true));
    t.eq("cuMemAlloc there", alloc, 201);
    // H200, driver 580.
    t.eq("its out-parameter", p, 0);
    t.eq("cuCtxSynchronize there", sync, 201);
    Ok(())
}

fn current_is_per_thread(t: &mut Checker) -> Done {
    let primary = t.gpu.primary as usize;
    let thread = std::thread::spawn(move || {
        let mut p = 0;
        cu!(cuCtxSetCurrent(primary as *mut _));
        let made = cu!(cuMemAlloc_v2(&mut p, 4096));
        cu!(cuCtxSetCurrent(null_mut()));
        (made, cu!(cuMemAlloc_v2(&mut 0, 4096)), p)
    });
    let Ok((with, without, p)) = thread.join() else {
        return skip("the thread died");
    };
    t.eq("cuMemAlloc with the context, then without", (with, without), (0, 201));
    t.eq("here it is current still", cu!(cuMemFree_v2(p)), 0);
    Ok(())
}

fn push_and_pop(t: &mut Checker) -> Done {
    let (own, mut current) = (create_context(t.gpu.device)?, null_mut());
    ok("cuCtxGetCurrent", cu!(cuCtxGetCurrent(&mut current)))?;
    t.yes("a new context is current", current == own);
    ok("cuCtxPushCurrent", cu!(cuCtxPushCurrent_v2(t.gpu.primary)))?;
    ok("cuCtxPopCurrent", cu!(cuCtxPopCurrent_v2(&mut current)))?;
    t.yes("what was pushed is popped", current == t.gpu.primary);
    ok("cuCtxGetCurrent", cu!(cuCtxGetCurrent(&mut current)))?;
    t.yes("the one below is current again", current == own);
    t.eq("cuCtxDestroy", cu!(cuCtxDestroy_v2(own)), 0);
    ok("cuCtxGetCurrent", cu!(cuCtxGetCurrent(&mut current)))?;
    t.yes("a destroyed context is not current", current != own);
    make_current(t.gpu.primary)
}

fn destroy_takes_its_memory(t: &mut Checker) -> Done {
    let (own, mut p) = (create_context(t.gpu.device)?, 0);
    ok("cuMemAlloc", cu!(cuMemAlloc_v2(&mut p, 64 << 20)))?;
    ok("cuCtxDestroy", cu!(cuCtxDestroy_v2(own)))?;
    make_current(t.gpu.primary)?;
    t.eq("freeing what went with it", cu!(cuMemFree_v2(p)), 1);
    Ok(())
}

fn free_from_another_context(t: &mut Checker) -> Done {
    let (own, mut p) = (create_context(t.gpu.device)?, 0);
    ok("cuMemAlloc", cu!(cuMemAlloc_v2(&mut p, 4096)))?;
    make_current(t.gpu.primary)?;
    t.eq("cuMemFree with another context current", cu!(cuMemFree_v2(p)), 0);
    ok("cuCtxDestroy", cu!(cuCtxDestroy_v2(own)))
}

fn primary_is_one(t: &mut Checker) -> Done {
    let (mut again, mut flags, mut active) = (null_mut(), 0, 0);
    let device = t.gpu.device;
    ok("cuDevicePrimaryCtxRetain", cu!(cuDevicePrimaryCtxRetain(&mut again, device)))?;
    t.yes("retaining it again gives the same", again == t.gpu.primary);
    t.eq("cuDevicePrimaryCtxRelease", cu!(cuDevicePrimaryCtxRelease_v2(device)), 0);
    let state = cu!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
    ok("cuDevicePrimaryCtxGetState", state)?;
    t.eq("it is still active", active, 1);
    let mem = Mem::new(4096)?;
    t.eq("and usable", mem.free(), 0);
    Ok(())
}

fn pop_with_none_current(t: &mut Checker) -> Done {
    let thread = std::thread::spawn(|| cu!(cuCtxPopCurrent_v2(&mut null_mut())));
    t.eq("cuCtxPopCurrent with none current", thread.join().unwrap_or(u32::MAX), 201);
    Ok(())
}

fn limits_are_the_contexts(t: &mut Checker) -> Done {
    use cudarc::driver::sys::CUlimit_enum::CU_LIMIT_STACK_SIZE as STACK;
    let (mut before, mut after, mut of_another) = (0, 0, 0);
    ok("cuCtxGetLimit", cu!(cuCtxGetLimit(&mut before, STACK)))?;
    t.eq("cuCtxSetLimit", cu!(cuCtxSetLimit(STACK, before + 4096)), 0);
    ok("cuCtxGetLimit", cu!(cuCtxGetLimit(&mut after, STACK)))?;
    t.yes("a stack is at least as large as was asked", after >= before + 4096);
    let own = create_context(t.gpu.device)?;
    ok("cuCtxGetLimit", cu!(cuCtxGetLimit(&mut of_another, STACK)))?;
    t.eq("another context's stack", of_another, before);
    t.eq("cuCtxDestroy", cu!(cuCtxDestroy_v2(own)), 0);
    make_current(t.gpu.primary)?;
    ok("cuCtxSetLimit", cu!(cuCtxSetLimit(STACK, before)))
}

/// Modules and libraries can be loaded from memory and from files. Data that is no code is refused in both ways.
fn code_comes_from_memory_and_files(t: &mut Checker) -> Done {
    let path = std::env::temp_dir().join(format!("gpumem-code-{}.ptx", std::process::id()));
    let written = std::fs::write(&path, gpumem_kernels::PTX.to_bytes()).is_ok();
    let Some(file) = path.to_str().and_then(|path| CString::new(path).ok()).filter(|_| written) else {
        return skip("no file for the code");
    };
    let (mut module, mut library, mut function) = (null_mut(), null_mut(), null_mut());
    let image = gpumem_kernels::PTX.as_ptr().cast();
    let name = Kernel::Fill.name().as_ptr();
    let loads = [
        cu!(cuModuleLoad(&mut module, file.as_ptr())),
        cu!(cuModuleGetFunction(&mut function, module, name)),
        cu!(cuModuleUnload(module)),
        cu!(cuModuleLoadDataEx(&mut module, image, 0, null_mut(), null_mut())),
        cu!(cuModuleGetFunction(&mut function, module, name)),
        cu!(cuModuleUnload(module)),
        cu!(cuLibraryLoadFromFile(&mut library, file.as_ptr(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0)),
        cu!(cuLibraryUnload(library)),
    ];
    t.eq("loads, lookups and unloads", loads, [0; 8]);
    let garbage = c"no code at all".as_ptr().cast();
    let refused = [
        cu!(cuModuleLoadData(&mut module, garbage)),
        cu!(cuModuleLoadDataEx(&mut module, garbage, 0, null_mut(), null_mut())),
        cu!(cuModuleLoadFatBinary(&mut module, garbage)),
        cu!(cuModuleLoad(&mut module, c"/no/such/file".as_ptr())),
    ];
    t.yes("what is no code is refused", refused.iter().all(|&status| status != 0));
    let _ = std::fs::remove_file(path);
    Ok(())
}
