//! Arrays: rows of texels in ordinary memory.

use crate::abi::{H, In, Out, answer};
use crate::reentry;
use crate::structs::{Array3DDesc, ArrayDesc, ChannelDesc, Extent};
use gpumem_sim_engine::array::{array_of, create_array, create_mipmapped, destroy_array, destroy_mipmapped, level_of};
use gpumem_sim_engine::{Error, Result};

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
        out.set(level_of(h, level)?)
    }
    Ctx hipFreeMipmappedArray [] (c, h: H) { destroy_mipmapped(h) }
    Ctx hipMipmappedArrayDestroy [] (c, h: H) { destroy_mipmapped(h) }
}
