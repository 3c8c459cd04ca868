//! What happens to modules and libraries.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::records::registry::live::Class;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;

/// How large code is, in bytes.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    /// As the image says.
    Said(u64),
    /// By how much free memory fell.
    Measured(u64),
}

/// Code was loaded. `class`: whether the handle is that of a module or of a library.
pub(crate) fn loaded(shim: &'static Shim, call: &Call, class: Class, handle: u64, size: Size) {
    let (bytes, extra) = match size {
        Size::Said(bytes) => (bytes, 0),
        Size::Measured(bytes) => (bytes, 1),
    };
    let request = Request { class, extra, ..Request::new(AllocKind::Code, bytes) };
    allocations::made(shim, call, &request, handle);
}

/// A part of code that was loaded before took so many bytes more. If the image says how large the code is, they are
/// counted already.
pub(crate) fn grew(shim: &Shim, class: Class, handle: u64, bytes: u64) {
    allocations::changed(shim, class, handle, |slot| slot.bytes += slot.extra * bytes);
}
