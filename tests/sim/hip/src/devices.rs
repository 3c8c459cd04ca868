//! Devices, errors, versions, and functions by name.

use crate::abi::{Out, Text, current, device, last_error, set_device};
use gpumem_sim_engine::config::config;
use gpumem_sim_engine::{Error, Result, capture, context, lock};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, OnceLock};

/// The answer of hipRuntimeGetVersion: the version of ROCm 6.3.0, or `SIM_HIP_VERSION`.
pub fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| std::env::var("SIM_HIP_VERSION").ok().and_then(|v| v.parse().ok()).unwrap_or(60_300_000))
}

pub fn check(dev: i32) -> Result<u32> {
    if dev < 0 || dev as u32 >= config().devices { Err(Error::INVALID_DEVICE) } else { Ok(dev as u32) }
}

fn text(code: u32, name: bool) -> *const c_char {
    static TEXTS: Mutex<Option<HashMap<(u32, bool), CString>>> = Mutex::new(None);
    let make = || {
        let known = match (code, name) {
            (0, true) => "hipSuccess",
            (0, false) => "no error",
            (1, true) => "hipErrorInvalidValue",
            (1, false) => "invalid argument",
            (2, true) => "hipErrorOutOfMemory",
            (2, false) => "out of memory",
            (100, true) => "hipErrorNoDevice",
            (100, false) => "no ROCm-capable device is detected",
            (101, true) => "hipErrorInvalidDevice",
            (101, false) => "invalid device ordinal",
            (400, true) => "hipErrorInvalidHandle",
            (600, true) => "hipErrorNotReady",
            (910, true) => "hipErrorGraphExecUpdateFailure",
            _ => "",
        };
        let text = if known.is_empty() { format!("simulated HIP error {code}") } else { known.to_owned() };
        CString::new(text).unwrap_or_default()
    };
    let mut texts = TEXTS.lock().unwrap_or_else(|e| e.into_inner());
    texts.get_or_insert_default().entry((code, name)).or_insert_with(make).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetLastError() -> u32 {
    last_error(true)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipPeekAtLastError() -> u32 {
    last_error(false)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: u32) -> *const c_char {
    text(code, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: u32) -> *const c_char {
    text(code, false)
}

/// Looks a name up in this library alone, by the process's `dlsym`, as ROCm
/// 6.1 and later do; NULL if it has none.
fn own_symbol(name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else { return std::ptr::null_mut() };
    // SAFETY: zeroes are a valid Dl_info, and dladdr fills it if it succeeds. RTLD_NOLOAD loads
    // nothing and takes one more reference to this library, which is never unloaded. `name` is a
    // CString.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own_symbol as *const () as *const c_void, &mut info) == 0 {
            return std::ptr::null_mut();
        }
        let own = libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if own.is_null() { own } else { libc::dlsym(own, name.as_ptr()) }
    }
}

fn entry_point(name: Text, out: Out<usize>, flags: u64, per_thread: bool, status: Out<u32>) -> Result {
    let name = name.get()?;
    if name.is_empty() || flags > 2 {
        return Err(Error::INVALID_VALUE);
    }
    out.need()?;
    let twin = if per_thread { own_symbol(&format!("{name}_spt")) } else { std::ptr::null_mut() };
    let found = if twin.is_null() { own_symbol(&name) } else { twin };
    status.put(found.is_null() as u32);
    if found.is_null() { Err(Error::INVALID_VALUE) } else { out.set(found as usize) }
}

hip! {
    Any hipInit [] (c, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        current().map(drop)
    }
    /// The only function that answers 100 if there is no device.
    Any hipGetDeviceCount [] (c, out: Out<i32>) {
        let n = config().devices as i32;
        out.set(n)?;
        if n == 0 { Err(Error::NO_DEVICE) } else { Ok(()) }
    }
    Init hipGetDevice [] (c, out: Out<i32>) { out.set(device()) }
    Init hipSetDevice [] (c, n: i32) {
        check(n)?;
        set_device(n);
        current().map(drop)
    }
    Init hipDeviceGet [] (c, out: Out<i32>, n: i32) { out.set(check(n)? as i32) }
    Init hipDeviceGetName [] (c, out: Out<u8>, n: i32, dev: i32) {
        check(dev)?;
        let n = n.max(0) as usize;
        let name = b"Simulated AMD GPU".iter().copied().take(n.saturating_sub(1)).chain([0]);
        out.need()?.fill(n, name);
        Ok(())
    }
    Init hipDeviceGetUuid [] (c, out: Out<[u8; 16]>, dev: i32) {
        let mut uuid = *b"SIMULATED-AMD-\0\0";
        uuid[15] = check(dev)? as u8;
        out.set(uuid)
    }
    Init hipDeviceTotalMem [] (c, out: Out<usize>, dev: i32) {
        let dev = check(dev)?;
        out.set(lock().devices[dev as usize].total as usize)
    }
    /// Only the attributes that programs ask for: among them whether host and device use managed memory at the same time.
    Init hipDeviceGetAttribute [] (c, out: Out<i32>, attribute: i32, dev: i32) {
        const CONCURRENT_MANAGED_ACCESS: i32 = 9;
        const INTEGRATED: i32 = 16;
        check(dev)?;
        out.set(match attribute {
            CONCURRENT_MANAGED_ACCESS => 1,
            INTEGRATED => i32::from(config().integrated),
            _ => return Err(Error::INVALID_VALUE),
        })
    }
    Ctx hipDeviceSynchronize [] (c) {
        capture::forbid_any(&mut lock(), Error::CAPTURE_UNSUPPORTED)?;
        context::synchronize(c.ctx)
    }
    /// Destroys everything on the device. The next call makes the context anew.
    Ctx hipDeviceReset [] (c) {
        context::reset_primary(device())?;
        context::set_current(0)
    }
    Init hipDevicePrimaryCtxReset [] (c, dev: i32) {
        check(dev)?;
        context::reset_primary(dev)?;
        if dev == device() { context::set_current(0) } else { Ok(()) }
    }
    Any hipRuntimeGetVersion [] (c, out: Out<i32>) { out.set(version()) }
    Any hipDriverGetVersion [] (c, out: Out<i32>) { out.set(version()) }
    Init hipDeviceGetStreamPriorityRange [] (c, least: Out<i32>, greatest: Out<i32>) {
        least.put(1);
        greatest.put(-1);
        Ok(())
    }
    /// The flags are ignored (ROCm/clr 6.4.3, hipamd/src/hip_device.cpp, `hipGetProcAddress`). A program that wants the
    /// twin asks for it by the twin's name.
    Init hipGetProcAddress [] (c, name: Text, out: Out<usize>, version: i32, flags: u64, status: Out<u32>) {
        let (name, _, _) = (name.get()?, version, flags);
        if name.is_empty() {
            return Err(Error::INVALID_VALUE);
        }
        out.need()?;
        let found = own_symbol(&name);
        status.put(found.is_null() as u32);
        if found.is_null() { Err(Error::INVALID_VALUE) } else { out.set(found as usize) }
    }
    /// Flag 2 asks for the twin that uses the thread's own default stream, if there is one (hip_runtime_api.h 7.2).
    Init hipGetDriverEntryPoint [] (c, name: Text, out: Out<usize>, flags: u64, status: Out<u32>) {
        entry_point(name, out, flags, flags == 2, status)
    }
    Init hipGetDriverEntryPoint_spt [] (c, name: Text, out: Out<usize>, flags: u64, status: Out<u32>) {
        entry_point(name, out, flags, flags != 1, status)
    }
}
