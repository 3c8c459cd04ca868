//! The hooks, which run at each call of the program: one file for each noun of the API.
//!
//! A hook reads as a sentence: what the program asked, what the driver answered, what is recorded.
//!
//! The law:
//! 1. Decide, call the real function, record. No lock of ours is held while a real function runs.
//! 2. Bookkeeping runs inside [`crate::gate`], which contains panics and keeps errno.
//! 3. The program sees the real function's answer, including out-parameters.
//! 4. No extra GPU call is made at a place where the program could see it.
//!
//! # Safety rules
//! SAFETY comments of hooks name these rules:
//! - **The call.** A door enters each hook on the program's thread, inside the program's call. `real` is the function
//!   that the program called, with the program's arguments. Their types are those of the row of `abi`. The program
//!   vouches for the arguments to the vendor's reference. So `real` may be called with them until the hook returns.
//!   This is the `# Safety` section of every `unsafe fn` here that begins with a [`Call`](crate::call::Call).
//! - **Parameters.** A pointer to a description by the program is NULL or valid during the call, as the reference says.
//!   A program may break that rule in a call that fails for another reason. So the pointer is followed only once the
//!   call has succeeded; before that, [`parameter`] reads through it.
//! - **Out-parameters.** A pointer for an answer of the driver is NULL or valid for writes. Only a call that has
//!   succeeded has written it, so it is read only then ([`written`]).
//! - **Handles.** If an argument may be a handle of ours, the graph cache puts the library's own in its place. So the
//!   library gets only handles that it knows, or that the program made up.
//!
//! The shim starts with the first call that succeeds and makes or initialises something ([`crate::start::record`]).
//! Failures and frees are recorded only if it has started.

pub(crate) mod array;
mod attributes;
pub(crate) mod capture;
pub(crate) mod code;
pub(crate) mod context;
mod context_end;
pub(crate) mod driver_pool;
pub(crate) mod event;
pub(crate) mod exec;
pub(crate) mod exec_node;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod graph_use;
pub(crate) mod green;
pub(crate) mod hip_launch;
pub(crate) mod host;
pub(crate) mod ipc;
mod launch;
pub(crate) mod memory;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod runtime_memory;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod sync;
pub(crate) mod unknown;
pub(crate) mod vmm;

use crate::call::Call;
use crate::process::errno::KeepErrno;
use crate::process::peek::{Plain, read_value};
use crate::request::{self, Request};
use crate::{stacks, start};
use gpumem_abi::types::*;
use std::ffi::c_int;

/// Gets memory for the program by [`request::get`], which starts the shim if necessary.
#[inline]
fn get(
    call: &Call,
    request: Request,
    real: impl FnMut() -> Status,
    found: impl FnOnce(&mut Request, Status) -> Option<u64>,
) -> Status {
    request::get(&start::Rooms, call, request, real, found)
}

/// Returns an out-parameter after a call that answered `status`; `None` unless the call has succeeded: before, the
/// pointer may be invalid.
///
/// # Safety
/// `out` is the program's out-parameter of that call.
pub(crate) unsafe fn written<T: Copy>(status: Status, out: *const T) -> Option<T> {
    if status != SUCCESS {
        return None;
    }
    // SAFETY: our caller vouches for `out`, and the call has succeeded, so it is written. A driver
    // that accepts NULL leaves nothing to read.
    unsafe { out.as_ref().copied() }
}

/// Reads a description by the program, if the pointer is valid. It was not checked yet. If it is invalid, the library
/// may have another reason to refuse the call, and gives its own answer. A pointer outside the thread's stack costs a
/// system call.
fn parameter<T: Plain>(at: *const T) -> Option<T> {
    let (from, bytes) = (at as u64, size_of::<T>() as u64);
    let (low, high) = stacks::own_stack();
    if from >= low && from < high && high - from >= bytes {
        // SAFETY: all bytes are on this thread's stack, in the part that is mapped for as long as it runs. Any bytes
        // are a `Plain`.
        return Some(unsafe { at.read_unaligned() });
    }
    let _errno = KeepErrno::new();
    if at.is_null() { None } else { read_value(from) }
}

/// Returns what `CUmemAllocationProp` and `CUmemPoolProps` say of the memory: its allocation type, and its location.
fn props_of(props: Opaque) -> Option<(c_int, MemLocation)> {
    // The types of shareable handles are the second number.
    let [kind, _, at, id] = parameter(props.cast::<[c_int; 4]>())?;
    Some((kind, MemLocation { kind: at, id }))
}

/// Structs of the API: numbers and addresses, which are never followed.
macro_rules! plain {
    ($($type:ty),+ $(,)?) => { $(
        // SAFETY: the struct has numbers and addresses alone, and any bytes are one of those.
        unsafe impl Plain for $type {}
    )+ };
}

plain! {
    ArrayDescriptor,
    Array3dDescriptor,
    ChannelDesc,
    ExternalMemoryDesc,
    ExternalBufferDesc,
    IpcMemHandle,
    MulticastProp,
    GraphInstantiateParams,
    HipGraphInstantiateParams,
    MemLocation,
    [c_int; 4],
    [u64; 15],
    [u64; 32],
}
