//! Arrays: rows of texels in ordinary memory.

use crate::abi::{H, In, Out, answer};
use crate::reentry;
use crate::structs::{Array3DDesc, ArrayDesc, ChannelDesc, Extent};
use gpumem_sim_engine::memory::{Array, create_array, destroy_array};
use gpumem_sim_engine::{Error, Result, lock};
use std::collections::HashMap;
use std::sync::Mutex;

/// Levels of the mipmapped arrays that live.
static MIPMAPS: Mutex<Option<HashMap<H, Vec<H>>>> = Mutex::new(None);

fn mipmaps<R>(f: impl FnOnce(&mut HashMap<H, Vec<H>>) -> R) -> R {
    f(MIPMAPS.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default())
}

/// Bytes of one channel of a hipArray_Format.
fn format_size(format: u32) -> Result<u64> {
    Ok(match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(Error::INVALID_VALUE),
    })
}

fn array_of(d: &Array3DDesc) -> Result<Array> {
    if d.width == 0 || !matches!(d.channels, 1 | 2 | 4) {
        return Err(Error::INVALID_VALUE);
    }
    Ok(Array {
        addr: 0,
        width: d.width as u64,
        height: d.height as u64,
        depth: d.depth as u64,
        format: d.format,
        channels: d.channels,
        flags: d.flags,
        elem: format_size(d.format)? * d.channels as u64,
        level: false,
    })
}

/// The runtime's channel description in the driver's terms: bits of the first
/// channel, and signed (0), unsigned (1) or floating (2).
fn described(d: &ChannelDesc, size: Extent, flags: u32) -> Result<Array3DDesc> {
    let format = match (d.kind, d.x) {
        (0, 8) => 0x08,
        (0, 16) => 0x09,
        (0, 32) => 0x0a,
        (1, 8) => 0x01,
        (1, 16) => 0x02,
        (1, 32) => 0x03,
        (2, 16) => 0x10,
        (2, 32) => 0x20,
        _ => return Err(Error::INVALID_VALUE),
    };
    let channels = [d.x, d.y, d.z, d.w].iter().filter(|bits| **bits > 0).count() as u32;
    let Extent { width, height, depth } = size;
    Ok(Array3DDesc { width, height, depth, format, channels, flags })
}

fn destroy_levels(levels: Vec<H>) -> Result {
    for h in levels {
        if let Some(a) = lock().arrays.get_mut(&h) {
            a.level = false;
        }
        destroy_array(h)?;
    }
    Ok(())
}

fn create_levels(ctx: H, top: Array, count: u32) -> Result<Vec<H>> {
    let mut levels = Vec::new();
    for level in 0..count {
        let half = |n: u64| if n == 0 { 0 } else { (n >> level).max(1) };
        let a = Array { width: half(top.width), height: half(top.height), depth: half(top.depth), ..top };
        match create_array(ctx, a) {
            Ok(h) => levels.push(h),
            Err(e) => {
                destroy_levels(levels)?;
                return Err(e);
            }
        }
    }
    for h in &levels {
        if let Some(a) = lock().arrays.get_mut(h) {
            a.level = true;
        }
    }
    Ok(levels)
}

fn create_mipmapped(ctx: H, top: &Array3DDesc, levels: u32) -> Result<H> {
    if !(1..=32).contains(&levels) {
        return Err(Error::INVALID_VALUE);
    }
    let levels = create_levels(ctx, array_of(top)?, levels)?;
    let h = lock().handles.make("mipmapped array");
    mipmaps(|list| list.insert(h, levels));
    Ok(h)
}

fn destroy_mipmapped(h: H) -> Result {
    destroy_levels(mipmaps(|list| list.remove(&h)).ok_or(Error::INVALID_VALUE)?)
}

hip! {
    Ctx hipArrayCreate [] (c, out: Out<H>, p: In<ArrayDesc>) {
        out.need()?;
        let d = p.get()?;
        let d = Array3DDesc { width: d.width, height: d.height, depth: 0, format: d.format, channels: d.channels, flags: 0 };
        out.set(create_array(c.ctx, array_of(&d)?)?)
    }
    Ctx hipArray3DCreate [] (c, out: Out<H>, p: In<Array3DDesc>) {
        out.need()?;
        out.set(create_array(c.ctx, array_of(&p.get()?)?)?)
    }
    Ctx hipArrayDestroy [] (c, h: H) { destroy_array(h) }
    Ctx hipMallocArray [] (c, out: Out<H>, desc: In<ChannelDesc>, width: usize, height: usize, flags: u32) {
        out.need()?;
        let d = described(&desc.get()?, Extent { width, height, depth: 0 }, flags)?;
        out.set(create_array(c.ctx, array_of(&d)?)?)
    }
    Ctx hipMalloc3DArray [] (c, out: Out<H>, desc: In<ChannelDesc>, size: Extent, flags: u32) {
        out.need()?;
        let d = described(&desc.get()?, size, flags)?;
        out.set(create_array(c.ctx, array_of(&d)?)?)
    }
    Ctx hipFreeArray [] (c, h: H) { answer(reentry::array_destroy(h)) }
    Ctx hipMallocMipmappedArray [] (c, out: Out<H>, desc: In<ChannelDesc>, size: Extent, levels: u32, flags: u32) {
        out.need()?;
        out.set(create_mipmapped(c.ctx, &described(&desc.get()?, size, flags)?, levels)?)
    }
    Ctx hipMipmappedArrayCreate [] (c, out: Out<H>, p: In<Array3DDesc>, levels: u32) {
        out.need()?;
        out.set(create_mipmapped(c.ctx, &p.get()?, levels)?)
    }
    Ctx hipGetMipmappedArrayLevel [] (c, out: Out<H>, h: H, level: u32) {
        let found = mipmaps(|list| list.get(&h).and_then(|levels| levels.get(level as usize)).copied());
        out.set(found.ok_or(Error::INVALID_VALUE)?)
    }
    Ctx hipFreeMipmappedArray [] (c, h: H) { destroy_mipmapped(h) }
    Ctx hipMipmappedArrayDestroy [] (c, h: H) { destroy_mipmapped(h) }
}
