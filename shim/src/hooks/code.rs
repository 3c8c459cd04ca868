//! Code is loaded into a context, and unloaded. The driver takes memory for it that no call names
//! ([`crate::records::driver_memory`]).

use crate::call::Call;
use crate::gate;
use crate::records::driver_memory;
use crate::request::for_driver;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Taken;
use std::ffi::c_uint;

/// Makes a call for which the driver may take memory, and records how much it took.
pub(super) fn around(call: &Call, what: Taken, real: impl FnMut() -> Status) -> Status {
    let before = gate::note(|shim| driver_memory::look(shim, call.vendor)).flatten();
    took_since(call, before, what, for_driver(call, real))
}

/// As [`around`], unless such looks have taken their share of the time: for calls that programs make often.
pub(super) fn around_often(call: &Call, what: Taken, real: impl FnMut() -> Status) -> Status {
    let before = gate::record_if_started(|shim| driver_memory::look_in_share(shim, call.vendor)).flatten();
    took_since(call, before, what, driver_memory::timed(|| for_driver(call, real)))
}

/// Records how much the driver took since the look before a call. The call's status is handed on.
fn took_since(call: &Call, before: Option<driver_memory::Look>, what: Taken, status: Status) -> Status {
    if let Some(before) = before {
        gate::note(|shim| driver_memory::since(shim, call, &before, what, None));
    }
    status
}

/// As [`around`], for a kernel that was not launched before. It is a function of its own, so that other launches do not
/// pay for it.
///
/// # Safety
/// `real` launches `function`.
#[cold]
#[inline(never)]
pub(super) unsafe fn around_first_launch(call: &Call, function: Opaque, real: impl FnMut() -> Status) -> Status {
    let before = gate::record_if_started(|shim| driver_memory::look_in_share(shim, call.vendor)).flatten();
    let status = driver_memory::timed(|| for_driver(call, real));
    if let Some(before) = before {
        // SAFETY: our caller vouches that the call that was made launches `function`.
        gate::record_if_started(|shim| unsafe { driver_memory::since_launch(shim, call, &before, function) });
    }
    status
}

/// Makes a call that unloads code.
pub(super) fn around_unload(call: &Call, real: impl FnOnce() -> Status) -> Status {
    let before = gate::note(|shim| {
        driver_memory::forget_launches();
        driver_memory::look(shim, call.vendor)
    });
    let status = real();
    if let Some(before) = before.flatten().filter(|_| status == SUCCESS) {
        gate::note(|shim| driver_memory::given_back(shim, call, &before, &[Taken::Code, Taken::Launch]));
    }
    status
}

/// The program loads a module, from memory or from a file.
pub(crate) unsafe fn load_module(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, Opaque) -> Status,
    module: *mut Opaque,
    image: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came.
    around(&call, Taken::Code, || unsafe { real(module, image) })
}

/// As [`load_module`], with options of the compiler.
pub(crate) unsafe fn load_module_ex(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, Opaque, c_uint, Opaque, Opaque) -> Status,
    module: *mut Opaque,
    image: Opaque,
    options: c_uint,
    names: Opaque,
    values: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came.
    around(&call, Taken::Code, || unsafe { real(module, image, options, names, values) })
}

/// The program loads a library, from memory or from a file.
pub(crate) unsafe fn load_library(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, Opaque, Opaque, Opaque, c_uint, Opaque, Opaque, c_uint) -> Status,
    library: *mut Opaque,
    code: Opaque,
    options: Opaque,
    values: Opaque,
    len: c_uint,
    library_options: Opaque,
    library_values: Opaque,
    library_len: c_uint,
) -> Status {
    around(&call, Taken::Code, || {
        // SAFETY: rule of the call: `real` gets all arguments as they came.
        unsafe { real(library, code, options, values, len, library_options, library_values, library_len) }
    })
}

/// The program asks for a function of a module, or for a module of a library: code that is loaded late is loaded now.
pub(crate) unsafe fn get_function(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, Opaque, Opaque) -> Status,
    function: *mut Opaque,
    module: Opaque,
    name: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets all arguments as they came.
    around_often(&call, Taken::Code, || unsafe { real(function, module, name) })
}

/// As [`get_function`], of what has one function or module in the current context.
pub(crate) unsafe fn get_own(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut Opaque, Opaque) -> Status,
    own: *mut Opaque,
    of: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came.
    around_often(&call, Taken::Code, || unsafe { real(own, of) })
}

/// The program has a function loaded.
pub(crate) unsafe fn load_function(
    call: Call,
    real: unsafe extern "C-unwind" fn(Opaque) -> Status,
    function: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets the function as it came.
    around_often(&call, Taken::Code, || unsafe { real(function) })
}
