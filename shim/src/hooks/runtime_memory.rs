//! `cudaMalloc` and `cudaFree` where a block of the thread's own serves them: the runtime is not asked. All
//! that it does for them is to see to the thread's context and to take a lock, for which sixteen threads of a
//! program that links a shared cudart wait most of their time (measured on an H200, CUDA 13.0); then it asks
//! the driver, which is us.
//!
//! The context is known: an allocation of the runtime's came through to it in this thread, it is the only one
//! of the process, and the thread has it still. `cudaSetDevice` says so at once since CUDA 12 (it makes the
//! other device's context and asks the driver for it). Older runtimes put that off to the next call: where there is
//! one, nothing is short, for no runtime's caller. Neither function touches what `cudaGetLastError` returns when it
//! succeeds.

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
/// There is one that is not new enough.
static ANY_OLD: AtomicBool = AtomicBool::new(false);

/// Somebody asks for the driver's functions as runtimes do that are not new enough (11.3 to 11.8), which is before any
/// other call of theirs.
pub(crate) fn asked_as_old() {
    ANY_OLD.store(true, Relaxed);
}

/// A `cudaMalloc` by way of this real one has succeeded: the next may be short.
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

/// Whether this thread's runtime calls go to the only context there is.
#[inline(always)]
fn is_known() -> bool {
    // SAFETY: the reference ends with this function and stays on this thread.
    let local = unsafe { threads::state() };
    let context = local.runtime_context.get();
    // Whether it still is the only one is asked by the pool.
    context != 0 && local.only_context.get() == context && !ANY_OLD.load(Relaxed)
}

/// Serves a request without the runtime. False: nothing was done.
///
/// # Safety
/// `out` is the program's out-parameter.
#[inline(always)]
pub(crate) unsafe fn malloc(call: &Call, out: *mut DevicePtr, bytes: usize) -> bool {
    // SAFETY: our caller vouches for the program's out-parameter.
    is_known() && unsafe { memory::serve(call, out, bytes) }
}

/// Takes a block back without the runtime. False: nothing was done.
#[inline(always)]
pub(crate) fn free(addr: DevicePtr) -> bool {
    is_known() && memory::take_back(Vendor::Cuda, addr)
}
