//! The life of the process as the APIs see it.

use crate::backend;
use crate::call::Call;
use crate::gate;
use gpumem_abi::types::*;
use std::ffi::c_uint;

/// The program initialises the driver: the first GPU call there is. Nothing of ours exists before.
pub unsafe fn init(call: Call, real: unsafe extern "C" fn(c_uint) -> Status, flags: c_uint) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(flags) };
    if status == SUCCESS {
        call.record(|shim| {
            shim.initialised();
            if let Some(version) = backend::of(call.vendor).version() {
                shim.driver_version(call.vendor, version);
            }
        });
    }
    status
}

/// The program resets HIP's current device.
pub unsafe fn hip_reset(call: Call, real: unsafe extern "C" fn() -> Status) -> Status {
    let device = call.note(|_| backend::of(call.vendor).current_context()).flatten();
    // SAFETY: the program's own call.
    let status = unsafe { real() };
    if let Some(device) = device.filter(|_| status == SUCCESS) {
        call.note(|shim| shim.context_gone(call.vendor, device));
    }
    status
}

/// The program resets one of HIP's devices.
pub unsafe fn hip_reset_device(call: Call, real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the program's own call.
    let status = unsafe { real(device) };
    if status == SUCCESS {
        call.note(|shim| shim.context_gone(call.vendor, backend::hip_context(device)));
    }
    status
}

/// Says goodbye in the ledger. No driver call: the driver may be gone by now.
extern "C" fn at_exit() {
    gate::record_if_started(|shim| shim.exiting());
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
