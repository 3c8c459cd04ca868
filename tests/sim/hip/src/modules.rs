//! Modules, functions, launches.

use crate::abi::{H, In, Out, Text, bytes_at};
use crate::events::record;
use crate::structs::{DrvLaunchConfig, LaunchAttribute, LaunchConfig};
use gpumem_sim_engine::launch::{Shape, kernel};
use gpumem_sim_engine::node::{Attrs, Kernel, Kind, attr};
use gpumem_sim_engine::{Error, Result, capture, lock, module, stream};

/// hipErrorNoBinaryForGpu.
const NO_BINARY: Error = Error(209);

/// The text of a code object; ELF files and offload bundles are refused, since
/// nothing here could run them.
fn text_of(image: usize) -> Result<String> {
    let magic: [u8; 4] = In::at(image).get()?;
    if &magic == b"\x7fELF" || &magic == b"__CL" || &magic == b"CCOB" {
        return Err(NO_BINARY);
    }
    Text(image as *const _).get()
}

/// The packed block of `extra`, if there is one: pairs of pointer (1) and size
/// (2), up to 3.
fn extra_block(extra: usize) -> Result<Option<Vec<u8>>> {
    if extra == 0 {
        return Ok(None);
    }
    let (mut at, mut size) = (0, 0);
    for pair in 0.. {
        let item = |i: usize| In::<usize>::at(extra + (pair * 2 + i) * 8).get();
        match item(0)? {
            3 => break,
            1 => at = item(1)?,
            2 => size = In::<usize>::at(item(1)?).get()?,
            _ => return Err(Error::INVALID_VALUE),
        }
    }
    if at == 0 { Err(Error::INVALID_VALUE) } else { Ok(Some(bytes_at(at, size))) }
}

/// A kernel with its parameters, from either of the two forms.
pub fn build(shape: Shape, params: usize, extra: usize) -> Result<Kernel> {
    if params != 0 && extra != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let packed = extra_block(extra)?;
    let read = |i: usize, n: usize| {
        // The list has one address per parameter of the kernel.
        In::<usize>::at(params + i * 8).get().map_or_else(|_| vec![0; n], |at| bytes_at(at, n))
    };
    kernel(shape, packed, if params != 0 { Some(&read) } else { None })
}

fn launch(s: H, shape: Shape, params: usize, extra: usize) -> Result {
    let k = build(shape, params, extra)?;
    stream::submit(&mut lock(), s, Kind::Kernel(k)).map(drop)
}

/// `dim3`, by value. Functions of the program are not registered here: `f` is always a module's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3([u32; 3]);

impl LaunchConfig {
    fn shape(&self, func: H) -> Result<Shape> {
        let list = In::<LaunchAttribute>::at(self.attributes).list(self.len as usize)?;
        let attrs = list.into_iter().map(|attribute| (attribute.id, attribute.value)).collect();
        Ok(Shape { func, grid: self.grid, block: self.block, shared: self.shared as u32, attrs })
    }
}

/// The attribute of kernels whose blocks work together.
fn together() -> Attrs {
    let mut on = [0; 64];
    on[0] = 1;
    Attrs::from([(attr::COOPERATIVE, on)])
}

/// Launches a kernel between two events. In a capture the kernel's node has the events, and here no launch of the graph
/// records them.
fn between(s: H, [start, stop]: [H; 2], shape: Shape, params: usize, extra: usize) -> Result {
    let captures = capture::active(&mut lock(), s)?;
    let record = |h: H| if h == 0 || captures { Ok(()) } else { record(h, s, 0) };
    record(start)?;
    launch(s, shape, params, extra)?;
    record(stop)
}

/// The same, with a grid in threads, which must be a multiple of the block.
#[allow(clippy::too_many_arguments)]
fn of_threads(
    s: H,
    events: [H; 2],
    f: H,
    threads: [u32; 3],
    block: [u32; 3],
    shared: usize,
    params: usize,
    extra: usize,
) -> Result {
    let mut grid = [0; 3];
    for (grid, (threads, block)) in grid.iter_mut().zip(threads.into_iter().zip(block)) {
        if threads.checked_rem(block) != Some(0) {
            return Err(Error::INVALID_VALUE);
        }
        *grid = threads / block;
    }
    let shape = Shape { func: f, grid, block, shared: shared as u32, attrs: Attrs::new() };
    between(s, events, shape, params, extra)
}

hip! {
    Ctx hipModuleLoad [] (c, out: Out<H>, path: Text) {
        out.need()?;
        let text = std::fs::read_to_string(path.get()?).map_err(|_| Error::FILE_NOT_FOUND)?;
        out.set(module::load(c.ctx, &text)?)
    }
    Ctx hipModuleLoadData [] (c, out: Out<H>, image: usize) {
        out.need()?;
        out.set(module::load(c.ctx, &text_of(image)?)?)
    }
    Ctx hipModuleLoadDataEx [] (c, out: Out<H>, image: usize, n: u32, options: usize, values: usize) {
        let _ = (n, options, values);
        out.need()?;
        out.set(module::load(c.ctx, &text_of(image)?)?)
    }
    Ctx hipModuleUnload [] (c, h: H) { module::unload(h) }
    Ctx hipLibraryLoadData []
    (c, out: Out<H>, image: usize, options: usize, values: usize, n: u32, own: usize, of_own: usize, of: u32) {
        let _ = (options, values, n, own, of_own, of);
        out.need()?;
        out.set(module::load_library(&text_of(image)?)?)
    }
    Ctx hipLibraryUnload [] (c, h: H) { module::unload_library(h) }
    Ctx hipModuleGetFunction [] (c, out: Out<H>, h: H, name: Text) { out.set(module::function(h, &name.get()?)?) }
    Ctx hipModuleGetGlobal [] (c, ptr: Out<u64>, size: Out<usize>, h: H, name: Text) {
        let (p, s) = module::global(h, &name.get()?)?;
        ptr.put(p);
        size.put(s as usize);
        Ok(())
    }
    Ctx hipModuleLaunchKernel []
    (c, f: H, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: H, params: usize, extra: usize) {
        let shape = Shape { func: f, grid: [gx, gy, gz], block: [bx, by, bz], shared, attrs: Attrs::new() };
        launch(c.stream(s)?, shape, params, extra)
    }
    Ctx hipModuleLaunchCooperativeKernel []
    (c, f: H, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: H, params: usize) {
        let shape = Shape { func: f, grid: [gx, gy, gz], block: [bx, by, bz], shared, attrs: together() };
        launch(c.stream(s)?, shape, params, 0)
    }
    Ctx hipLaunchCooperativeKernel [hipLaunchCooperativeKernel_spt]
    (c, f: H, grid: Dim3, block: Dim3, params: usize, shared: u32, s: H) {
        let shape = Shape { func: f, grid: grid.0, block: block.0, shared, attrs: together() };
        launch(c.stream(s)?, shape, params, 0)
    }
    Ctx hipExtLaunchKernel []
    (c, f: H, grid: Dim3, block: Dim3, params: usize, shared: usize, s: H, start: H, stop: H, flags: i32) {
        let _ = flags;
        let shape = Shape { func: f, grid: grid.0, block: block.0, shared: shared as u32, attrs: Attrs::new() };
        between(c.stream(s)?, [start, stop], shape, params, 0)
    }
    Ctx hipExtModuleLaunchKernel []
    (c, f: H, x: u32, y: u32, z: u32, bx: u32, by: u32, bz: u32, shared: usize, s: H, params: usize, extra: usize,
     start: H, stop: H, flags: u32) {
        let _ = flags;
        of_threads(c.stream(s)?, [start, stop], f, [x, y, z], [bx, by, bz], shared, params, extra)
    }
    Ctx hipHccModuleLaunchKernel []
    (c, f: H, x: u32, y: u32, z: u32, bx: u32, by: u32, bz: u32, shared: usize, s: H, params: usize, extra: usize,
     start: H, stop: H) {
        of_threads(c.stream(s)?, [start, stop], f, [x, y, z], [bx, by, bz], shared, params, extra)
    }
    Ctx hipLaunchKernelExC [] (c, config: In<LaunchConfig>, f: H, params: usize) {
        let config = config.get()?;
        launch(c.stream(config.stream)?, config.shape(f)?, params, 0)
    }
    Ctx hipDrvLaunchKernelEx [] (c, config: In<DrvLaunchConfig>, f: H, params: usize, extra: usize) {
        let config = config.get()?.plain();
        launch(c.stream(config.stream)?, config.shape(f)?, params, extra)
    }
    Init hipFuncGetAttribute [] (c, out: Out<i32>, id: u32, h: H) { out.set(lock().function_attribute(h, id)?) }
}
