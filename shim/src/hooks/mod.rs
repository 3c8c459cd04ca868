//! What happens at each call of the program: one file for each noun of the API.
//!
//! A hook reads as a sentence: what the program asked, what the driver answered, what is recorded.
//!
//! The law:
//! 1. Decide, call the real function, record. No lock of ours is held while a real function runs.
//! 2. Bookkeeping runs inside [`crate::gate`], which contains panics and keeps errno.
//! 3. The program sees what the real function answered, out-parameters included.
//! 4. No extra GPU call is made where the program could see it.
//!
//! The shim starts with the first call that succeeds and makes or initialises something
//! ([`crate::start::record`]). Failures and frees are recorded only if it has started.

pub mod array;
mod attributes;
pub mod capture;
pub mod context;
pub mod exec;
pub mod graph;
pub mod graph_use;
pub mod green;
pub mod host;
pub mod ipc;
mod launch;
pub mod memory;
pub mod peer;
pub mod process;
pub mod stream;
pub mod submit;
pub mod sync;
pub mod vmm;

use crate::call::Call;
use crate::registry::live::Class;
use crate::start;
use gpumem_abi::types::{DevicePtr, SUCCESS, Status};
use gpumem_wire::kinds::AllocKind;

/// An out-parameter after a call that succeeded.
///
/// # Safety
/// `out` is the program's out-parameter, which the real function has just written.
pub(crate) unsafe fn written<T: Copy>(out: *const T) -> Option<T> {
    // SAFETY: as the caller promises; a driver that accepts NULL leaves nothing to read.
    unsafe { out.as_ref().copied() }
}

/// Records what an allocating call answered.
///
/// # Safety
/// As for [`written`].
#[inline]
unsafe fn made(
    call: &Call,
    status: Status,
    kind: AllocKind,
    class: Class,
    ptr: *const DevicePtr,
    bytes: usize,
    stream: u64,
    extra: u64,
) {
    if status == SUCCESS {
        // SAFETY: as the caller promises.
        if let Some(addr) = unsafe { written(ptr) } {
            start::record(|shim| {
                let stream = if stream == 0 { 0 } else { shim.registry.streams.reference(call.vendor, stream) };
                shim.allocated(call, class, kind, addr, bytes as u64, stream, extra);
            });
        }
    } else {
        call.note(|shim| shim.allocation_failed(call, kind, bytes as u64, status));
    }
}

/// Frees: takes the record out, calls, and puts it back if the call failed.
#[inline]
fn freed(call: &Call, class: Class, addr: u64, real: impl FnOnce() -> Status) -> Status {
    let entry = call.note(|shim| shim.freeing(class, addr)).flatten();
    let status = real();
    call.note(|shim| match status {
        SUCCESS => shim.freed(entry, addr),
        _ => shim.free_failed(class, addr, entry, status),
    });
    status
}
