//! The HIP runtime: its functions as each caller means them, and those that the shim calls itself.
//!
//! libamdhip64 calls its own exported names through the global scope, and these calls come back to us. So a thread
//! remembers the call that it is inside of. A call that returns into the library is also the library's own, even on a
//! thread of the library.

use super::join;
use super::providers::{LastCaller, Providers};
use crate::process::elf;
use gpumem_abi::types::*;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

macro_rules! emit_hooked {
    ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        functions!(Function, HOOK_NAMES: $($name)*);
    };
}
gpumem_abi::hip_functions!(emit_hooked);

macro_rules! emit_thunks {
    ($($name:ident ($($arg:ident),*);)*) => {
        functions!(Thunk, THUNK_NAMES: $($name)*);
    };
}
gpumem_abi::hip_graph_thunks!(emit_thunks);

/// Functions with a hook come first, then those with a thunk.
pub(crate) const HOOKS: usize = Function::Count as usize;
const N: usize = HOOKS + Thunk::Count as usize;

/// Their names, in the form that lookups need.
pub(crate) static NAMES: [&CStr; N] = join(HOOK_NAMES, THUNK_NAMES);

thread_local! {
    /// Stack pointer of the program's HIP call that this thread is inside of; 0 if there is none.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// The outer call; restored when the inner one ends.
pub(crate) struct Inside(u64);

impl Inside {
    /// Marks a call that begins at this stack pointer.
    #[inline(always)]
    pub(crate) fn at(sp: u64) -> Self {
        let outer = INSIDE.replace(sp);
        // Further down the stack than this call: it was left by `longjmp`.
        Self(if outer > sp { outer } else { 0 })
    }
}

/// True if a call at this stack pointer is made inside of another. A call further up the stack than the remembered one
/// is not: the remembered one was left by `longjmp`.
#[inline(always)]
fn is_inside(sp: u64) -> bool {
    INSIDE.get() > sp
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

macro_rules! emit_calls {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls { $($name: AtomicUsize,)* }

        static CALLS: Calls = Calls { $($name: AtomicUsize::new(0),)* };

        $(
            #[allow(non_snake_case)]
            /// # Safety
            /// As for HIP's function of this name.
            pub(crate) unsafe fn $name($($arg: $ty),*) -> Option<Status> {
                let real = resolved(&CALLS.$name, c_name!($name))?;
                // HIP's own inner calls are not the program's.
                let mark = 0_u8;
                let here = &raw const mark as u64;
                let _inside = (INSIDE.get() < here).then(|| Inside::at(here));
                // SAFETY: the slot holds HIP's function of this name, and the row declares its
                // signature. Our caller vouches for the arguments.
                Some(unsafe {
                    std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($ty),*) -> Status>(real)($($arg),*)
                })
            }
        )*
    };
}
gpumem_abi::hip_calls!(emit_calls);

/// Returns the address of a function that the shim calls, looked up once.
fn resolved(slot: &AtomicUsize, name: &CStr) -> Option<usize> {
    match slot.load(Relaxed) {
        0 => {
            let found = own_or_interposer(name)?;
            slot.store(found, Relaxed);
            Some(found)
        }
        known => Some(known),
    }
}

/// True if HIP has all functions that the graph cache needs (ROCm 5.2 has).
pub(crate) fn has_graph_calls() -> bool {
    macro_rules! all {
        ($($name:ident)*) => { [$((&CALLS.$name, c_name!($name))),*] };
    }
    all![hipGetDevice hipSetDevice hipEventCreateWithFlags hipEventRecord hipEventQuery hipEventDestroy
        hipStreamQuery hipStreamIsCapturing hipThreadExchangeStreamCaptureMode hipGraphClone hipGraphDestroy
        hipGraphGetNodes hipGraphNodeGetType hipGraphInstantiate hipGraphExecDestroy]
    .into_iter()
    .all(|(slot, name)| resolved(slot, name).is_some())
}

const FILE: &[u8] = b"libamdhip64.so";

/// Returns the HIP runtime's function, or that of another interposer behind us.
fn own_or_interposer(name: &CStr) -> Option<usize> {
    let interposer = elf::symbol_in_first_scope(name).filter(|&address| !PROVIDERS.is_real(address));
    interposer.or_else(|| {
        let objects = elf::Listing::with_symbol(name);
        let runtime = objects.objects().find(|object| object.file_name().starts_with(FILE))?;
        Some(runtime.symbol).filter(|&symbol| symbol != 0)
    })
}

static PROVIDERS: Providers<N> = Providers::new(&NAMES, FILE);

thread_local! {
    static LAST: LastCaller<N> = const { Cell::new(None) };
}

/// Returns the address of the function that this caller means, 0 if there is none.
#[inline]
pub(crate) fn real(caller: usize, index: usize) -> usize {
    LAST.with(|last| PROVIDERS.function(caller, last, index))
}

/// True if the call at this stack pointer, which returns to this address, is the library's own: it was made inside of
/// another, or out of the library. [`real`] was asked for the address before.
#[inline(always)]
pub(crate) fn is_librarys_own(caller: usize, sp: u64) -> bool {
    let is_library = |last: &LastCaller<N>| last.get().is_some_and(|last| last.is_library(caller, elf::generation()));
    is_inside(sp) || LAST.with(is_library)
}

/// True if an address is in the HIP runtime.
pub(crate) fn holds(address: usize) -> bool {
    PROVIDERS.is_real(address)
}
