//! Loading and unloading of code. The driver takes memory for it that no call names
//! ([`crate::records::driver_memory`]).

use super::written;
use crate::backend::graphs::Code;
use crate::backend::image;
use crate::call::{Call, Real};
use crate::gate;
use crate::records::code::Size;
use crate::records::registry::live::Class;
use crate::records::{self, driver_memory};
use crate::request::{end, for_driver};
use gpumem_abi::types::*;
use gpumem_wire::kinds::Taken;
use gpumem_wire::location::Location;
use std::ffi::c_uint;

/// Makes a call for which the driver may take memory, and records how much it took.
pub(super) fn around(call: &Call, what: Taken, real: impl FnMut() -> Status) -> Status {
    measured(call, what, real).0
}

/// As [`around`]; returns the status and the bytes taken.
fn measured(call: &Call, what: Taken, real: impl FnMut() -> Status) -> (Status, u64) {
    let before = gate::note(|shim| driver_memory::look(shim, call.vendor)).flatten();
    let status = for_driver(call, Location::OwnDevice, real);
    (status, took_since(call, before, what))
}

/// As [`around`], unless such looks have used up their share of the time: for calls that programs make often.
pub(super) fn around_often(call: &Call, what: Taken, real: impl FnMut() -> Status) -> Status {
    measured_often(call, what, real).0
}

/// As [`around_often`]; returns the status and the bytes taken.
fn measured_often(call: &Call, what: Taken, real: impl FnMut() -> Status) -> (Status, u64) {
    let before = gate::record_if_started(|shim| driver_memory::look_in_share(shim, call.vendor)).flatten();
    let status = driver_memory::timed(|| for_driver(call, Location::OwnDevice, real));
    (status, took_since(call, before, what))
}

/// Records how much the driver took since the look before a call; returns it.
fn took_since(call: &Call, before: Option<driver_memory::Look>, what: Taken) -> u64 {
    let since = |before| gate::note(|shim| driver_memory::since(shim, call, &before, what, None));
    before.and_then(since).unwrap_or(0)
}

/// Makes a call that loads code, and records what it loaded.
///
/// # Safety
/// `handle` is the program's out-parameter of `real`, which loads `image`.
unsafe fn loading(
    call: &Call,
    class: Class,
    handle: *mut Opaque,
    image: Opaque,
    real: impl FnMut() -> Status,
) -> Status {
    let (status, fell) = measured(call, Taken::Code, real);
    // SAFETY: rule of out-parameters: our caller vouches for `handle`, and `status` is its call's.
    if let Some(handle) = unsafe { written(status, handle) } {
        gate::note(|shim| {
            let size = image::device_bytes(image as u64).map_or(Size::Measured(fell), Size::Said);
            records::code::loaded(shim, call, class, handle as u64, size);
        });
    }
    status
}

/// As [`around_often`], for a call that may load a part of a module or library.
fn loading_part(call: &Call, class: Class, of: Opaque, real: impl FnMut() -> Status) -> Status {
    let (status, fell) = measured_often(call, Taken::Code, real);
    if fell > 0 {
        gate::note(|shim| records::code::grew(shim, class, of as u64, fell));
    }
    status
}

/// As [`around`], for a kernel's first launch. It is a separate function, so that other launches do not pay for it.
///
/// # Safety
/// `real` launches `function`.
#[cold]
#[inline(never)]
pub(super) unsafe fn around_first_launch(call: &Call, function: Opaque, real: impl FnMut() -> Status) -> Status {
    let before = gate::record_if_started(|shim| driver_memory::look_in_share(shim, call.vendor)).flatten();
    let status = driver_memory::timed(|| for_driver(call, Location::OwnDevice, real));
    if let Some(before) = before {
        // SAFETY: our caller vouches that the call that was made launches `function`.
        gate::record_if_started(|shim| unsafe { driver_memory::since_launch(shim, call, &before, function) });
    }
    status
}

/// Makes a call that unloads code.
pub(super) fn around_unload(call: &Call, code: Code, real: impl FnOnce() -> Status) -> Status {
    let (class, handle) = match code {
        Code::Module(module) => (Class::Module, module),
        Code::Library(library) => (Class::Library, library),
    };
    let before = gate::note(|shim| {
        driver_memory::forget_launches();
        driver_memory::look(shim, call.vendor)
    });
    let status = end(class, handle as u64, real);
    if let Some(before) = before.flatten().filter(|_| status == SUCCESS) {
        gate::note(|shim| driver_memory::given_back(shim, call, &before, &[Taken::Code, Taken::Launch]));
    }
    status
}

/// The program loads a module, from memory or from a file.
pub(crate) unsafe fn load_module(call: Call, real: Real<(*mut Opaque, Opaque)>) -> Status {
    let (module, image) = real.args;
    // SAFETY: rule of out-parameters: `module` is that of the call.
    unsafe { loading(&call, Class::Module, module, image, || real.call()) }
}

/// As [`load_module`], with options of the compiler.
pub(crate) unsafe fn load_module_ex(call: Call, real: Real<(*mut Opaque, Opaque, c_uint, Opaque, Opaque)>) -> Status {
    let (module, image, ..) = real.args;
    // SAFETY: rule of out-parameters: `module` is that of the call.
    unsafe { loading(&call, Class::Module, module, image, || real.call()) }
}

/// The program loads a library, from memory or from a file.
pub(crate) unsafe fn load_library(
    call: Call,
    real: Real<(*mut Opaque, Opaque, Opaque, Opaque, c_uint, Opaque, Opaque, c_uint)>,
) -> Status {
    let (library, code, ..) = real.args;
    // SAFETY: rule of out-parameters: `library` is that of the call.
    unsafe { loading(&call, Class::Library, library, code, || real.call()) }
}

/// The program asks for a function of a module, or for a module of a library: code that is loaded late is loaded now.
pub(crate) unsafe fn get_function(call: Call, real: Real<(*mut Opaque, Opaque, Opaque)>) -> Status {
    let (_, module, _) = real.args;
    loading_part(&call, Class::Module, module, || real.call())
}

/// As [`get_function`], for a kernel or library, which has one function or module in the current context.
pub(crate) unsafe fn get_own(call: Call, real: Real<(*mut Opaque, Opaque)>) -> Status {
    let (_, of) = real.args;
    loading_part(&call, Class::Library, of, || real.call())
}

/// The program loads a function.
pub(crate) unsafe fn load_function(call: Call, real: Real<(Opaque,)>) -> Status {
    around_often(&call, Taken::Code, || real.call())
}
