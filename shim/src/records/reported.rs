//! The program's reports through `gpumem.h`: tags and sub-allocations.

use super::allocations;
use crate::call::Call;
use crate::gate;
use crate::process::regs::Regs;
use crate::process::threads;
use crate::records::registry::live::Class;
use crate::records::registry::tag::Tag;
use gpumem_wire::kinds::Vendor;
use std::ffi::{CStr, c_char, c_void};

/// Returns the bytes of the program's text, at most 255 of them.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: not null, and our caller vouches for a C string, which it does not change while it
    // uses the answer.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    &bytes[..bytes.len().min(255)]
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_push_tag(tag: *const c_char) {
    // SAFETY: gpumem.h asks the program for NULL or a C string, which is copied before this
    // returns.
    Tag::push(Tag::of(unsafe { text(tag) }));
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_pop_tag() {
    threads::local(|local| local.tags.pop());
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_report_alloc(pool: *const c_char, p: *const c_void, bytes: usize) {
    let call = Call::new(Vendor::Cuda, Regs::of_caller());
    // SAFETY: gpumem.h asks the program for NULL or a C string that lasts for this call.
    let pool = unsafe { text(pool) };
    if !p.is_null() {
        gate::note(|shim| allocations::reported(shim, &call, shim.ledger.texts.intern(pool), p as u64, bytes as u64));
    }
}

/// See `gpumem.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn gpumem_report_free(pool: *const c_char, p: *const c_void) {
    let _call = Call::new(Vendor::Cuda, Regs::of_caller());
    // SAFETY: gpumem.h asks the program for NULL or a C string that lasts for this call.
    let pool = unsafe { text(pool) };
    if !p.is_null() {
        gate::note(|shim| {
            // A part that was reported before the first GPU call is not known. That is no mistake of the program.
            if let Some(entry) = allocations::freeing(shim, Class::Reported(shim.ledger.texts.intern(pool)), p as u64) {
                allocations::ended(shim, entry);
            }
        });
    }
}
