//! Events, counted because a program may make ever more of them.

use super::written;
use crate::call::{Call, Real};
use crate::gate;
use crate::records::events;
use crate::records::registry::live::Class;
use crate::request::end;
use gpumem_abi::types::*;
use std::ffi::c_uint;

/// # Safety
/// `event` is the program's out-parameter of a call that answered `status`.
unsafe fn created(call: &Call, status: Status, event: *mut Opaque) -> Status {
    // SAFETY: rule of out-parameters: our caller passes the program's `event` and the status of its call.
    if let Some(event) = unsafe { written(status, event) }
        && events::made()
    {
        gate::note(|shim| events::created(shim, call, event as u64));
    }
    status
}

/// The program makes an event, in the runtime's shortest form.
pub(crate) unsafe fn create_plain(call: Call, real: Real<(*mut Opaque,)>) -> Status {
    // SAFETY: rule of out-parameters: `event` is that of the call.
    unsafe { created(&call, real.call(), real.args.0) }
}

/// The program makes an event.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut Opaque, c_uint)>) -> Status {
    let (event, _) = real.args;
    // SAFETY: rule of out-parameters: `event` is that of the call.
    unsafe { created(&call, real.call(), event) }
}

/// The program destroys an event.
pub(crate) unsafe fn destroy(_: Call, real: Real<(Opaque,)>) -> Status {
    let status = match events::any() {
        true => end(Class::Event, real.args.0 as u64, || real.call()),
        false => real.call(),
    };
    if status == SUCCESS {
        events::gone();
    }
    status
}
