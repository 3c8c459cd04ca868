//! Kernels from libraries, and launching them.

use super::core::{INVALID_VALUE, ask, device, read, write};
use super::driver::P;
use super::params::Dim3;

/// cudaLaunchConfig_t; the driver's has a 32-bit shared memory size.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: P,
    attrs: P,
    count: u32,
}

#[repr(C)]
struct CuLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: u32,
    stream: P,
    attrs: P,
    count: u32,
}

const _: () = {
    use cudarc::{driver::sys as cu, runtime::sys as rt};
    assert!(size_of::<LaunchConfig>() == size_of::<rt::cudaLaunchConfig_st>());
    assert!(size_of::<CuLaunchConfig>() == size_of::<cu::CUlaunchConfig_st>());
};

/// cudaFuncAttributes up to what is answered; the rest is zero.
#[repr(C)]
struct FuncAttributes {
    shared: usize,
    constant: usize,
    local: usize,
    max_threads: i32,
    registers: i32,
    ptx: i32,
    binary: i32,
    cache_ca: i32,
    max_dynamic_shared: i32,
    carveout: i32,
    rest: [i32; 22],
}

rt! {
    Ctx cudaLibraryLoadData [] (rt, out: P, code: P, jo: P, jv: P, jn: u32, lo: P, lv: P, ln: u32) {
        rt.cuLibraryLoadData(out, code, jo, jv, jn, lo, lv, ln)
    }
    Ctx cudaLibraryLoadFromFile [] (rt, out: P, path: P, jo: P, jv: P, jn: u32, lo: P, lv: P, ln: u32) {
        rt.cuLibraryLoadFromFile(out, path, jo, jv, jn, lo, lv, ln)
    }
    Ctx cudaLibraryUnload [] (rt, lib: P) { rt.cuLibraryUnload(lib) }
    Ctx cudaLibraryGetKernel [] (rt, out: P, lib: P, name: P) { rt.cuLibraryGetKernel(out, lib, name) }
    Ctx cudaLibraryGetKernelCount [] (rt, out: P, lib: P) { rt.cuLibraryGetKernelCount(out, lib) }
    Ctx cudaLibraryEnumerateKernels [] (rt, out: P, n: u32, lib: P) { rt.cuLibraryEnumerateKernels(out, n, lib) }
    Ctx cudaLibraryGetGlobal [] (rt, out: P, size: P, lib: P, name: P) { rt.cuLibraryGetGlobal(out, size, lib, name) }
    Ctx cudaKernelSetAttributeForDevice [] (rt, k: P, id: u32, value: i32, dev: i32) {
        rt.cuKernelSetAttribute(id, value, k, dev)
    }
    Ctx cudaGetKernel [] (rt, out: P, f: P) { write(out, f) }
    Ctx cudaFuncGetName [] (rt, out: P, f: P) { rt.cuKernelGetName(out, f) }
    Ctx cudaFuncGetParamInfo [] (rt, f: P, i: usize, off: P, size: P) { rt.cuKernelGetParamInfo(f, i, off, size) }
    Ctx cudaFuncGetAttributes [] (rt, out: P, f: P) {
        let get = |id| ask::<i32>(|p| rt.cuKernelGetAttribute(p, id, f, device()));
        let a = FuncAttributes {
            shared: get(1)? as usize,
            constant: get(2)? as usize,
            local: get(3)? as usize,
            max_threads: get(0)?,
            registers: get(4)?,
            ptx: get(5)?,
            binary: get(6)?,
            cache_ca: 0,
            max_dynamic_shared: get(8)?,
            carveout: -1,
            rest: [0; 22],
        };
        write(out, a)
    }
    Ctx cudaFuncSetAttribute [] (rt, f: P, id: u32, value: i32) { rt.cuKernelSetAttribute(id, value, f, device()) }
    Ctx cudaFuncSetCacheConfig [] (rt, f: P, value: u32) {
        let _ = (f, value);
        Ok(())
    }
    Ctx cudaOccupancyMaxActiveBlocksPerMultiprocessor [] (rt, out: P, f: P, block: i32, shared: usize) {
        rt.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, shared, 0)
    }
    Ctx cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [] (rt, out: P, f: P, block: i32, shared: usize, flags: u32) {
        rt.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, shared, flags)
    }
    Ctx cudaLaunchKernel [cudaLaunchKernel_ptsz] (rt, f: P, grid: Dim3, block: Dim3, params: P, shared: usize, s: P) {
        rt.cuLaunchKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared as u32, s, params, 0)
    }
    Ctx cudaLaunchCooperativeKernel [cudaLaunchCooperativeKernel_ptsz]
    (rt, f: P, grid: Dim3, block: Dim3, params: P, shared: usize, s: P) {
        rt.cuLaunchCooperativeKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared as u32, s, params)
    }
    Ctx cudaLaunchKernelExC [cudaLaunchKernelExC_ptsz] (rt, config: P, f: P, params: P) {
        let c: LaunchConfig = read(config)?;
        if c.shared > u32::MAX as usize {
            return Err(INVALID_VALUE);
        }
        let k = CuLaunchConfig {
            grid: c.grid,
            block: c.block,
            shared: c.shared as u32,
            stream: c.stream,
            attrs: c.attrs,
            count: c.count,
        };
        rt.cuLaunchKernelEx(&raw const k as P, f, params, 0)
    }
}
