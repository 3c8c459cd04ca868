//! The CUDA runtime's door: exported `cuda*` functions. They find the real function through the caller, remember who
//! called, and call it. The driver's hooks do everything else.

use crate::backend::functions;
use crate::backend::providers::{LastCaller, Providers};
use crate::call::{self, Arguments, Call, Real};
use crate::gate;
use crate::hooks::runtime_memory;
use crate::process::regs::Regs;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::cell::Cell;
use std::ffi::{c_int, c_uint};

macro_rules! runtime_exports {
    ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => {
        functions!(Function, NAMES: $($name)*);
        const N: usize = Function::Count as usize;

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case)]
                pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    let regs = Regs::of_caller();
                    let args = ($($arg,)*);
                    let words = args.words();
                    // SAFETY: `words` are the arguments of the program's call of this function, so
                    // the first of cudaMalloc's is its out-parameter.
                    if unsafe { serve_fast(Function::$name, regs, &words) } {
                        return SUCCESS;
                    }
                    let address = real(regs.pc as usize, Function::$name as usize);
                    if address == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the address is that of a runtime's function of this name, and the row
                    // declares the signature that it has in every version. This is the program's
                    // call of it.
                    let real = unsafe { Real::new(address, args) };
                    if gate::disabled() {
                        return real.call();
                    }
                    gate::door(Door::RuntimeExport);
                    let anchor = call::anchor(Call::new(Vendor::Cuda, regs));
                    let status = real.call();
                    if matches!(Function::$name, Function::cudaMalloc) && status == SUCCESS {
                        runtime_memory::came_through(address);
                    }
                    if status == SUCCESS && anchor.saw_nothing() {
                        // SAFETY: `words` are the arguments of this call, and it has succeeded.
                        if unsafe { made_something(stringify!($name), &words) } {
                            start::unseen(stringify!($name));
                        }
                    }
                    status
                }
            )*
        }
    };
}
gpumem_abi::runtime_functions!(runtime_exports);

static PROVIDERS: Providers<N> = Providers::new(&NAMES, b"libcudart.so");

thread_local! {
    static LAST: LastCaller<N> = const { Cell::new(None) };
}

/// True if a successful call handed something out. Requests of size 0 do not reach the driver.
///
/// # Safety
/// `words` are the arguments of a call of `name` that succeeded.
#[cold]
unsafe fn made_something(name: &str, words: &[u64]) -> bool {
    let out = match name {
        "cudaHostRegister" => return true,
        "cudaFree" => return false,
        "cudaStreamEndCapture" | "cudaStreamEndCapture_ptsz" => words.get(1),
        _ => words.first(),
    };
    // SAFETY: not null. Every row that comes here begins with the out-parameter of what it hands out. The call has
    // succeeded, so at least the bytes of a pointer are written there.
    out.is_some_and(|&out| out != 0 && unsafe { (out as *const usize).read_unaligned() } != 0)
}

/// Serves `cudaMalloc` and `cudaFree`, if the runtime would only ask us ([`runtime_memory`]). Returns true if it did.
///
/// # Safety
/// `words` are the arguments of the program's call of `function`.
#[inline(always)]
unsafe fn serve_fast(function: Function, regs: Regs, words: &[u64]) -> bool {
    let call = Call::new(Vendor::Cuda, regs);
    match (function, words) {
        // SAFETY: our caller vouches for the words of a call of cudaMalloc: the first is the
        // program's out-parameter.
        (Function::cudaMalloc, &[ptr, bytes]) => unsafe {
            runtime_memory::malloc(&call, ptr as *mut DevicePtr, bytes as usize)
        },
        (Function::cudaFree, &[ptr]) => runtime_memory::free(ptr),
        _ => false,
    }
}

/// Returns the address of the runtime's function that this caller means, 0 if there is none.
#[inline]
fn real(caller: usize, index: usize) -> usize {
    LAST.with(|last| PROVIDERS.function(caller, last, index))
}

/// True if this library exports a runtime function of this name.
pub(crate) fn is_exported(name: &[u8]) -> bool {
    NAMES.iter().any(|known| known.to_bytes() == name)
}
