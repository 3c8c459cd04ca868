//! Devices, errors, versions, peers.

use super::core::{
    INVALID_DEVICE, ask, device, forget, last_error, primary, read, set_device, set_device_later, write,
};
use super::driver::{P, Result, Rt};
use crate::VERSION;

fn check(rt: Rt, n: i32) -> Result<i32> {
    let count: i32 = ask(|p| rt.cuDeviceGetCount(p))?;
    if n < 0 || n >= count { Err(INVALID_DEVICE) } else { Ok(n) }
}

/// The device of the current context, else the thread's choice.
pub fn current(rt: Rt) -> Result<i32> {
    if ask::<P>(|p| rt.cuCtxGetCurrent(p))? == 0 {
        return Ok(device());
    }
    ask(|p| rt.cuCtxGetDevice(p))
}

pub fn attribute(rt: Rt, id: u32, n: i32) -> i32 {
    ask(|p| rt.cuDeviceGetAttribute(p, id, n)).unwrap_or(0)
}

/// Names of the runtime: the driver's with another prefix.
fn text(code: u32, name: bool) -> P {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::sync::Mutex;
    static TEXTS: Mutex<Option<HashMap<(u32, bool), CString>>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap_or_else(|e| e.into_inner());
    let make = || {
        let known = match (code, name) {
            (0, true) => "cudaSuccess",
            (0, false) => "no error",
            (1, true) => "cudaErrorInvalidValue",
            (1, false) => "invalid argument",
            (2, true) => "cudaErrorMemoryAllocation",
            (2, false) => "out of memory",
            (3, true) => "cudaErrorInitializationError",
            (4, true) => "cudaErrorCudartUnloading",
            (101, true) => "cudaErrorInvalidDevice",
            (400, true) => "cudaErrorInvalidResourceHandle",
            (600, true) => "cudaErrorNotReady",
            (700, true) => "cudaErrorIllegalAddress",
            (900, true) => "cudaErrorStreamCaptureUnsupported",
            (901, true) => "cudaErrorStreamCaptureInvalidated",
            (910, true) => "cudaErrorGraphExecUpdateFailure",
            _ => "",
        };
        let text = if known.is_empty() { format!("simulated CUDA error {code}") } else { known.to_owned() };
        CString::new(text).unwrap_or_default()
    };
    texts.get_or_insert_default().entry((code, name)).or_insert_with(make).as_ptr() as P
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetLastError() -> u32 {
    last_error(true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaPeekAtLastError() -> u32 {
    last_error(false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorName(code: u32) -> P {
    text(code, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaGetErrorString(code: u32) -> P {
    text(code, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn cudaRuntimeGetVersion(out: P) -> u32 {
    write(out, VERSION).err().unwrap_or(0)
}

/// Asks the driver for one of its functions, in this runtime's version.
pub fn entry_point(rt: Rt, name: P, out: P, version: i32, flags: u64, status: P) -> Result {
    let (mut found, mut why) = (0usize, 0u32);
    let r = rt.cuGetProcAddress(name, &raw mut found as P, version, flags, &raw mut why as P);
    write(out, found)?;
    if status != 0 {
        write(status, why)?;
        return r;
    }
    r?;
    if why != 0 { Err(500) } else { Ok(()) }
}

rt! {
    Any cudaDriverGetVersion [] (rt, out: P) { rt.cuDriverGetVersion(out) }
    Init cudaGetDeviceCount [] (rt, out: P) { rt.cuDeviceGetCount(out) }
    Init cudaGetDevice [] (rt, out: P) { write(out, current(rt)?) }
    Init cudaSetDevice [] (rt, n: i32) {
        check(rt, n)?;
        if VERSION < 12000 {
            set_device_later(n);
            return Ok(());
        }
        set_device(n);
        rt.cuCtxSetCurrent(primary(rt, n)?)
    }
    Init cudaInitDevice [] (rt, n: i32, device_flags: u32, flags: u32) {
        let _ = (device_flags, flags);
        primary(rt, check(rt, n)?).map(drop)
    }
    Init cudaSetDeviceFlags [] (rt, flags: u32) { rt.cuDevicePrimaryCtxSetFlags(device(), flags) }
    Init cudaGetDeviceFlags [] (rt, out: P) {
        let mut active = 0i32;
        rt.cuDevicePrimaryCtxGetState(device(), out, &raw mut active as P)
    }
    Init cudaDeviceGetAttribute [] (rt, out: P, id: u32, n: i32) { rt.cuDeviceGetAttribute(out, id, n) }
    Init cudaDeviceGetPCIBusId [] (rt, out: P, len: i32, n: i32) { rt.cuDeviceGetPCIBusId(out, len, n) }
    Init cudaDeviceGetByPCIBusId [] (rt, out: P, text: P) { rt.cuDeviceGetByPCIBusId(out, text) }
    Init cudaDeviceCanAccessPeer [] (rt, out: P, n: i32, peer: i32) { rt.cuDeviceCanAccessPeer(out, n, peer) }
    Init cudaDeviceGetP2PAttribute [] (rt, out: P, id: u32, a: i32, b: i32) { rt.cuDeviceGetP2PAttribute(out, id, a, b) }
    Ctx cudaDeviceEnablePeerAccess [] (rt, peer: i32, flags: u32) {
        let ctx = primary(rt, check(rt, peer)?)?;
        rt.cuCtxEnablePeerAccess(ctx, flags)
    }
    Ctx cudaDeviceDisablePeerAccess [] (rt, peer: i32) {
        let ctx = primary(rt, check(rt, peer)?)?;
        rt.cuCtxDisablePeerAccess(ctx)
    }
    Ctx cudaDeviceSynchronize [] (rt) { rt.cuCtxSynchronize() }
    Init cudaDeviceReset [] (rt) {
        let n = current(rt)?;
        rt.cuDevicePrimaryCtxReset(n)?;
        forget(n);
        rt.cuCtxSetCurrent(0)
    }
    Ctx cudaDeviceGetLimit [] (rt, out: P, id: u32) { rt.cuCtxGetLimit(out, id) }
    Ctx cudaDeviceSetLimit [] (rt, id: u32, value: usize) { rt.cuCtxSetLimit(id, value) }
    Ctx cudaDeviceGetStreamPriorityRange [] (rt, least: P, greatest: P) { rt.cuCtxGetStreamPriorityRange(least, greatest) }
    Ctx cudaPointerGetAttributes [] (rt, out: P, p: P) {
        let (kind, device, dev_ptr, host_ptr) = super::memory::pointer_attributes(rt, p)?;
        write(out, (kind as u64) | (device as u32 as u64) << 32)?;
        write(out + 8, dev_ptr)?;
        write(out + 16, host_ptr)?;
        // From 13.0 on the structure ends in eight reserved words.
        if VERSION >= 13000 { write(out + 24, [0u64; 8]) } else { Ok(()) }
    }
    Init cudaGetDriverEntryPoint [cudaGetDriverEntryPoint_ptsz] (rt, name: P, out: P, flags: u64, status: P) {
        let flags = if rt.per_thread && flags == 0 { 2 } else { flags };
        entry_point(rt, name, out, VERSION, flags, status)
    }
    Init cudaGetDriverEntryPointByVersion [cudaGetDriverEntryPointByVersion_ptsz]
    (rt, name: P, out: P, version: u32, flags: u64, status: P) {
        let flags = if rt.per_thread && flags == 0 { 2 } else { flags };
        entry_point(rt, name, out, version as i32, flags, status)
    }
    Init cudaChooseDevice [] (rt, out: P, props: P) {
        let _ = read::<u8>(props)?;
        write(out, 0i32)
    }
    Init cudaDeviceGraphMemTrim [] (rt, n: i32) { rt.cuDeviceGraphMemTrim(n) }
    Init cudaDeviceGetGraphMemAttribute [] (rt, n: i32, id: u32, out: P) { rt.cuDeviceGetGraphMemAttribute(n, id, out) }
    Init cudaDeviceSetGraphMemAttribute [] (rt, n: i32, id: u32, value: P) { rt.cuDeviceSetGraphMemAttribute(n, id, value) }
    Any cudaProfilerStart [] (rt) { Ok(()) }
    Any cudaProfilerStop [] (rt) { Ok(()) }
}
