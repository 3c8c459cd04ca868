//! Devices and their properties: one kind of device, after an H200.

use crate::abi::{H, Out, Text};
use crate::structs::Location;
use gpumem_sim_engine::config::{Managed, Pageable, config};
use gpumem_sim_engine::machine::lock;
use gpumem_sim_engine::place::Place;
use gpumem_sim_engine::{Error, Result, context, pool};

pub fn check(dev: i32) -> Result<u32> {
    if dev < 0 || dev as u32 >= config().devices {
        return Err(Error::INVALID_DEVICE);
    }
    Ok(dev as u32)
}

/// Device attributes, as an H200 answers those that programs look at.
fn attribute(id: u32, dev: u32) -> Result<i32> {
    Ok(match id {
        1 => 1024,                        // threads per block
        2 | 3 => 1024,                    // block x, y
        4 => 64,                          // block z
        5 => i32::MAX,                    // grid x
        6 | 7 => 65535,                   // grid y, z
        8 => 48 << 10,                    // shared memory per block
        9 => 64 << 10,                    // constant memory
        10 => 32,                         // warp
        11 => i32::MAX,                   // pitch
        12 => 65536,                      // registers per block
        13 => 1_980_000,                  // clock, kHz
        14 => 512,                        // texture alignment
        15 | 31 | 40 => 1,                // overlap, concurrent kernels, unified addressing
        16 => 132,                        // multiprocessors
        18 => config().integrated as i32, // integrated
        88 => (config().pageable != Pageable::None) as i32,
        100 => (config().pageable == Pageable::HostPageTables) as i32,
        20 => 0,              // compute mode
        19 | 41 => 1,         // can map host memory
        33 => 1 + dev as i32, // PCI bus
        34 | 50 | 35 => 0,    // PCI device, domain, TCC
        36 => 3_201_000,      // memory clock, kHz
        37 => 6144,           // bus width
        38 => 60 << 20,       // L2
        39 => 2048,           // threads per multiprocessor
        42 => 3,              // copy engines
        75 => 9,              // compute capability
        76 => 0,
        78 => 1,                                          // stream priorities
        81 => 233_472,                                    // shared memory per multiprocessor
        82 => 65536,                                      // registers per multiprocessor
        83 => (config().managed != Managed::None) as i32, // managed memory
        // Concurrent managed access, by host page tables too.
        89 => (config().managed == Managed::Concurrent) as i32,
        91 | 95 | 96 => 1,          // preemption, cooperative
        97 => 227 << 10,            // opt-in shared memory
        102 | 103 | 116 | 121 => 1, // VMM, POSIX fd handles
        115 => config().memory_pools as i32,
        106 => 32, // blocks per multiprocessor
        119 => 1,  // pool handle types: POSIX fd
        120 => 1,  // cluster launch
        0 => return Err(Error::INVALID_VALUE),
        id if id > 200 => return Err(Error::INVALID_VALUE),
        _ => 0,
    })
}

fn bus_id(dev: u32) -> String {
    format!("0000:{:02x}:00.0", dev + 1)
}

/// `0000:01:00.0` or `1:0`.
fn parse_bus_id(text: &str) -> Option<u32> {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let bus =
        parts.get(if text.contains('.') { parts.len().checked_sub(3)? } else { parts.len().checked_sub(2)? })?;
    u32::from_str_radix(bus, 16).ok()?.checked_sub(1)
}

cu! {
    Init cuDeviceGetCount [cuDeviceGetCount 2000] [] (c, out: Out<i32>) { out.set(config().devices as i32) }
    Init cuDeviceGet [cuDeviceGet 2000] [] (c, out: Out<i32>, ordinal: i32) {
        out.set(check(ordinal)? as i32)
    }
    Init cuDeviceGetName [cuDeviceGetName 2000] [] (c, out: Out<u8>, n: i32, dev: i32) {
        check(dev)?;
        let n = n.max(0) as usize;
        let name = b"Simulated GPU".iter().copied().take(n.saturating_sub(1)).chain([0]);
        out.need()?.fill(n, name);
        Ok(())
    }
    Init cuDeviceGetUuid [cuDeviceGetUuid 9020, cuDeviceGetUuid_v2 11040] [] (c, out: Out<[u8; 16]>, dev: i32) {
        let mut uuid = *b"SIMULATED-GPU-\0\0";
        uuid[15] = check(dev)? as u8;
        out.set(uuid)
    }
    Init cuDeviceGetLuid [cuDeviceGetLuid 10000] [] (c, out: Out<[u8; 8]>, mask: Out<u32>, dev: i32) {
        let (_, _, _) = (out, mask, check(dev)?);
        Err(Error::NOT_SUPPORTED)
    }
    Init cuDeviceTotalMem [cuDeviceTotalMem_v2 3020] [] (c, out: Out<usize>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].total as usize)
    }
    Init cuDeviceGetAttribute [cuDeviceGetAttribute 2000] [] (c, out: Out<i32>, id: u32, dev: i32) {
        let dev = check(dev)?;
        out.set(attribute(id, dev)?)
    }
    Init cuDeviceComputeCapability [cuDeviceComputeCapability 2000] [] (c, major: Out<i32>, minor: Out<i32>, dev: i32) {
        check(dev)?;
        major.set(9)?;
        minor.set(0)
    }
    Init cuDeviceGetPCIBusId [cuDeviceGetPCIBusId 4010] [] (c, out: Out<u8>, n: i32, dev: i32) {
        let text = bus_id(check(dev)?);
        if (n as usize) <= text.len() {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?.fill(n as usize, text.bytes().chain([0]));
        Ok(())
    }
    Init cuDeviceGetByPCIBusId [cuDeviceGetByPCIBusId 4010] [] (c, out: Out<i32>, text: Text) {
        let dev = parse_bus_id(&text.get()?).ok_or(Error::INVALID_VALUE)?;
        out.set(check(dev as i32)? as i32)
    }
    Init cuDeviceCanAccessPeer [cuDeviceCanAccessPeer 4000] [] (c, out: Out<i32>, dev: i32, peer: i32) {
        check(dev)?;
        check(peer)?;
        out.set((dev != peer) as i32)
    }
    Init cuDeviceGetP2PAttribute [cuDeviceGetP2PAttribute 8000] [] (c, out: Out<i32>, id: u32, a: i32, b: i32) {
        check(a)?;
        check(b)?;
        out.set((a != b && id != 1) as i32)
    }
    Init cuDeviceGetTexture1DLinearMaxWidth [cuDeviceGetTexture1DLinearMaxWidth 11010] []
    (c, out: Out<usize>, format: u32, channels: u32, dev: i32) {
        let _ = (format, channels, check(dev)?);
        out.set(1 << 28)
    }
    Init cuDevicePrimaryCtxRetain [cuDevicePrimaryCtxRetain 7000] [] (c, out: Out<H>, dev: i32) {
        out.need()?;
        out.set(context::retain_primary(dev)?)
    }
    Init cuDevicePrimaryCtxRelease [cuDevicePrimaryCtxRelease_v2 11000, cuDevicePrimaryCtxRelease 7000] [] (c, dev: i32) {
        context::release_primary(dev)
    }
    Init cuDevicePrimaryCtxReset [cuDevicePrimaryCtxReset_v2 11000, cuDevicePrimaryCtxReset 7000] [] (c, dev: i32) {
        context::reset_primary(dev)
    }
    Init cuDevicePrimaryCtxGetState [cuDevicePrimaryCtxGetState 7000] [] (c, dev: i32, flags: Out<u32>, active: Out<i32>) {
        let (f, a) = context::primary_state(dev)?;
        flags.put(f);
        active.put(a as i32);
        Ok(())
    }
    Init cuDevicePrimaryCtxSetFlags [cuDevicePrimaryCtxSetFlags_v2 11000, cuDevicePrimaryCtxSetFlags 7000] []
    (c, dev: i32, flags: u32) {
        context::set_primary_flags(dev, flags)
    }
    Init cuDeviceGetDefaultMemPool [cuDeviceGetDefaultMemPool 11020] [] (c, out: Out<H>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].default_pool)
    }
    Init cuMemGetDefaultMemPool [cuMemGetDefaultMemPool 13000] []
    (c, out: Out<H>, at: crate::abi::In<Location>, kind: u32) {
        out.need()?;
        let mut m = lock();
        let place = Place::of(&m, kind, at.get()?)?;
        out.set(m.default_pool(place))
    }
    Init cuMemGetMemPool [cuMemGetMemPool 13000] [] (c, out: Out<H>, at: crate::abi::In<Location>, kind: u32) {
        out.need()?;
        let mut m = lock();
        let place = Place::of(&m, kind, at.get()?)?;
        out.set(m.current_pool(place))
    }
    Init cuMemSetMemPool [cuMemSetMemPool 13000] [] (c, at: crate::abi::In<Location>, kind: u32, pool: H) {
        let mut m = lock();
        let place = Place::of(&m, kind, at.get()?)?;
        m.set_current_pool(place, pool)
    }
    Init cuDeviceGetMemPool [cuDeviceGetMemPool 11020] [] (c, out: Out<H>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].current_pool)
    }
    Init cuDeviceSetMemPool [cuDeviceSetMemPool 11020] [] (c, dev: i32, h: H) {
        let dev = check(dev)?;
        lock().set_current_pool(Place::Device(dev), h)
    }
    /// 0 used now, 1 its peak, 2 reserved now, 3 its peak.
    Init cuDeviceGetGraphMemAttribute [cuDeviceGetGraphMemAttribute 11040] [] (c, dev: i32, id: u32, out: Out<u64>) {
        let dev = check(dev)?;
        let heap = lock().devices[dev as usize].graph_mem;
        out.set(if id & 1 == 0 { heap.live } else { heap.held })
    }
    Init cuDeviceSetGraphMemAttribute [cuDeviceSetGraphMemAttribute 11040] [] (c, dev: i32, id: u32, value: crate::abi::In<u64>) {
        let _ = (check(dev)?, value.get()?);
        if id == 1 || id == 3 { Ok(()) } else { Err(Error::INVALID_VALUE) }
    }
    Init cuDeviceGraphMemTrim [cuDeviceGraphMemTrim 11040] [] (c, dev: i32) {
        pool::graph_trim(check(dev)?);
        Ok(())
    }
}
