//! Arrays: rows of texels in ordinary memory.

use crate::abi::{H, In, Out};
use crate::structs::{Array3DDesc, ArrayDesc};
use gpumem_sim_engine::array::{array_of, create_array, create_mipmapped, destroy_array, destroy_mipmapped, level_of};
use gpumem_sim_engine::{Error, Result, lock};

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
    Ctx cuMipmappedArrayCreate [cuMipmappedArrayCreate 5000] [] (c, out: Out<H>, p: In<Array3DDesc>, levels: u32) {
        out.need()?;
        out.set(create_mipmapped(c.ctx, &p.get()?, levels)?)
    }
    Ctx cuMipmappedArrayGetLevel [cuMipmappedArrayGetLevel 5000] [] (c, out: Out<H>, h: H, level: u32) {
        out.set(level_of(h, level)?)
    }
    Ctx cuMipmappedArrayDestroy [cuMipmappedArrayDestroy 5000] [] (c, h: H) { destroy_mipmapped(h) }
}
