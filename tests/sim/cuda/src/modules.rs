//! Modules, libraries, functions and kernels.

use crate::abi::{H, In, Out, Text};
use gpumem_sim_engine::{Error, Result, lock, module};

/// The text of an image: PTX is NUL-terminated; cubins and fat binaries are
/// refused, since nothing here could run them.
fn text_of(image: usize) -> Result<String> {
    let magic: u32 = In::at(image).get()?;
    if magic == u32::from_le_bytes(*b"\x7fELF") || magic == 0xba55_ed50 || magic == 0x4662_43b1 {
        return Err(Error(209));
    }
    Text(image as *const _).get()
}

fn read_file(path: Text) -> Result<String> {
    std::fs::read_to_string(path.get()?).map_err(|_| Error::FILE_NOT_FOUND)
}

/// A kernel of a library can stand where a function is asked for.
pub fn resolve(func: H, ctx: H) -> Result<H> {
    let is_kernel = lock().function(func)?.module == 0;
    if is_kernel { module::kernel_function(func, ctx) } else { Ok(func) }
}

fn param_info(h: H, index: usize, off: Out<usize>, size: Out<usize>) -> Result {
    let layout = lock().function(h)?.layout.clone();
    let (o, s) = *layout.get(index).ok_or(Error::INVALID_VALUE)?;
    off.put(o as usize);
    size.put(s as usize);
    Ok(())
}

/// Refuses a kernel of a library: it is a function only in a context.
fn in_context(h: H) -> Result {
    if lock().function(h)?.module == 0 { Err(Error::INVALID_HANDLE) } else { Ok(()) }
}

fn name_of(h: H, out: Out<usize>) -> Result {
    out.set(lock().function(h)?.c_name.as_ptr() as usize)
}

cu! {
    Ctx cuModuleLoad [cuModuleLoad 2000] [] (c, out: Out<H>, path: Text) {
        out.need()?;
        out.set(module::load(c.ctx, &read_file(path)?)?)
    }
    Ctx cuModuleLoadData [cuModuleLoadData 2000] [] (c, out: Out<H>, image: usize) {
        out.need()?;
        out.set(module::load(c.ctx, &text_of(image)?)?)
    }
    Ctx cuModuleLoadDataEx [cuModuleLoadDataEx 2010] []
    (c, out: Out<H>, image: usize, n: u32, options: usize, values: usize) {
        let _ = (n, options, values);
        out.need()?;
        out.set(module::load(c.ctx, &text_of(image)?)?)
    }
    Ctx cuModuleLoadFatBinary [cuModuleLoadFatBinary 2000] [] (c, out: Out<H>, image: usize) {
        out.need()?;
        out.set(module::load(c.ctx, &text_of(image)?)?)
    }
    Ctx cuModuleUnload [cuModuleUnload 2000] [] (c, h: H) { module::unload(h) }
    Ctx cuModuleGetFunction [cuModuleGetFunction 2000] [] (c, out: Out<H>, h: H, name: Text) {
        out.set(module::function(h, &name.get()?)?)
    }
    Ctx cuModuleGetFunctionCount [cuModuleGetFunctionCount 12040] [] (c, out: Out<u32>, h: H) {
        out.set(lock().module(h)?.functions.len() as u32)
    }
    Ctx cuModuleEnumerateFunctions [cuModuleEnumerateFunctions 12040] [] (c, out: Out<H>, n: u32, h: H) {
        out.need()?.fill(n as usize, lock().module(h)?.functions.iter().copied());
        Ok(())
    }
    Ctx cuModuleGetGlobal [cuModuleGetGlobal_v2 3020] [] (c, ptr: Out<u64>, size: Out<usize>, h: H, name: Text) {
        let (p, s) = module::global(h, &name.get()?)?;
        ptr.put(p);
        size.put(s as usize);
        Ok(())
    }
    Init cuModuleGetLoadingMode [cuModuleGetLoadingMode 11070] [] (c, out: Out<u32>) { out.set(2) }
    Init cuLibraryLoadData [cuLibraryLoadData 12000] []
    (c, out: Out<H>, image: usize, jo: usize, jv: usize, jn: u32, lo: usize, lv: usize, ln: u32) {
        let _ = (jo, jv, jn, lo, lv, ln);
        out.need()?;
        out.set(module::load_library(&text_of(image)?)?)
    }
    Init cuLibraryLoadFromFile [cuLibraryLoadFromFile 12000] []
    (c, out: Out<H>, path: Text, jo: usize, jv: usize, jn: u32, lo: usize, lv: usize, ln: u32) {
        let _ = (jo, jv, jn, lo, lv, ln);
        out.need()?;
        out.set(module::load_library(&read_file(path)?)?)
    }
    Init cuLibraryUnload [cuLibraryUnload 12000] [] (c, h: H) { module::unload_library(h) }
    Init cuLibraryGetKernel [cuLibraryGetKernel 12000] [] (c, out: Out<H>, h: H, name: Text) {
        out.set(module::library_kernel(h, &name.get()?)?)
    }
    Init cuLibraryGetKernelCount [cuLibraryGetKernelCount 12040] [] (c, out: Out<u32>, h: H) {
        out.set(lock().library(h)?.kernels.len() as u32)
    }
    Init cuLibraryEnumerateKernels [cuLibraryEnumerateKernels 12040] [] (c, out: Out<H>, n: u32, h: H) {
        out.need()?.fill(n as usize, lock().library(h)?.kernels.iter().copied());
        Ok(())
    }
    Ctx cuLibraryGetModule [cuLibraryGetModule 12000] [] (c, out: Out<H>, h: H) {
        out.set(module::library_module(h, c.ctx)?)
    }
    Ctx cuLibraryGetGlobal [cuLibraryGetGlobal 12000] [] (c, ptr: Out<u64>, size: Out<usize>, h: H, name: Text) {
        let (p, s) = module::global(module::library_module(h, c.ctx)?, &name.get()?)?;
        ptr.put(p);
        size.put(s as usize);
        Ok(())
    }
    Ctx cuKernelGetFunction [cuKernelGetFunction 12000] [] (c, out: Out<H>, h: H) {
        out.set(module::kernel_function(h, c.ctx)?)
    }
    Init cuKernelGetLibrary [cuKernelGetLibrary 12050] [] (c, out: Out<H>, h: H) { out.set(lock().function(h)?.library) }
    Init cuKernelGetName [cuKernelGetName 12030] [] (c, out: Out<usize>, h: H) { name_of(h, out) }
    Init cuKernelGetParamInfo [cuKernelGetParamInfo 12040] [] (c, h: H, i: usize, off: Out<usize>, size: Out<usize>) {
        param_info(h, i, off, size)
    }
    Init cuKernelGetAttribute [cuKernelGetAttribute 12000] [] (c, out: Out<i32>, id: u32, h: H, dev: i32) {
        crate::devices::check(dev)?;
        out.set(lock().function_attribute(h, id)?)
    }
    Init cuKernelSetAttribute [cuKernelSetAttribute 12000] [] (c, id: u32, value: i32, h: H, dev: i32) {
        crate::devices::check(dev)?;
        lock().function(h)?.attrs.insert(id, value);
        Ok(())
    }
    Init cuKernelSetCacheConfig [cuKernelSetCacheConfig 12000] [] (c, h: H, value: u32, dev: i32) {
        let _ = (value, crate::devices::check(dev)?);
        lock().function(h).map(|_| ())
    }
    Init cuFuncGetName [cuFuncGetName 12030] [] (c, out: Out<usize>, h: H) {
        in_context(h)?;
        name_of(h, out)
    }
    Init cuFuncGetModule [cuFuncGetModule 11000] [] (c, out: Out<H>, h: H) {
        let module = lock().function(h)?.module;
        if module == 0 { Err(Error::INVALID_HANDLE) } else { out.set(module) }
    }
    Init cuFuncGetParamInfo [cuFuncGetParamInfo 12040] [] (c, h: H, i: usize, off: Out<usize>, size: Out<usize>) {
        param_info(h, i, off, size)
    }
    Init cuFuncGetAttribute [cuFuncGetAttribute 2020] [] (c, out: Out<i32>, id: u32, h: H) {
        in_context(h)?;
        out.set(lock().function_attribute(h, id)?)
    }
    Init cuFuncSetAttribute [cuFuncSetAttribute 9000] [] (c, h: H, id: u32, value: i32) {
        lock().function(h)?.attrs.insert(id, value);
        Ok(())
    }
    Init cuFuncSetCacheConfig [cuFuncSetCacheConfig 3000] [] (c, h: H, value: u32) {
        let _ = value;
        lock().function(h).map(|_| ())
    }
    Init cuFuncSetSharedMemConfig [cuFuncSetSharedMemConfig 4020] [] (c, h: H, value: u32) {
        let _ = value;
        lock().function(h).map(|_| ())
    }
    Init cuFuncIsLoaded [cuFuncIsLoaded 12040] [] (c, out: Out<u32>, h: H) {
        lock().function(h)?;
        out.set(1)
    }
    Init cuFuncLoad [cuFuncLoad 12040] [] (c, h: H) { lock().function(h).map(|_| ()) }
    Init cuOccupancyMaxActiveBlocksPerMultiprocessor [cuOccupancyMaxActiveBlocksPerMultiprocessor 6050] []
    (c, out: Out<i32>, h: H, block: i32, shared: usize) {
        let _ = (shared, lock().function(h)?.module);
        out.set((2048 / block.max(1)).clamp(0, 32))
    }
    Init cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags [cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000] []
    (c, out: Out<i32>, h: H, block: i32, shared: usize, flags: u32) {
        let _ = (shared, flags, lock().function(h)?.module);
        out.set((2048 / block.max(1)).clamp(0, 32))
    }
    Init cuOccupancyMaxPotentialBlockSize [cuOccupancyMaxPotentialBlockSize 6050] []
    (c, grid: Out<i32>, block: Out<i32>, h: H, dynamic: usize, shared: usize, limit: i32) {
        let _ = (dynamic, shared, lock().function(h)?.module);
        let b = if limit > 0 { limit.min(1024) } else { 1024 };
        grid.set(132 * (2048 / b))?;
        block.set(b)
    }
}
