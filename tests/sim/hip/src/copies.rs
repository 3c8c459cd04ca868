//! Copies and memsets.

use crate::abi::{Call, H, In};
use crate::structs::{DrvMemcpy3D, DrvSide, Extent, Memcpy3D, PitchedPtr};
use gpumem_sim_engine::copy::{copy_async, copy_sync, set};
use gpumem_sim_engine::node::{Copy3D, Memset, Side, space};
use gpumem_sim_engine::{Error, Result, capture, lock};

const INVALID_DIRECTION: Error = Error(21);

/// Memory types of source and destination, from hipMemcpyKind; 1024 is a
/// device-to-device copy by other hardware.
fn spaces(kind: u32) -> Result<(u32, u32)> {
    use space::{DEVICE, HOST, UNIFIED};
    Ok(match kind {
        0 => (HOST, HOST),
        1 => (HOST, DEVICE),
        2 => (DEVICE, HOST),
        3 | 1024 => (DEVICE, DEVICE),
        4 => (UNIFIED, UNIFIED),
        _ => return Err(INVALID_DIRECTION),
    })
}

/// Copies `n` bytes. HIP finds out the kind of memory by itself, whatever the direction
/// says.
pub fn linear(dst: u64, src: u64, n: usize, kind: u32) -> Result<Copy3D> {
    spaces(kind)?;
    Ok(Copy3D::linear(dst, src, n as u64))
}

fn rows(dst: (u64, usize), src: (u64, usize), width: usize, height: usize, kind: u32) -> Result<Copy3D> {
    spaces(kind)?;
    if dst.1 < width || src.1 < width {
        return Err(Error(12)); // hipErrorInvalidPitchValue
    }
    let side = |(at, pitch): (u64, usize)| Side { space: space::UNIFIED, at, pitch: pitch as u64, ..Side::default() };
    Ok(Copy3D { src: side(src), dst: side(dst), width: width as u64, height: height as u64, depth: 1 })
}

fn array(h: H, x: usize, y: usize) -> Side {
    Side { space: space::ARRAY, at: h as u64, x: x as u64, y: y as u64, ..Side::default() }
}

/// The engine's copy of HIP's 3D descriptor; nodes use it too. Where an array
/// takes part, extents count its elements.
pub fn copy3(p: &Memcpy3D) -> Result<Copy3D> {
    if (p.src_array == 0) == (p.src.ptr == 0) || (p.dst_array == 0) == (p.dst.ptr == 0) {
        return Err(Error::INVALID_VALUE);
    }
    spaces(p.kind)?;
    let any = if p.src_array != 0 { p.src_array } else { p.dst_array };
    let elem = match any {
        0 => 1,
        h => lock().arrays.get(&h).ok_or(Error::INVALID_HANDLE)?.elem,
    };
    let side = |h: H, pos: [usize; 3], p: PitchedPtr| {
        let (x, y, z) = (pos[0] as u64, pos[1] as u64, pos[2] as u64);
        match h {
            0 => Side { space: space::UNIFIED, at: p.ptr, x, y, z, pitch: p.pitch as u64, height: p.ysize as u64 },
            h => Side { space: space::ARRAY, at: h as u64, x: x * elem, y, z, ..Side::default() },
        }
    };
    Ok(Copy3D {
        src: side(p.src_array, p.src_pos, p.src),
        dst: side(p.dst_array, p.dst_pos, p.dst),
        width: p.extent.width as u64 * elem,
        height: p.extent.height as u64,
        depth: p.extent.depth as u64,
    })
}

/// The engine's copy of the driver-style descriptor, whose x counts bytes.
pub fn drv_copy3(p: &DrvMemcpy3D) -> Result<Copy3D> {
    let side = |s: &DrvSide| {
        let (space, at) = match s.kind {
            1 => (space::HOST, s.host),
            2 => (space::DEVICE, s.device),
            10 => (space::ARRAY, s.array as u64),
            3 | 11 => (space::UNIFIED, s.device),
            _ => return Err(Error::INVALID_VALUE),
        };
        let [x, y, z] = s.pos.map(|n| n as u64);
        Ok(Side { space, at, x, y, z, pitch: s.pitch as u64, height: s.height as u64 })
    };
    let Extent { width, height, depth } = p.extent;
    Ok(Copy3D {
        src: side(&p.src)?,
        dst: side(&p.dst)?,
        width: width as u64,
        height: height as u64,
        depth: depth as u64,
    })
}

fn memset(c: &Call, h: H, sync: bool, dst: u64, pitch: usize, value: u32, elem: u32, size: (usize, usize)) -> Result {
    if sync {
        capture::forbid_any(&mut lock(), Error::CAPTURE_IMPLICIT)?;
    }
    let s = c.stream(h)?;
    let (width, height) = (size.0 as u64, size.1 as u64);
    let pitch = if height <= 1 { width * elem as u64 } else { pitch as u64 };
    set(s, Memset { dst, pitch, value, elem, width, height }, sync)
}

/// A copy that the caller waits for.
fn copied(s: H, what: Copy3D) -> Result {
    capture::forbid_any(&mut lock(), Error::CAPTURE_IMPLICIT)?;
    copy_sync(s, what)
}

hip! {
    Ctx hipMemcpy [hipMemcpy_spt] (c, d: u64, s: u64, n: usize, kind: u32) {
        copied(c.stream(0)?, linear(d, s, n, kind)?)
    }
    Ctx hipMemcpyAsync [hipMemcpyAsync_spt] (c, d: u64, s: u64, n: usize, kind: u32, h: H) {
        copy_async(c.stream(h)?, linear(d, s, n, kind)?)
    }
    Ctx hipMemcpyWithStream [] (c, d: u64, s: u64, n: usize, kind: u32, h: H) {
        copied(c.stream(h)?, linear(d, s, n, kind)?)
    }
    Ctx hipMemcpyHtoD [] (c, d: u64, s: u64, n: usize) { copied(c.stream(0)?, linear(d, s, n, 1)?) }
    Ctx hipMemcpyDtoH [] (c, d: u64, s: u64, n: usize) { copied(c.stream(0)?, linear(d, s, n, 2)?) }
    Ctx hipMemcpyDtoD [] (c, d: u64, s: u64, n: usize) { copied(c.stream(0)?, linear(d, s, n, 3)?) }
    Ctx hipMemcpyHtoDAsync [] (c, d: u64, s: u64, n: usize, h: H) { copy_async(c.stream(h)?, linear(d, s, n, 1)?) }
    Ctx hipMemcpyDtoHAsync [] (c, d: u64, s: u64, n: usize, h: H) { copy_async(c.stream(h)?, linear(d, s, n, 2)?) }
    Ctx hipMemcpyDtoDAsync [] (c, d: u64, s: u64, n: usize, h: H) { copy_async(c.stream(h)?, linear(d, s, n, 3)?) }
    Ctx hipMemcpy2D [hipMemcpy2D_spt] (c, d: u64, dp: usize, s: u64, sp: usize, w: usize, h: usize, kind: u32) {
        copied(c.stream(0)?, rows((d, dp), (s, sp), w, h, kind)?)
    }
    Ctx hipMemcpy2DAsync [hipMemcpy2DAsync_spt]
    (c, d: u64, dp: usize, s: u64, sp: usize, w: usize, h: usize, kind: u32, st: H) {
        copy_async(c.stream(st)?, rows((d, dp), (s, sp), w, h, kind)?)
    }
    Ctx hipMemcpy2DToArray [] (c, d: H, x: usize, y: usize, s: u64, sp: usize, w: usize, h: usize, kind: u32) {
        let mut k = rows((0, w), (s, sp), w, h, kind)?;
        k.dst = array(d, x, y);
        copied(c.stream(0)?, k)
    }
    Ctx hipMemcpy2DFromArray [] (c, d: u64, dp: usize, s: H, x: usize, y: usize, w: usize, h: usize, kind: u32) {
        let mut k = rows((d, dp), (0, w), w, h, kind)?;
        k.src = array(s, x, y);
        copied(c.stream(0)?, k)
    }
    Ctx hipMemcpy3D [hipMemcpy3D_spt] (c, p: In<Memcpy3D>) { copied(c.stream(0)?, copy3(&p.get()?)?) }
    Ctx hipMemcpy3DAsync [hipMemcpy3DAsync_spt] (c, p: In<Memcpy3D>, h: H) {
        copy_async(c.stream(h)?, copy3(&p.get()?)?)
    }
    Ctx hipMemset [hipMemset_spt] (c, d: u64, v: i32, n: usize) { memset(c, 0, true, d, 0, v as u32, 1, (n, 1)) }
    Ctx hipMemsetAsync [hipMemsetAsync_spt] (c, d: u64, v: i32, n: usize, h: H) {
        memset(c, h, false, d, 0, v as u32, 1, (n, 1))
    }
    Ctx hipMemsetD8 [] (c, d: u64, v: u8, n: usize) { memset(c, 0, true, d, 0, v as u32, 1, (n, 1)) }
    Ctx hipMemsetD16 [] (c, d: u64, v: u16, n: usize) { memset(c, 0, true, d, 0, v as u32, 2, (n, 1)) }
    Ctx hipMemsetD32 [] (c, d: u64, v: u32, n: usize) { memset(c, 0, true, d, 0, v, 4, (n, 1)) }
    Ctx hipMemsetD8Async [] (c, d: u64, v: u8, n: usize, h: H) { memset(c, h, false, d, 0, v as u32, 1, (n, 1)) }
    Ctx hipMemsetD16Async [] (c, d: u64, v: u16, n: usize, h: H) { memset(c, h, false, d, 0, v as u32, 2, (n, 1)) }
    Ctx hipMemsetD32Async [] (c, d: u64, v: u32, n: usize, h: H) { memset(c, h, false, d, 0, v, 4, (n, 1)) }
    Ctx hipMemset2D [hipMemset2D_spt] (c, d: u64, pitch: usize, v: i32, w: usize, h: usize) {
        memset(c, 0, true, d, pitch, v as u32, 1, (w, h))
    }
    Ctx hipMemset2DAsync [hipMemset2DAsync_spt] (c, d: u64, pitch: usize, v: i32, w: usize, h: usize, s: H) {
        memset(c, s, false, d, pitch, v as u32, 1, (w, h))
    }
}
