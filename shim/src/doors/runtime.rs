//! The CUDA runtime: exported `cuda*` functions. They find the real function through the caller,
//! remember who called, and call; the driver's hooks below do the rest.

use super::providers::{LastCaller, Providers};
use crate::call::{self, Call};
use crate::gate;
use crate::stacks::Regs;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint};

macro_rules! emit {
    ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[repr(usize)]
        enum Function { $($name,)* Count }

        const N: usize = Function::Count as usize;

        static NAMES: [&CStr; N] = [$(
            // SAFETY: the literal ends with its only NUL.
            unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
        )*];

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case)]
                pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    type Real = unsafe extern "C-unwind" fn($($ty),*) -> Status;
                    let regs = Regs::of_caller();
                    let real = real(regs.pc as usize, Function::$name as usize);
                    if real == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the address is that of a runtime's function of this name, whose ABI
                    // is the row's in every version.
                    let real = unsafe { std::mem::transmute::<usize, Real>(real) };
                    if gate::disabled() {
                        // SAFETY: the program's own call, passed on as it came.
                        return unsafe { real($($arg),*) };
                    }
                    gate::door(Door::RuntimeExport);
                    let _anchor = call::anchor(Call::new(Vendor::Cuda, regs), stringify!($name));
                    // SAFETY: the program's own call, passed on as it came.
                    unsafe { real($($arg),*) }
                }
            )*
        }
    };
}
gpumem_abi::runtime_functions!(emit);

static PROVIDERS: Providers<N> = Providers::new(&NAMES, b"libcudart.so");

thread_local! {
    static LAST: LastCaller<N> = const { Cell::new(None) };
}

/// Address of the function that this caller means, 0 if there is none.
#[inline]
fn real(caller: usize, index: usize) -> usize {
    LAST.with(|last| PROVIDERS.function(caller, last, index))
}

/// Whether this library exports a runtime function of this name.
pub fn is_exported(name: &[u8]) -> bool {
    NAMES.iter().any(|known| known.to_bytes() == name)
}
