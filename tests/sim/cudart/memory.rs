//! Allocations and pointers.

use super::core::{INVALID_VALUE, ask, read, write};
use super::driver::{IpcHandle, P, Result, Rt};
use super::params::{Extent, PitchedPtr, element_size};

/// For size 0 the runtime answers NULL without asking the driver.
fn sized(out: P, n: usize, alloc: impl FnOnce() -> Result) -> Result {
    if out == 0 {
        return Err(INVALID_VALUE);
    }
    if n == 0 { write(out, 0usize) } else { alloc() }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ArrayDesc {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// cudaChannelFormatDesc: bits of x, y, z, w and the kind of number.
#[repr(C)]
#[derive(Clone, Copy)]
struct Channel {
    bits: [i32; 4],
    kind: u32,
}

fn array_desc(channel: P, size: Extent, flags: u32) -> Result<ArrayDesc> {
    let c: Channel = read(channel)?;
    let format = match (c.kind, c.bits[0]) {
        (0, 8) => 0x08,
        (0, 16) => 0x09,
        (0, 32) => 0x0a,
        (1, 8) => 0x01,
        (1, 16) => 0x02,
        (1, 32) => 0x03,
        (2, 16) => 0x10,
        (2, 32) => 0x20,
        _ => return Err(INVALID_VALUE),
    };
    let channels = c.bits.iter().filter(|b| **b != 0).count() as u32;
    Ok(ArrayDesc { width: size.width, height: size.height, depth: size.depth, format, channels, flags })
}

fn array(rt: Rt, out: P, channel: P, size: Extent, flags: u32) -> Result {
    let desc = array_desc(channel, size, flags)?;
    rt.cuArray3DCreate(out, &raw const desc as P)
}

/// `(type, device, device pointer, host pointer)` as cudaPointerAttributes.
pub fn pointer_attributes(rt: Rt, p: P) -> Result<(u32, i32, P, P)> {
    let ids = [2u32, 3, 4, 8, 9];
    let (mut kind, mut dev_ptr, mut host_ptr, mut managed, mut device) = (0u32, 0usize, 0usize, 0u32, 0i32);
    let places = [
        &raw mut kind as P,
        &raw mut dev_ptr as P,
        &raw mut host_ptr as P,
        &raw mut managed as P,
        &raw mut device as P,
    ];
    rt.cuPointerGetAttributes(5, ids.as_ptr() as P, places.as_ptr() as P, p)?;
    Ok(match kind {
        0 => (0, -2, 0, p),
        _ if managed != 0 => (3, device, dev_ptr, host_ptr),
        k => (k, device, dev_ptr, host_ptr),
    })
}

rt! {
    Ctx cudaMalloc [] (rt, out: P, n: usize) { sized(out, n, || rt.cuMemAlloc(out, n)) }
    Ctx cudaFree [] (rt, p: P) { rt.cuMemFree(p) }
    Ctx cudaMallocHost [] (rt, out: P, n: usize) { sized(out, n, || rt.cuMemHostAlloc(out, n, 0)) }
    Ctx cudaHostAlloc [] (rt, out: P, n: usize, flags: u32) { sized(out, n, || rt.cuMemHostAlloc(out, n, flags)) }
    Ctx cudaFreeHost [] (rt, p: P) { rt.cuMemFreeHost(p) }
    Ctx cudaHostRegister [] (rt, p: P, n: usize, flags: u32) { rt.cuMemHostRegister(p, n, flags) }
    Ctx cudaHostUnregister [] (rt, p: P) { rt.cuMemHostUnregister(p) }
    Ctx cudaHostGetDevicePointer [] (rt, out: P, p: P, flags: u32) { rt.cuMemHostGetDevicePointer(out, p, flags) }
    Ctx cudaHostGetFlags [] (rt, out: P, p: P) { rt.cuMemHostGetFlags(out, p) }
    Ctx cudaMallocManaged [] (rt, out: P, n: usize, flags: u32) { sized(out, n, || rt.cuMemAllocManaged(out, n, flags)) }
    Ctx cudaMallocPitch [] (rt, out: P, pitch: P, width: usize, height: usize) {
        if width == 0 || height == 0 {
            write(pitch, 0usize)?;
            return write(out, 0usize);
        }
        rt.cuMemAllocPitch(out, pitch, width, height, 4)
    }
    Ctx cudaMalloc3D [] (rt, out: P, size: Extent) {
        let mut p = PitchedPtr { xsize: size.width, ysize: size.height, ..PitchedPtr::default() };
        let rows = size.height * size.depth;
        if size.width != 0 && rows != 0 {
            rt.cuMemAllocPitch(&raw mut p.ptr as P, &raw mut p.pitch as P, size.width, rows, 4)?;
        }
        write(out, p)
    }
    Ctx cudaMallocArray [] (rt, out: P, channel: P, width: usize, height: usize, flags: u32) {
        array(rt, out, channel, Extent { width, height, depth: 0 }, flags)
    }
    Ctx cudaMalloc3DArray [] (rt, out: P, channel: P, size: Extent, flags: u32) { array(rt, out, channel, size, flags) }
    Ctx cudaFreeArray [] (rt, a: P) { if a == 0 { Ok(()) } else { rt.cuArrayDestroy(a) } }
    Ctx cudaArrayGetInfo [] (rt, desc: P, size: P, flags: P, a: P) {
        let d: ArrayDesc = ask(|p| rt.cuArray3DGetDescriptor(p, a))?;
        let _ = (desc, element_size(rt, a)?);
        if size != 0 {
            write(size, Extent { width: d.width, height: d.height, depth: d.depth })?;
        }
        if flags != 0 { write(flags, d.flags) } else { Ok(()) }
    }
    Ctx cudaMemGetInfo [] (rt, free: P, total: P) { rt.cuMemGetInfo(free, total) }
    Ctx cudaMallocAsync [cudaMallocAsync_ptsz] (rt, out: P, n: usize, s: P) { sized(out, n, || rt.cuMemAllocAsync(out, n, s)) }
    Ctx cudaMallocFromPoolAsync [cudaMallocFromPoolAsync_ptsz] (rt, out: P, n: usize, pool: P, s: P) {
        sized(out, n, || rt.cuMemAllocFromPoolAsync(out, n, pool, s))
    }
    Ctx cudaFreeAsync [cudaFreeAsync_ptsz] (rt, p: P, s: P) { rt.cuMemFreeAsync(p, s) }
    Ctx cudaIpcGetMemHandle [] (rt, out: P, p: P) { rt.cuIpcGetMemHandle(out, p) }
    Ctx cudaIpcOpenMemHandle [] (rt, out: P, key: IpcHandle, flags: u32) { rt.cuIpcOpenMemHandle(out, key, flags) }
    Ctx cudaIpcCloseMemHandle [] (rt, p: P) { rt.cuIpcCloseMemHandle(p) }
    Ctx cudaIpcGetEventHandle [] (rt, out: P, e: P) { rt.cuIpcGetEventHandle(out, e) }
    Ctx cudaStreamAttachMemAsync [cudaStreamAttachMemAsync_ptsz] (rt, s: P, p: P, n: usize, flags: u32) {
        rt.cuStreamAttachMemAsync(s, p, n, flags)
    }
    Ctx cudaMemRangeGetAttribute [] (rt, out: P, size: usize, id: u32, p: P, n: usize) {
        rt.cuMemRangeGetAttribute(out, size, id, p, n)
    }
}
