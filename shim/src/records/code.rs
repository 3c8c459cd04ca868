//! Records modules and libraries.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::records::registry::live::Class;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;

/// The size of code, in bytes.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    /// As stated in the image.
    Said(u64),
    /// As the drop of free memory.
    Measured(u64),
}

/// Records loaded code. `class`: the class of the handle, module or library.
pub(crate) fn loaded(shim: &'static Shim, call: &Call, class: Class, handle: u64, size: Size) {
    let (bytes, extra) = match size {
        Size::Said(bytes) => (bytes, 0),
        Size::Measured(bytes) => (bytes, 1),
    };
    let request = Request { class, extra, ..Request::new(AllocKind::Code, bytes) };
    allocations::made(shim, call, &request, handle);
}

/// Adds bytes that a part of loaded code took later. They are already counted if the image states the size.
pub(crate) fn grew(shim: &Shim, class: Class, handle: u64, bytes: u64) {
    allocations::changed(shim, class, handle, |slot| slot.bytes += slot.extra * bytes);
}
