//! Waits for the device, and questions if it is done. Errors of earlier work show up here.

use crate::call::{Arguments, Call, Real};
use crate::graphs;
use crate::guard;
use crate::progress::activity;
use crate::stranded;
use gpumem_abi::types::*;

/// The program waits for a context, a stream or an event, or asks if it is done.
#[inline]
pub(crate) unsafe fn waited<A: Arguments>(_: Call, real: Real<A>) -> Status {
    graphs::spare_time();
    let status = real.call();
    activity::saw(status);
    // This thread knows that work has completed.
    if status == SUCCESS {
        stranded::synced();
        graphs::waited();
        if guard::checks_at_waits() {
            guard::at_wait();
        }
    }
    status
}
