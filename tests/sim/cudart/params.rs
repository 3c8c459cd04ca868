//! Structures of the runtime, and how they become the driver's.

use super::core::{INVALID_VALUE, ask, read};
use super::driver::{P, Result, Rt};

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dim3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PitchedPtr {
    pub ptr: P,
    pub pitch: usize,
    pub xsize: usize,
    pub ysize: usize,
}

/// cudaMemcpy3DParms.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Memcpy3D {
    pub src_array: P,
    pub src_pos: [usize; 3],
    pub src: PitchedPtr,
    pub dst_array: P,
    pub dst_pos: [usize; 3],
    pub dst: PitchedPtr,
    pub extent: Extent,
    pub kind: u32,
}

/// One side of CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CuSide {
    pub x: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub space: u32,
    pub host: P,
    pub device: P,
    pub array: P,
    pub reserved: P,
    pub pitch: usize,
    pub height: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CuMemcpy3D {
    pub src: CuSide,
    pub dst: CuSide,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// cudaKernelNodeParams.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KernelNode {
    pub func: P,
    pub grid: Dim3,
    pub block: Dim3,
    pub shared: u32,
    pub params: P,
    pub extra: P,
}

/// CUDA_KERNEL_NODE_PARAMS_v2.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CuKernelNode {
    pub node: KernelNode,
    pub kern: P,
    pub ctx: P,
}

const _: () = {
    use cudarc::{driver::sys as cu, runtime::sys as rt};
    assert!(size_of::<CuMemcpy3D>() == size_of::<cu::CUDA_MEMCPY3D_st>());
    assert!(size_of::<CuKernelNode>() == size_of::<cu::CUDA_KERNEL_NODE_PARAMS_v2_st>());
    assert!(size_of::<KernelNode>() == size_of::<rt::cudaKernelNodeParams>());
    assert!(size_of::<Memcpy3D>() == size_of::<rt::cudaMemcpy3DParms>());
    assert!(size_of::<PitchedPtr>() == size_of::<rt::cudaPitchedPtr>());
};

const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// Memory types of source and destination, from cudaMemcpyKind.
fn spaces(kind: u32) -> Result<(u32, u32)> {
    Ok(match kind {
        0 => (HOST, HOST),
        1 => (HOST, DEVICE),
        2 => (DEVICE, HOST),
        3 => (DEVICE, DEVICE),
        4 => (UNIFIED, UNIFIED),
        _ => return Err(21),
    })
}

/// Bytes of one element of an array.
pub fn element_size(rt: Rt, array: P) -> Result<usize> {
    #[repr(C)]
    #[derive(Default)]
    struct Desc {
        size: [usize; 3],
        format: u32,
        channels: u32,
        flags: u32,
    }
    let d: Desc = ask(|p| rt.cuArray3DGetDescriptor(p, array))?;
    let bytes = match d.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    };
    Ok(bytes * d.channels as usize)
}

fn side(space: u32, array: P, pos: [usize; 3], p: PitchedPtr, elem: usize) -> CuSide {
    let mut s = CuSide { x: pos[0], y: pos[1], z: pos[2], space, pitch: p.pitch, height: p.ysize, ..CuSide::default() };
    if array != 0 {
        s.space = ARRAY;
        s.array = array;
        s.x = pos[0] * elem;
    } else if space == HOST {
        s.host = p.ptr;
    } else {
        s.device = p.ptr;
    }
    s
}

/// A 3D copy as the driver wants it.
pub fn copy3(rt: Rt, p: P) -> Result<CuMemcpy3D> {
    convert(rt, &read(p)?)
}

pub fn convert(rt: Rt, p: &Memcpy3D) -> Result<CuMemcpy3D> {
    if (p.src_array == 0) == (p.src.ptr == 0) || (p.dst_array == 0) == (p.dst.ptr == 0) {
        return Err(INVALID_VALUE);
    }
    let array = if p.src_array != 0 { p.src_array } else { p.dst_array };
    let elem = if array != 0 { element_size(rt, array)? } else { 1 };
    let (from, to) = spaces(p.kind)?;
    Ok(CuMemcpy3D {
        src: side(from, p.src_array, p.src_pos, p.src, elem),
        dst: side(to, p.dst_array, p.dst_pos, p.dst, elem),
        width: p.extent.width * elem,
        height: p.extent.height,
        depth: p.extent.depth,
    })
}

/// And back, for GetParams.
pub fn unconvert(c: &CuMemcpy3D) -> Memcpy3D {
    let ptr = |s: &CuSide| match s.space {
        HOST => s.host,
        ARRAY => 0,
        _ => s.device,
    };
    let pitched = |s: &CuSide| PitchedPtr { ptr: ptr(s), pitch: s.pitch, xsize: s.pitch, ysize: s.height };
    let kind = match (c.src.space, c.dst.space) {
        (HOST, HOST) => 0,
        (HOST, _) => 1,
        (_, HOST) => 2,
        (UNIFIED, _) | (_, UNIFIED) => 4,
        _ => 3,
    };
    Memcpy3D {
        src_array: c.src.array,
        src_pos: [c.src.x, c.src.y, c.src.z],
        src: pitched(&c.src),
        dst_array: c.dst.array,
        dst_pos: [c.dst.x, c.dst.y, c.dst.z],
        dst: pitched(&c.dst),
        extent: Extent { width: c.width, height: c.height, depth: c.depth },
        kind,
    }
}

/// A pitched copy without arrays, as the driver wants it.
pub fn copy2(d: P, dpitch: usize, s: P, spitch: usize, width: usize, height: usize, kind: u32) -> Result<CuMemcpy3D> {
    if width > dpitch || width > spitch {
        return Err(12);
    }
    let (from, to) = spaces(kind)?;
    let p = |ptr, pitch| PitchedPtr { ptr, pitch, xsize: width, ysize: height };
    Ok(CuMemcpy3D {
        src: side(from, 0, [0; 3], p(s, spitch), 1),
        dst: side(to, 0, [0; 3], p(d, dpitch), 1),
        width,
        height,
        depth: 1,
    })
}
