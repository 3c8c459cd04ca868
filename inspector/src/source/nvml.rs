//! What the driver says one process holds, through NVML where it is installed.

use libloading::Library;
use std::os::raw::{c_int, c_uint, c_ulonglong, c_void};

/// `nvmlProcessInfo_t` of the `_v3` functions.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    _gpu_instance: c_uint,
    _compute_instance: c_uint,
}

const OK: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;
/// `NVML_VALUE_NOT_AVAILABLE`: the driver does not tell (WDDM, some containers).
const NOT_AVAILABLE: u64 = u64::MAX;

/// Device bytes that the driver attributes to a process, summed over devices; `None` where NVML is
/// missing, does not know the pid, or does not tell.
pub fn used_by(pid: u32) -> Option<u64> {
    // SAFETY: loading runs the initialisers of the vendor's library, which has none that matter here.
    let nvml = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
    let call = |name: &[u8]| {
        // SAFETY: both functions take no arguments and return nvmlReturn_t, an int.
        unsafe { nvml.get::<unsafe extern "C" fn() -> c_int>(name).map(|function| function()) }
    };
    if call(b"nvmlInit_v2\0").ok()? != OK {
        return None;
    }
    let used = sum(&nvml, pid);
    let _ = call(b"nvmlShutdown\0");
    used
}

fn sum(nvml: &Library, pid: u32) -> Option<u64> {
    // SAFETY: the types are those of nvml.h: unsigned int* out.
    let count = unsafe { nvml.get::<unsafe extern "C" fn(*mut c_uint) -> c_int>(b"nvmlDeviceGetCount_v2\0") }.ok()?;
    // SAFETY: as above: index in, opaque device handle out.
    let handle = unsafe {
        nvml.get::<unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int>(b"nvmlDeviceGetHandleByIndex_v2\0")
    }
    .ok()?;
    // SAFETY: as above: device, in-out number of entries, array of that many entries.
    let list = unsafe {
        nvml.get::<unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut ProcessInfo) -> c_int>(
            b"nvmlDeviceGetComputeRunningProcesses_v3\0",
        )
    }
    .ok()?;
    let mut devices = 0;
    // SAFETY: writes one unsigned int.
    if unsafe { count(&mut devices) } != OK {
        return None;
    }
    let mut total = None;
    for index in 0..devices.min(64) {
        let mut device = std::ptr::null_mut();
        // SAFETY: writes one handle.
        if unsafe { handle(index, &mut device) } != OK {
            continue;
        }
        let mut entries = vec![ProcessInfo { pid: 0, used: 0, _gpu_instance: 0, _compute_instance: 0 }; 256];
        let mut len = entries.len() as c_uint;
        // SAFETY: `entries` holds `len` entries.
        let mut answer = unsafe { list(device, &mut len, entries.as_mut_ptr()) };
        if answer == INSUFFICIENT_SIZE && len < 1 << 16 {
            entries.resize(len as usize, entries[0]);
            // SAFETY: `entries` was grown to the `len` that the first call asked for.
            answer = unsafe { list(device, &mut len, entries.as_mut_ptr()) };
        }
        if answer != OK {
            continue;
        }
        let mine = entries.iter().take(len as usize).filter(|entry| entry.pid == pid && entry.used != NOT_AVAILABLE);
        for entry in mine {
            total = Some(total.unwrap_or(0) + entry.used);
        }
    }
    total
}
