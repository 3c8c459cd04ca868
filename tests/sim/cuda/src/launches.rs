//! Kernel launches.

use crate::abi::{Call, H, In, bytes_at};
use crate::structs::{KernelNode, LaunchAttribute, LaunchConfig};
use gpumem_sim_engine::launch::{Shape, kernel};
use gpumem_sim_engine::node::{Attrs, Kernel, Kind, attr};
use gpumem_sim_engine::{Error, Result, attrs, capture, lock, stream};

/// The packed block of `extra`, if there is one.
fn extra_block(extra: usize) -> Result<Option<Vec<u8>>> {
    if extra == 0 {
        return Ok(None);
    }
    let (mut at, mut size) = (0, 0);
    for pair in 0.. {
        let item = |i: usize| In::<usize>::at(extra + (pair * 2 + i) * 8).get();
        match item(0)? {
            0 => break,
            1 => at = item(1)?,
            2 => size = In::<usize>::at(item(1)?).get()?,
            _ => return Err(Error::INVALID_VALUE),
        }
    }
    if at == 0 { Err(Error::INVALID_VALUE) } else { Ok(Some(bytes_at(at, size))) }
}

fn build(shape: Shape, params: usize, extra: usize) -> Result<Kernel> {
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

/// A kernel node's parameters into the engine's form.
pub fn node_kernel(p: &KernelNode, ctx: H) -> Result<Kernel> {
    let ctx = if p.ctx != 0 { p.ctx } else { ctx };
    let v = &p.v1;
    let func = if v.func != 0 { v.func } else { crate::modules::resolve(p.kern, ctx)? };
    // Unlike a launch, a node takes no kernel for a function.
    if lock().function(func)?.module == 0 {
        return Err(Error::INVALID_HANDLE);
    }
    let shape = Shape { func, grid: v.grid, block: v.block, shared: v.shared, attrs: Attrs::new() };
    build(shape, v.params, v.extra).map_err(|error| match error {
        Error::LAUNCH_OUT_OF_RESOURCES => Error::INVALID_VALUE,
        other => other,
    })
}

fn launch(c: &Call, mut shape: Shape, s: H, params: usize, extra: usize) -> Result {
    let s = c.stream(s)?;
    shape.func = crate::modules::resolve(shape.func, c.ctx)?;
    // A policy for synchronising is not an attribute of a launch.
    if shape.attrs.contains_key(&3) {
        return Err(Error::INVALID_VALUE);
    }
    let priority = lock().stream(s)?.priority;
    shape.attrs = attrs::captured(shape.attrs, priority);
    let k = build(shape, params, extra);
    let mut m = lock();
    // Where nothing captures, a cooperative launch takes a block (H200, driver 580).
    let block = match (&k, capture::active(&mut m, s)) {
        (Ok(k), Ok(true)) => attrs::takes_block(k.packed, &k.attrs),
        _ => Ok(()),
    };
    if block.is_err() || k == Err(Error::INVALID_CLUSTER_SIZE) {
        capture::invalidate_of(&mut m, s);
    }
    block?;
    stream::submit(&mut m, s, Kind::Kernel(k?)).map(drop)
}

fn flag_value(on: u32) -> [u8; 64] {
    let mut v = [0; 64];
    v[..4].copy_from_slice(&on.to_le_bytes());
    v
}

cu! {
    Ctx cuLaunchKernel [cuLaunchKernel 4000] [cuLaunchKernel_ptsz 7000]
    (c, f: H, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: H, params: usize, extra: usize) {
        let shape = Shape { func: f, grid: [gx, gy, gz], block: [bx, by, bz], shared, attrs: Attrs::new() };
        launch(c, shape, s, params, extra)
    }
    Ctx cuLaunchKernelEx [cuLaunchKernelEx 11060] [cuLaunchKernelEx_ptsz 11060]
    (c, config: In<LaunchConfig>, f: H, params: usize, extra: usize) {
        let k = config.get()?;
        let list = In::<LaunchAttribute>::at(k.attrs).list(k.count as usize)?;
        let attrs = list.into_iter().map(|a| (a.id, a.value)).collect();
        let shape = Shape { func: f, grid: k.grid, block: k.block, shared: k.shared, attrs };
        launch(c, shape, k.stream, params, extra)
    }
    Ctx cuLaunchCooperativeKernel [cuLaunchCooperativeKernel 9000] [cuLaunchCooperativeKernel_ptsz 9000]
    (c, f: H, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, s: H, params: usize) {
        let attrs = Attrs::from([(attr::COOPERATIVE, flag_value(1))]);
        let shape = Shape { func: f, grid: [gx, gy, gz], block: [bx, by, bz], shared, attrs };
        launch(c, shape, s, params, 0)
    }
}
