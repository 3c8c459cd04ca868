//! Arrays: rows of texels in ordinary memory.

use crate::abi::{H, In, Out};
use crate::structs::{Array3DDesc, ArrayDesc};
use gpumem_sim_engine::memory::{Array, create_array, destroy_array};
use gpumem_sim_engine::{Error, Result, lock};

/// Bytes of one channel of a CUarray_format.
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

fn descriptor(h: H) -> Result<Array3DDesc> {
    let a = *lock().arrays.get(&h).ok_or(Error::INVALID_HANDLE)?;
    let (width, height, depth) = (a.width as usize, a.height as usize, a.depth as usize);
    Ok(Array3DDesc { width, height, depth, format: a.format, channels: a.channels, flags: a.flags })
}

cu! {
    Ctx cuArrayCreate [cuArrayCreate_v2 3020] [] (c, out: Out<H>, p: In<ArrayDesc>) {
        out.need()?;
        let d = p.get()?;
        let d = Array3DDesc { width: d.width, height: d.height, depth: 0, format: d.format, channels: d.channels, flags: 0 };
        out.set(create_array(c.ctx, array_of(&d)?)?)
    }
    Ctx cuArray3DCreate [cuArray3DCreate_v2 3020] [] (c, out: Out<H>, p: In<Array3DDesc>) {
        out.need()?;
        out.set(create_array(c.ctx, array_of(&p.get()?)?)?)
    }
    Ctx cuArrayDestroy [cuArrayDestroy 2000] [] (c, h: H) { destroy_array(h) }
    Ctx cuArrayGetDescriptor [cuArrayGetDescriptor_v2 3020] [] (c, out: Out<ArrayDesc>, h: H) {
        let d = descriptor(h)?;
        out.set(ArrayDesc { width: d.width, height: d.height, format: d.format, channels: d.channels })
    }
    Ctx cuArray3DGetDescriptor [cuArray3DGetDescriptor_v2 3020] [] (c, out: Out<Array3DDesc>, h: H) {
        out.set(descriptor(h)?)
    }
}
