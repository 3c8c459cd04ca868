//! Serves `cudaMalloc` and `cudaFree` from the thread's own cache, without calling the runtime. The runtime would only
//! make sure that the thread has a context, take a lock, and ask the driver, which is us. Sixteen threads of a program
//! that links a shared cudart wait most of their time for that lock (measured on an H200, CUDA 13.0).
//!
//! The fast path is taken only if the thread's context is known: an earlier allocation of this thread went through the
//! runtime to that context, it is the only context of the process, and the thread has not changed it since. Since CUDA
//! 12 `cudaSetDevice` changes the context at once (it makes the other device's context and asks the driver for it).
//! Older runtimes defer that to the next call. So in a process with an older runtime no thread takes the fast path. On
//! success, neither function touches what `cudaGetLastError` returns.

use super::memory;
use crate::call::Call;
use crate::process::elf;
use crate::process::threads;
use gpumem_abi::types::{DevicePtr, SUCCESS, Status};
use gpumem_wire::kinds::Vendor;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The first runtime whose `cudaSetDevice` asks the driver at once.
const AT_ONCE: c_int = 12_000;

/// The real `cudaMalloc` of a runtime that is new enough, and of one that is not.
static NEW: AtomicUsize = AtomicUsize::new(0);
static OLD: AtomicUsize = AtomicUsize::new(0);
/// True if the process has a runtime that is not new enough.
static ANY_OLD: AtomicBool = AtomicBool::new(false);

/// Notes that the driver's functions are requested in the way of runtimes that are not new enough (11.3 to 11.8). They
/// do that before any other call.
pub(crate) fn asked_as_old() {
    ANY_OLD.store(true, Relaxed);
}

/// Notes that a call of this real `cudaMalloc` has succeeded, so that the next one may take the fast path.
#[inline]
pub(crate) fn came_through(real: usize) {
    if NEW.load(Relaxed) == real || (OLD.load(Relaxed) != real && learn_whether_new(real)) {
        threads::local(|local| local.runtime_context.set(local.only_context.get()));
    }
}

/// Asks a runtime for its version, and remembers the answer.
#[cold]
fn learn_whether_new(real: usize) -> bool {
    let version = elf::object_at(real).and_then(|object| object.symbol(c"cudaRuntimeGetVersion"));
    let new = version.is_some_and(|version| {
        let mut number = 0;
        // SAFETY: the library that `real` is in has a function of this name, which is the runtime's
        // and has this type. `number` is a local with room for the answer.
        let status =
            unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_int) -> Status>(version)(&mut number) };
        status == SUCCESS && number >= AT_ONCE
    });
    if new { &NEW } else { &OLD }.store(real, Relaxed);
    if !new {
        asked_as_old();
    }
    new
}

/// True if this thread's runtime calls go to the only context.
#[inline(always)]
fn is_known() -> bool {
    // SAFETY: the reference ends with this function and stays on this thread.
    let Some(local) = (unsafe { threads::here() }) else { return false };
    let context = local.runtime_context.get();
    // The pool checks if it still is the only context.
    context != 0 && local.only_context.get() == context && !ANY_OLD.load(Relaxed)
}

/// Serves a request without the runtime. Returns false if nothing was done.
///
/// # Safety
/// `out` is the program's out-parameter.
#[inline(always)]
pub(crate) unsafe fn malloc(call: &Call, out: *mut DevicePtr, bytes: usize) -> bool {
    // SAFETY: our caller vouches for the program's out-parameter.
    is_known() && unsafe { memory::serve(call, out, bytes) }
}

/// Takes a block back without the runtime. Returns false if nothing was done.
#[inline(always)]
pub(crate) fn free(addr: DevicePtr) -> bool {
    is_known() && memory::take_back(Vendor::Cuda, addr)
}
