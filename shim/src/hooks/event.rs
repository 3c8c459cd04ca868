//! Events, counted because a program may make ever more of them.

use super::written;
use crate::call::Call;
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
pub(crate) unsafe fn create_plain(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque) -> Status,
    event: *mut Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets the out-parameter `event` as it came.
    unsafe { created(&call, real(event), event) }
}

/// The program makes an event.
pub(crate) unsafe fn create(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, c_uint) -> Status,
    event: *mut Opaque,
    flags: c_uint,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came, `event` among them, which is the out-parameter.
    unsafe { created(&call, real(event, flags), event) }
}

/// The program destroys an event.
pub(crate) unsafe fn destroy(_: Call, real: unsafe extern "C-unwind" fn(Opaque) -> Status, event: Opaque) -> Status {
    // SAFETY: rule of the call: `real` gets the event that the program destroys.
    let real = || unsafe { real(event) };
    let status = if events::any() { end(Class::Event, event as u64, real) } else { real() };
    if status == SUCCESS {
        events::gone();
    }
    status
}
