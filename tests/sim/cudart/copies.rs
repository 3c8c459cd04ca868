//! Copies and memsets.

use super::driver::{P, Result, Rt};
use super::params::{Extent, PitchedPtr, copy2, copy3};

fn copy(rt: Rt, d: P, s: P, n: usize, kind: u32) -> Result {
    if n == 0 {
        return Ok(());
    }
    match kind {
        0 | 4 => rt.cuMemcpy(d, s, n),
        1 => rt.cuMemcpyHtoD(d, s, n),
        2 => rt.cuMemcpyDtoH(d, s, n),
        3 => rt.cuMemcpyDtoD(d, s, n),
        _ => Err(21),
    }
}

fn copy_async(rt: Rt, d: P, s: P, n: usize, kind: u32, st: P) -> Result {
    if n == 0 {
        return Ok(());
    }
    match kind {
        0 | 4 => rt.cuMemcpyAsync(d, s, n, st),
        1 => rt.cuMemcpyHtoDAsync(d, s, n, st),
        2 => rt.cuMemcpyDtoHAsync(d, s, n, st),
        3 => rt.cuMemcpyDtoDAsync(d, s, n, st),
        _ => Err(21),
    }
}

/// A 3D memset is one of rows if the slices lie without gaps.
fn flat(p: PitchedPtr, size: Extent) -> Result<(P, usize, usize, usize)> {
    if size.depth > 1 && p.ysize != size.height {
        return Err(1);
    }
    Ok((p.ptr, p.pitch, size.width, size.height * size.depth))
}

rt! {
    Ctx cudaMemcpy [cudaMemcpy_ptds] (rt, d: P, s: P, n: usize, kind: u32) { copy(rt, d, s, n, kind) }
    Ctx cudaMemcpyAsync [cudaMemcpyAsync_ptsz] (rt, d: P, s: P, n: usize, kind: u32, st: P) {
        copy_async(rt, d, s, n, kind, st)
    }
    Ctx cudaMemcpy2D [cudaMemcpy2D_ptds] (rt, d: P, dp: usize, s: P, sp: usize, w: usize, h: usize, kind: u32) {
        let c = copy2(d, dp, s, sp, w, h, kind)?;
        rt.cuMemcpy3D(&raw const c as P)
    }
    Ctx cudaMemcpy2DAsync [cudaMemcpy2DAsync_ptsz] (rt, d: P, dp: usize, s: P, sp: usize, w: usize, h: usize, kind: u32, st: P) {
        let c = copy2(d, dp, s, sp, w, h, kind)?;
        rt.cuMemcpy3DAsync(&raw const c as P, st)
    }
    Ctx cudaMemcpy3D [cudaMemcpy3D_ptds] (rt, p: P) {
        let c = copy3(rt, p)?;
        rt.cuMemcpy3D(&raw const c as P)
    }
    Ctx cudaMemcpy3DAsync [cudaMemcpy3DAsync_ptsz] (rt, p: P, st: P) {
        let c = copy3(rt, p)?;
        rt.cuMemcpy3DAsync(&raw const c as P, st)
    }
    Ctx cudaMemcpyPeer [] (rt, d: P, dd: i32, s: P, sd: i32, n: usize) {
        let (dc, sc) = (super::core::primary(rt, dd)?, super::core::primary(rt, sd)?);
        rt.cuMemcpyPeer(d, dc, s, sc, n)
    }
    Ctx cudaMemcpyPeerAsync [] (rt, d: P, dd: i32, s: P, sd: i32, n: usize, st: P) {
        let (dc, sc) = (super::core::primary(rt, dd)?, super::core::primary(rt, sd)?);
        rt.cuMemcpyPeerAsync(d, dc, s, sc, n, st)
    }
    Ctx cudaMemset [cudaMemset_ptds] (rt, d: P, v: i32, n: usize) { rt.cuMemsetD8(d, v as u8, n) }
    Ctx cudaMemsetAsync [cudaMemsetAsync_ptsz] (rt, d: P, v: i32, n: usize, st: P) { rt.cuMemsetD8Async(d, v as u8, n, st) }
    Ctx cudaMemset2D [cudaMemset2D_ptds] (rt, d: P, pitch: usize, v: i32, w: usize, h: usize) {
        rt.cuMemsetD2D8(d, pitch, v as u8, w, h)
    }
    Ctx cudaMemset2DAsync [cudaMemset2DAsync_ptsz] (rt, d: P, pitch: usize, v: i32, w: usize, h: usize, st: P) {
        rt.cuMemsetD2D8Async(d, pitch, v as u8, w, h, st)
    }
    Ctx cudaMemset3D [cudaMemset3D_ptds] (rt, p: PitchedPtr, v: i32, size: Extent) {
        let (d, pitch, w, h) = flat(p, size)?;
        rt.cuMemsetD2D8(d, pitch, v as u8, w, h)
    }
    Ctx cudaMemset3DAsync [cudaMemset3DAsync_ptsz] (rt, p: PitchedPtr, v: i32, size: Extent, st: P) {
        let (d, pitch, w, h) = flat(p, size)?;
        rt.cuMemsetD2D8Async(d, pitch, v as u8, w, h, st)
    }
}
