//! The HIP runtime: exported `hip*` functions, also handed out by `dlsym`, since there is no boundary below them.
//!
//! libamdhip64 calls its own exported names through the global scope, so these calls come to us as well. A call that is
//! made inside another call, or out of libamdhip64 itself, is passed on untouched.

mod procaddr;

use super::spare;
use super::thunk;
pub(crate) use crate::backend::hip_runtime::holds;
use crate::backend::hip_runtime::{Function, HOOKS, Inside, NAMES, Thunk, is_librarys_own, real};
use crate::call::{Arguments, Call, Real};
use crate::gate;
use crate::hooks::{
    array, capture, context, driver_pool, event, exec, exec_node, graph, graph_memory, graph_use, hip_launch, host,
    ipc, memory, process, stream, unknown, vmm,
};
use crate::process::regs::Regs;
use crate::process::thunks::Words;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// True if an argument is a handle of ours. HIP itself never has one, so such a call comes from the program, inside a
/// callback from HIP.
#[inline]
fn is_ours(word: usize) -> bool {
    unknown::is_handle(Vendor::Hip, word)
}

macro_rules! hip_exports {
    ($($name:ident => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        fn hook(index: usize) -> usize {
            [$(export::$name as *const () as usize,)*][index]
        }

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case, clippy::too_many_arguments)]
                pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    let regs = Regs::of_caller();
                    let real = real(regs.pc as usize, Function::$name as usize);
                    if real == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the address is that of the HIP runtime's function of this name, and
                    // the row declares its signature. This is the program's call of it, or one of
                    // the library's own.
                    let real = unsafe { Real::new(real, ($($arg,)*)) };
                    let nested = || is_librarys_own(regs.pc as usize, regs.sp) && !real.args.words().iter().any(|word| is_ours(*word as usize));
                    if gate::disabled() || nested() {
                        return real.call();
                    }
                    let _inside = Inside::at(regs.sp);
                    gate::door(Door::HipExport);
                    // SAFETY: the program's call: the hook gets the function that the program
                    // named, and its arguments as they came. The hooks' rule of the call asks for
                    // that.
                    unsafe { $module::$hook(Call::new(Vendor::Hip, regs), real) }
                }
            )*
        }
    };
}
gpumem_abi::hip_functions!(hip_exports);

macro_rules! hip_thunk_exports {
    ($($name:ident ($($arg:ident),*);)*) => {
        fn thunk_at(index: usize) -> usize {
            [$(export_thunk::$name as *const () as usize,)*][index]
        }

        thunk::thunks!(through; $($name ($($arg),*);)*);
    };
}
gpumem_abi::hip_graph_thunks!(hip_thunk_exports);

crate::process::thunks::through!(through, enter);

/// Returns the address to which a thunk jumps.
///
/// # Safety
/// Called by a thunk of the table, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, words: &mut Words, caller: usize) -> usize {
    let real = real(caller, HOOKS + index);
    // HIP calls itself, so these handles are its own.
    let nested = is_librarys_own(caller, std::ptr::from_ref(words) as u64);
    if gate::disabled() || (nested && !words[..ARGS[index].min(words.len())].iter().any(|word| is_ours(*word))) {
        return thunk::straight(real);
    }
    gate::door(Door::HipExport);
    thunk::pass(real, words, ARGS[index])
}

/// Returns the address of our function of this name.
pub(crate) fn export_named(name: &[u8]) -> Option<usize> {
    let index = NAMES.iter().position(|known| known.to_bytes() == name)?;
    Some(if index < HOOKS { hook(index) } else { thunk_at(index - HOOKS) })
}

/// Returns our function for an answer of the HIP runtime to this name.
pub(crate) fn ours(name: &[u8], answer: usize) -> Option<usize> {
    if !holds(answer) {
        return None;
    }
    export_named(name).or_else(|| thunk::is_graph_function(name).then(|| spare::of(answer, name)).flatten())
}
