//! The HIP runtime: exported `hip*` functions, also handed out by `dlsym`, since there is no
//! boundary below them.
//!
//! libamdhip64 calls its own exported names through the global scope and so comes back to us: a
//! call made inside a call is passed on untouched.

use super::providers::{LastCaller, Providers};
use super::spare;
use super::thunk::{self, Words};
use crate::call::Call;
use crate::gate;
use crate::graphs;
use crate::hooks::{
    array, capture, context, exec, graph, graph_use, host, ipc, memory, procaddr, process, stream, vmm,
};
use crate::process::elf;
use crate::process::regs::Regs;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

thread_local! {
    /// Stack pointer of the HIP call of the program that this thread is inside of; 0 if there is none.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// The call that it was made in; when that ends, what was there before is.
struct Inside(u64);

impl Inside {
    /// A call begins at this stack pointer.
    #[inline(always)]
    fn at(sp: u64) -> Self {
        let outer = INSIDE.replace(sp);
        // Further down the stack than this call: it was left by `longjmp`.
        Self(if outer > sp { outer } else { 0 })
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// Whether an argument is a handle of ours, which HIP itself never has: such a call is the program's,
/// from something that HIP calls back.
#[inline]
fn is_ours<T>(argument: &T) -> bool {
    if size_of::<T>() != size_of::<usize>() {
        return false;
    }
    // SAFETY: as many bytes as a word has; arguments of that size are pointers and integers.
    let word = unsafe { std::mem::transmute_copy::<T, usize>(argument) };
    graphs::exec_index(Vendor::Hip, word as GraphExec).is_some()
}

macro_rules! emit {
    ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[repr(usize)]
        enum Function { $($name,)* Count }

        const HOOK_NAMES: [&CStr; Function::Count as usize] = [$(
            c_name!($name),
        )*];

        fn hook(index: usize) -> usize {
            [$(export::$name as *const () as usize,)*][index]
        }

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case, clippy::too_many_arguments)]
                pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    type Real = unsafe extern "C-unwind" fn($($ty),*) -> Status;
                    let regs = Regs::of_caller();
                    let real = real(regs.pc as usize, Function::$name as usize);
                    if real == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the address is that of the HIP runtime's function of this name.
                    let real = unsafe { std::mem::transmute::<usize, Real>(real) };
                    // A call further up the stack than the one remembered is not inside it: that one was
                    // left by `longjmp`.
                    let nested = || INSIDE.get() > regs.sp && !(false $(|| is_ours(&$arg))*);
                    if gate::disabled() || nested() {
                        // SAFETY: the program's own call, passed on as it came.
                        return unsafe { real($($arg),*) };
                    }
                    let _inside = Inside::at(regs.sp);
                    gate::door(Door::HipExport);
                    // SAFETY: the program's own call; hooks pass its arguments on as they came.
                    unsafe { $module::$hook(Call::new(Vendor::Hip, regs), real, $($arg),*) }
                }
            )*
        }
    };
}
gpumem_abi::hip_functions!(emit);

macro_rules! emit_thunks {
    ($($name:ident ($($arg:ident),*);)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[repr(usize)]
        enum Thunk { $($name,)* Count }

        const THUNK_NAMES: [&CStr; Thunk::Count as usize] = [$(
            c_name!($name),
        )*];

        /// How many arguments each has.
        static ARGS: [usize; Thunk::Count as usize] = [$(
            [$(stringify!($arg)),*].len(),
        )*];

        fn thunk_at(index: usize) -> usize {
            [$(export_thunk::$name as *const () as usize,)*][index]
        }

        mod export_thunk {
            use super::{Thunk, through};
            $(super::thunk::thunk!($name, Thunk::$name as usize, through);)*
        }
    };
}
gpumem_abi::hip_graph_thunks!(emit_thunks);

thunk::through!(through, enter);

/// Where a thunk jumps.
///
/// # Safety
/// Called by a thunk of the table, with the words that it keeps on the caller's stack.
unsafe extern "C" fn enter(index: usize, words: &mut Words, caller: usize) -> usize {
    let real = real(caller, HOOKS + index);
    // HIP calling itself: these handles are its own.
    let nested = INSIDE.get() > std::ptr::from_ref(words) as u64;
    if gate::disabled() || (nested && !words[..ARGS[index].min(words.len())].iter().any(is_ours)) {
        return thunk::straight(real);
    }
    gate::door(Door::HipExport);
    thunk::pass(real, words, ARGS[index])
}

/// Functions with a hook come first, then those with a thunk.
const HOOKS: usize = Function::Count as usize;
const N: usize = HOOKS + Thunk::Count as usize;

static NAMES: [&CStr; N] = thunk::join(HOOK_NAMES, THUNK_NAMES);

/// Address of our function of this name.
pub fn export_named(name: &[u8]) -> Option<usize> {
    let index = NAMES.iter().position(|known| known.to_bytes() == name)?;
    Some(if index < HOOKS { hook(index) } else { thunk_at(index - HOOKS) })
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
            pub unsafe fn $name($($arg: $ty),*) -> Option<Status> {
                let real = resolved(&CALLS.$name, c_name!($name))?;
                // What HIP calls of itself meanwhile is not the program's.
                let mark = 0_u8;
                let here = &raw const mark as u64;
                let _inside = (INSIDE.get() < here).then(|| Inside::at(here));
                // SAFETY: the slot holds HIP's function of this name; the rest is the caller's promise.
                Some(unsafe {
                    std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($ty),*) -> Status>(real)($($arg),*)
                })
            }
        )*
    };
}
gpumem_abi::hip_calls!(emit_calls);

/// Address of a function that the shim calls, looked up once.
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

/// Whether HIP has all that the graph cache cannot do without (ROCm 5.2 has).
pub fn has_graph_calls() -> bool {
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

/// The HIP runtime's function, or another interposer's behind us.
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

/// Address of the function that this caller means, 0 if there is none.
#[inline]
fn real(caller: usize, index: usize) -> usize {
    LAST.with(|last| PROVIDERS.function(caller, last, index))
}

/// Our function for an answer of the HIP runtime to this name.
pub fn ours(name: &[u8], answer: usize) -> Option<usize> {
    if !holds(answer) {
        return None;
    }
    export_named(name).or_else(|| thunk::is_graph_function(name).then(|| spare::of(answer, name)).flatten())
}

/// Whether an address is in the HIP runtime.
pub fn holds(address: usize) -> bool {
    PROVIDERS.is_real(address)
}
