//! The life of the process as the APIs see it.

use crate::backend;
use crate::call::Call;
use crate::gate;
use gpumem_abi::types::*;
use std::ffi::c_uint;

/// The program initialises the driver: the first GPU call there is. Nothing of ours exists before.
pub unsafe fn init(call: Call, real: unsafe extern "C-unwind" fn(c_uint) -> Status, flags: c_uint) -> Status {
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

/// Says goodbye in the ledger. No driver call: the driver may be gone by now.
extern "C" fn at_exit() {
    gate::record_if_started(|shim| shim.exiting());
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
