//! Waits for the device, and questions if it is done. Errors of earlier work show up here.

use crate::call::Call;
use crate::graphs;
use crate::pool::{guard, guarded};
use crate::progress::activity;
use crate::stranded;
use gpumem_abi::types::*;

/// The program waits for all work of the current context.
#[inline]
pub(crate) unsafe fn waited_0(_: Call, real: unsafe extern "C-unwind" fn() -> Status) -> Status {
    graphs::spare_time();
    // SAFETY: rule of the call: `real` takes no arguments.
    let status = unsafe { real() };
    waited(status);
    status
}

/// The program waits for a context, a stream or an event, or asks if it is done.
#[inline]
pub(crate) unsafe fn waited_1(_: Call, real: unsafe extern "C-unwind" fn(Opaque) -> Status, what: Opaque) -> Status {
    graphs::spare_time();
    // SAFETY: rule of the call: `real` gets the context, stream or event as it came.
    let status = unsafe { real(what) };
    waited(status);
    status
}

/// Notes that this thread knows that work has completed.
#[inline(always)]
fn waited(status: Status) {
    activity::saw(status);
    if status == SUCCESS {
        stranded::synced();
        graphs::waited();
        if guard::checks_at_waits() {
            guarded::at_wait();
        }
    }
}
