//! The CUDA driver: found among the loaded objects, its functions by their names, and those that the shim calls itself.

use super::{gates, join};
use crate::process::copies;
use crate::process::elf::{self, Object};
use gpumem_abi::types::*;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

macro_rules! emit_hooked {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        functions!(Function, HOOK_NAMES: $($name)*);
    };
}
gpumem_abi::driver_functions!(emit_hooked);

macro_rules! emit_thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        functions!(Thunk, THUNK_NAMES: $($name)*);
    };
}
gpumem_abi::graph_thunks!(emit_thunks);

/// Functions with a hook come first, then those with a thunk.
pub(crate) const HOOKS: usize = Function::Count as usize;
/// Total number of functions.
pub(crate) const N: usize = HOOKS + Thunk::Count as usize;

/// The functions that ours call: the driver's, or those of another interposer behind us.
static REAL: [AtomicUsize; N] = [const { AtomicUsize::new(0) }; N];
/// The driver's own functions, by which its answers are recognised.
static DRIVER: [AtomicUsize; N] = [const { AtomicUsize::new(0) }; N];

/// Names with the NUL that lookups need.
const NAMES: [&CStr; N] = join(HOOK_NAMES, THUNK_NAMES);

macro_rules! emit_calls {
    ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls { $($name: AtomicUsize,)* }

        static CALLS: Calls = Calls { $($name: AtomicUsize::new(0),)* };

        // Driver functions that the shim calls itself; `None` if the driver lacks one.
        $(
            #[allow(non_snake_case)]
            /// # Safety
            /// As for the driver's function of this name.
            pub(crate) unsafe fn $name($($arg: $ty),*) -> Option<Status> {
                let real = CALLS.$name.load(Relaxed);
                if real == 0 {
                    return None;
                }
                // SAFETY: the slot holds the driver's function of this name, and the row declares
                // its signature. Our caller vouches for the arguments.
                Some(unsafe {
                    std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($ty),*) -> Status>(real)($($arg),*)
                })
            }
        )*

        const CALL_NAMES: &[&CStr] = &[$(c_name!($name)),*];

        /// Fills the slots of these functions, in the order of their names.
        fn bind_calls(mut next: impl FnMut() -> usize) {
            $(CALLS.$name.store(next(), Relaxed);)*
        }
    };
}
gpumem_abi::driver_calls!(emit_calls);

/// True if the driver has events behind all work of a context (12.5 has).
pub(crate) fn has_context_events() -> bool {
    CALLS.cuCtxRecordEvent.load(Relaxed) != 0
}

/// True if the driver frees memory in stream order (11.2 does).
pub(crate) fn frees_in_order() -> bool {
    let Calls { cuMemFreeAsync, cuStreamCreate, cuStreamSynchronize, .. } = &CALLS;
    [cuMemFreeAsync, cuStreamCreate, cuStreamSynchronize].into_iter().all(|call| call.load(Relaxed) != 0)
}

/// True if the driver has all functions that the graph cache needs (12.4 has).
pub(crate) fn has_graph_calls() -> bool {
    [
        &CALLS.cuFuncGetParamInfo,
        &CALLS.cuGraphAddDependencies_v2,
        &CALLS.cuGraphAddKernelNode_v2,
        &CALLS.cuGraphExecKernelNodeSetParams_v2,
        &CALLS.cuGraphInstantiateWithFlags,
        &CALLS.cuGraphKernelNodeGetParams_v2,
        &CALLS.cuGraphNodeGetDependencies_v2,
        &CALLS.cuThreadExchangeStreamCaptureMode,
    ]
    .into_iter()
    .all(|slot| slot.load(Relaxed) != 0)
}

static BOUND: AtomicBool = AtomicBool::new(false);
/// Start of the bound driver.
static BOUND_AT: AtomicUsize = AtomicUsize::new(0);

/// Forgets the driver if it was unloaded. A program may load it once to look and again to use it. Functions of ours
/// that were handed out stay valid and bind again.
pub(crate) fn unbind_if_gone() {
    let start = BOUND_AT.load(Relaxed);
    if start == 0 || elf::object_at(start).is_some_and(|object| object.start == start && is_driver(&object)) {
        return;
    }
    BOUND_AT.store(0, Relaxed);
    BOUND.store(false, Release);
    for slot in REAL.iter().chain(&DRIVER) {
        slot.store(0, Relaxed);
    }
    bind_calls(|| 0);
}

/// Returns a function's address, 0 if there is no driver or it lacks the function.
pub(crate) fn real(function: Function) -> usize {
    bind_if_loaded();
    known(function as usize)
}

/// Returns the address of the function of this index if the driver is bound and has it, else 0.
#[inline(always)]
pub(crate) fn known(index: usize) -> usize {
    REAL[index].load(Relaxed)
}

/// True if the driver's own function of this index is at an address.
pub(crate) fn is_known_at(index: usize, address: usize) -> bool {
    address != 0 && DRIVER[index].load(Relaxed) == address
}

/// Returns the index of the driver's own function at an address.
pub(crate) fn index_at(address: usize) -> Option<usize> {
    (0..N).find(|&index| is_known_at(index, address))
}

/// Binds the driver if there is one and none was bound before. Returns true if it did.
pub(crate) fn bind_if_loaded() -> bool {
    if BOUND.load(Acquire) {
        return false;
    }
    let objects = elf::Listing::new();
    let driver = objects.objects().find(|object| object.file_name().starts_with(FILE));
    driver.and_then(|driver| elf::object_at(driver.start)).filter(is_driver).inspect(bind).is_some()
}

/// Beginning of the driver's file name.
const FILE: &[u8] = b"libcuda.so";

fn is_driver(object: &Object) -> bool {
    object.file_name().starts_with(FILE)
}

/// Binds the driver if this address is in it; returns true if it is.
pub(crate) fn bind_at(address: usize) -> bool {
    elf::object_at(address).filter(is_driver).inspect(bind).is_some()
}

fn bind(driver: &Object) {
    if BOUND.load(Acquire) {
        return;
    }
    let names = || NAMES.iter().chain(CALL_NAMES).copied();
    // Another interposer behind us keeps its place, also for our own calls, because handles that it gave out mean
    // nothing to the driver.
    let hashed: Vec<elf::Name> = names().map(elf::Name::new).collect();
    let addresses = driver.symbols(&hashed).zip(elf::symbols_in_first_scope(&hashed));
    let mut found = names().zip(addresses).map(|(name, (own, first))| {
        let real = if first == 0 || driver.holds(first) { own } else { first };
        (own, gates::in_front_of(name.to_bytes(), real))
    });
    for (slots, found) in REAL.iter().zip(&DRIVER).zip(found.by_ref()) {
        let ((real, driver), (own, first)) = (slots, found);
        driver.store(own, Relaxed);
        real.store(first, Relaxed);
    }
    bind_calls(|| found.next().map_or(0, |(_, real)| real));
    BOUND_AT.store(driver.start, Relaxed);
    BOUND.store(true, Release);
    copies::say_that_we_step_aside();
}
