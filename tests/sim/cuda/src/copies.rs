//! Copies and memsets.

use crate::abi::{Call, H, In};
use crate::structs::{Memcpy2D, Memcpy3D, Side2D, Side3D};
use gpumem_sim_engine::copy::{copy_async, copy_sync, set};
use gpumem_sim_engine::node::{Copy3D, Memset, Side, space};
use gpumem_sim_engine::{Error, Result};

fn side2(s: &Side2D) -> Side {
    let at = match s.space {
        space::HOST => s.host,
        space::ARRAY => s.array as u64,
        _ => s.device,
    };
    Side { space: s.space, at, x: s.x as u64, y: s.y as u64, z: 0, pitch: s.pitch as u64, height: 0 }
}

fn side3(s: &Side3D) -> Side {
    let at = match s.space {
        space::HOST => s.host,
        space::ARRAY => s.array as u64,
        _ => s.device,
    };
    let (x, y, z) = (s.x as u64, s.y as u64, s.z as u64);
    Side { space: s.space, at, x, y, z, pitch: s.pitch as u64, height: s.height as u64 }
}

/// The engine's copy of a 3D descriptor; nodes use it too.
pub fn copy3(p: &Memcpy3D) -> Result<Copy3D> {
    for s in [&p.src, &p.dst] {
        if !(1..=4).contains(&s.space) {
            return Err(Error::INVALID_VALUE);
        }
    }
    let (width, height, depth) = (p.width as u64, p.height as u64, p.depth as u64);
    Ok(Copy3D { src: side3(&p.src), dst: side3(&p.dst), width, height, depth })
}

/// And back, for GetParams.
pub fn uncopy3(c: &Copy3D) -> Memcpy3D {
    let side = |s: &Side| {
        let mut out = Side3D {
            x: s.x as usize,
            y: s.y as usize,
            z: s.z as usize,
            space: s.space,
            pitch: s.pitch as usize,
            height: s.height as usize,
            ..Side3D::default()
        };
        match s.space {
            space::HOST => out.host = s.at,
            space::ARRAY => out.array = s.at as H,
            _ => out.device = s.at,
        }
        out
    };
    Memcpy3D {
        src: side(&c.src),
        dst: side(&c.dst),
        width: c.width as usize,
        height: c.height as usize,
        depth: c.depth as usize,
    }
}

fn copy2(p: In<Memcpy2D>) -> Result<Copy3D> {
    let p = p.get()?;
    let mut c =
        Copy3D { src: side2(&p.src), dst: side2(&p.dst), width: p.width as u64, height: p.height as u64, depth: 1 };
    for s in [&mut c.src, &mut c.dst] {
        if !(1..=4).contains(&s.space) || (s.space != space::ARRAY && s.pitch != 0 && s.pitch < c.width) {
            return Err(Error::INVALID_VALUE);
        }
        if s.pitch == 0 {
            s.pitch = c.width;
        }
    }
    Ok(c)
}

/// One linear side in device, host or any memory.
fn linear(dst: (u64, u32), src: (u64, u32), n: usize) -> Copy3D {
    let mut c = Copy3D::linear(dst.0, src.0, n as u64);
    c.dst.space = dst.1;
    c.src.space = src.1;
    c
}

fn array(h: H, x: usize) -> Side {
    Side { space: space::ARRAY, at: h as u64, x: x as u64, ..Side::default() }
}

#[allow(clippy::too_many_arguments)]
fn memset(c: &Call, h: H, sync: bool, dst: u64, pitch: usize, value: u32, elem: u32, size: (usize, usize)) -> Result {
    let s = c.stream(h)?;
    let (width, height) = (size.0 as u64, size.1 as u64);
    set(s, Memset { dst, pitch: pitch as u64, value, elem, width, height }, sync)
}

const D: u32 = space::DEVICE;
const HOST: u32 = space::HOST;
const U: u32 = space::UNIFIED;

cu! {
    Ctx cuMemcpy [cuMemcpy 4000] [cuMemcpy_ptds 7000] (c, d: u64, s: u64, n: usize) {
        copy_sync(c.stream(0)?, linear((d, U), (s, U), n))
    }
    Ctx cuMemcpyAsync [cuMemcpyAsync 4000] [cuMemcpyAsync_ptsz 7000] (c, d: u64, s: u64, n: usize, h: H) {
        copy_async(c.stream(h)?, linear((d, U), (s, U), n))
    }
    Ctx cuMemcpyHtoD [cuMemcpyHtoD_v2 3020] [cuMemcpyHtoD_v2_ptds 7000] (c, d: u64, s: u64, n: usize) {
        copy_sync(c.stream(0)?, linear((d, D), (s, HOST), n))
    }
    Ctx cuMemcpyDtoH [cuMemcpyDtoH_v2 3020] [cuMemcpyDtoH_v2_ptds 7000] (c, d: u64, s: u64, n: usize) {
        copy_sync(c.stream(0)?, linear((d, HOST), (s, D), n))
    }
    Ctx cuMemcpyDtoD [cuMemcpyDtoD_v2 3020] [cuMemcpyDtoD_v2_ptds 7000] (c, d: u64, s: u64, n: usize) {
        copy_sync(c.stream(0)?, linear((d, D), (s, D), n))
    }
    Ctx cuMemcpyHtoDAsync [cuMemcpyHtoDAsync_v2 3020] [cuMemcpyHtoDAsync_v2_ptsz 7000] (c, d: u64, s: u64, n: usize, h: H) {
        copy_async(c.stream(h)?, linear((d, D), (s, HOST), n))
    }
    Ctx cuMemcpyDtoHAsync [cuMemcpyDtoHAsync_v2 3020] [cuMemcpyDtoHAsync_v2_ptsz 7000] (c, d: u64, s: u64, n: usize, h: H) {
        copy_async(c.stream(h)?, linear((d, HOST), (s, D), n))
    }
    Ctx cuMemcpyDtoDAsync [cuMemcpyDtoDAsync_v2 3020] [cuMemcpyDtoDAsync_v2_ptsz 7000] (c, d: u64, s: u64, n: usize, h: H) {
        copy_async(c.stream(h)?, linear((d, D), (s, D), n))
    }
    Ctx cuMemcpyPeer [cuMemcpyPeer 4000] [cuMemcpyPeer_ptds 7000] (c, d: u64, dc: H, s: u64, sc: H, n: usize) {
        let _ = (dc, sc);
        copy_sync(c.stream(0)?, linear((d, D), (s, D), n))
    }
    Ctx cuMemcpyPeerAsync [cuMemcpyPeerAsync 4000] [cuMemcpyPeerAsync_ptsz 7000]
    (c, d: u64, dc: H, s: u64, sc: H, n: usize, h: H) {
        let _ = (dc, sc);
        copy_async(c.stream(h)?, linear((d, D), (s, D), n))
    }
    Ctx cuMemcpy2D [cuMemcpy2D_v2 3020] [cuMemcpy2D_v2_ptds 7000] (c, p: In<Memcpy2D>) {
        copy_sync(c.stream(0)?, copy2(p)?)
    }
    Ctx cuMemcpy2DUnaligned [cuMemcpy2DUnaligned_v2 3020] [cuMemcpy2DUnaligned_v2_ptds 7000] (c, p: In<Memcpy2D>) {
        copy_sync(c.stream(0)?, copy2(p)?)
    }
    Ctx cuMemcpy2DAsync [cuMemcpy2DAsync_v2 3020] [cuMemcpy2DAsync_v2_ptsz 7000] (c, p: In<Memcpy2D>, h: H) {
        copy_async(c.stream(h)?, copy2(p)?)
    }
    Ctx cuMemcpy3D [cuMemcpy3D_v2 3020] [cuMemcpy3D_v2_ptds 7000] (c, p: In<Memcpy3D>) {
        copy_sync(c.stream(0)?, copy3(&p.get()?)?)
    }
    Ctx cuMemcpy3DAsync [cuMemcpy3DAsync_v2 3020] [cuMemcpy3DAsync_v2_ptsz 7000] (c, p: In<Memcpy3D>, h: H) {
        copy_async(c.stream(h)?, copy3(&p.get()?)?)
    }
    Ctx cuMemcpy3DPeer [cuMemcpy3DPeer 4000] [cuMemcpy3DPeer_ptds 7000] (c, p: In<Memcpy3D>) {
        copy_sync(c.stream(0)?, copy3(&p.get()?)?)
    }
    Ctx cuMemcpy3DPeerAsync [cuMemcpy3DPeerAsync 4000] [cuMemcpy3DPeerAsync_ptsz 7000] (c, p: In<Memcpy3D>, h: H) {
        copy_async(c.stream(h)?, copy3(&p.get()?)?)
    }
    Ctx cuMemcpyHtoA [cuMemcpyHtoA_v2 3020] [cuMemcpyHtoA_v2_ptds 7000] (c, d: H, x: usize, s: u64, n: usize) {
        let mut k = linear((0, U), (s, U), n);
        k.dst = array(d, x);
        copy_sync(c.stream(0)?, k)
    }
    Ctx cuMemcpyAtoH [cuMemcpyAtoH_v2 3020] [cuMemcpyAtoH_v2_ptds 7000] (c, d: u64, s: H, x: usize, n: usize) {
        let mut k = linear((d, U), (0, U), n);
        k.src = array(s, x);
        copy_sync(c.stream(0)?, k)
    }
    Ctx cuMemsetD8 [cuMemsetD8_v2 3020] [cuMemsetD8_v2_ptds 7000] (c, d: u64, v: u8, n: usize) {
        memset(c, 0, true, d, 0, v as u32, 1, (n, 1))
    }
    Ctx cuMemsetD16 [cuMemsetD16_v2 3020] [cuMemsetD16_v2_ptds 7000] (c, d: u64, v: u16, n: usize) {
        memset(c, 0, true, d, 0, v as u32, 2, (n, 1))
    }
    Ctx cuMemsetD32 [cuMemsetD32_v2 3020] [cuMemsetD32_v2_ptds 7000] (c, d: u64, v: u32, n: usize) {
        memset(c, 0, true, d, 0, v, 4, (n, 1))
    }
    Ctx cuMemsetD8Async [cuMemsetD8Async 3020] [cuMemsetD8Async_ptsz 7000] (c, d: u64, v: u8, n: usize, h: H) {
        memset(c, h, false, d, 0, v as u32, 1, (n, 1))
    }
    Ctx cuMemsetD16Async [cuMemsetD16Async 3020] [cuMemsetD16Async_ptsz 7000] (c, d: u64, v: u16, n: usize, h: H) {
        memset(c, h, false, d, 0, v as u32, 2, (n, 1))
    }
    Ctx cuMemsetD32Async [cuMemsetD32Async 3020] [cuMemsetD32Async_ptsz 7000] (c, d: u64, v: u32, n: usize, h: H) {
        memset(c, h, false, d, 0, v, 4, (n, 1))
    }
    Ctx cuMemsetD2D8 [cuMemsetD2D8_v2 3020] [cuMemsetD2D8_v2_ptds 7000] (c, d: u64, p: usize, v: u8, w: usize, n: usize) {
        memset(c, 0, true, d, p, v as u32, 1, (w, n))
    }
    Ctx cuMemsetD2D16 [cuMemsetD2D16_v2 3020] [cuMemsetD2D16_v2_ptds 7000] (c, d: u64, p: usize, v: u16, w: usize, n: usize) {
        memset(c, 0, true, d, p, v as u32, 2, (w, n))
    }
    Ctx cuMemsetD2D32 [cuMemsetD2D32_v2 3020] [cuMemsetD2D32_v2_ptds 7000] (c, d: u64, p: usize, v: u32, w: usize, n: usize) {
        memset(c, 0, true, d, p, v, 4, (w, n))
    }
    Ctx cuMemsetD2D8Async [cuMemsetD2D8Async 3020] [cuMemsetD2D8Async_ptsz 7000]
    (c, d: u64, p: usize, v: u8, w: usize, n: usize, h: H) {
        memset(c, h, false, d, p, v as u32, 1, (w, n))
    }
    Ctx cuMemsetD2D16Async [cuMemsetD2D16Async 3020] [cuMemsetD2D16Async_ptsz 7000]
    (c, d: u64, p: usize, v: u16, w: usize, n: usize, h: H) {
        memset(c, h, false, d, p, v as u32, 2, (w, n))
    }
    Ctx cuMemsetD2D32Async [cuMemsetD2D32Async 3020] [cuMemsetD2D32Async_ptsz 7000]
    (c, d: u64, p: usize, v: u32, w: usize, n: usize, h: H) {
        memset(c, h, false, d, p, v, 4, (w, n))
    }
}
