//! The life of the process as the APIs see it.

use crate::call::{Call, Real};
use crate::gate;
use gpumem_abi::types::*;
use std::ffi::c_uint;

/// The program initialises the driver: the first GPU call of all.
pub(crate) unsafe fn init(_: Call, real: Real<(c_uint,)>) -> Status {
    gate::initialises();
    let status = real.call();
    if status == SUCCESS {
        gate::initialised();
    }
    status
}

/// Notes the end in the ledger. No driver call is made, because the driver may be gone by now. Nothing is waited for:
/// the handlers that run before the library's own did that.
extern "C" fn at_exit() {
    gate::record_if_started(|shim| {
        shim.exiting();
        shim.exited();
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
