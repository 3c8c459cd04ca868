//! The CUDA driver's door: exported `cu*` functions, and their addresses.

mod procaddr;

use super::rows::Row;
use super::thunk;
use crate::backend::driver::{Function, HOOKS, N, Thunk, bind_if_loaded, known};
use crate::backend::{gates, join};
use crate::call::{Call, Real};
use crate::gate;
use crate::hooks::{
    array, capture, code, context, driver_pool, event, exec, exec_node, graph, graph_memory, graph_use, green, host,
    ipc, memory, peer, process, stream, submit, sync, vmm,
};
use crate::process::regs::Regs;
use crate::process::thunks::Words;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The address of a function of ours.
#[derive(Clone, Copy, Debug)]
struct Address(*const ());

// SAFETY: the address is that of code, which every thread may call and no thread changes.
unsafe impl Sync for Address {}

macro_rules! driver_exports {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOK_ADDRESSES: [Address; Function::Count as usize] = [$(Address(export::$name as *const ()),)*];

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case, clippy::too_many_arguments)]
                pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    let real = real(Function::$name);
                    if real == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the slot holds the driver's function of this name, and the row
                    // declares its signature (a test compares the rows with cudarc's). This is the
                    // program's call of it.
                    let real = unsafe { Real::new(real, ($($arg,)*)) };
                    if gate::disabled() {
                        return real.call();
                    }
                    let call = Call::new(Vendor::Cuda, Regs::of_caller());
                    // SAFETY: the program's call: the hook gets the function that the program
                    // named, and its arguments as they came. The hooks' rule of the call asks for
                    // that.
                    unsafe { $module::$hook(call, real) }
                }
            )*
        }
    };
}
gpumem_abi::driver_functions!(driver_exports);

macro_rules! driver_thunk_exports {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        const THUNK_ADDRESSES: [Address; Thunk::Count as usize] = [$(Address(export_thunk::$name as *const ()),)*];

        thunk::thunks!(through; $($name ($($arg),*);)*);
    };
}
gpumem_abi::graph_thunks!(driver_thunk_exports);

crate::process::thunks::through!(through, enter);

/// Returns the address to which a thunk jumps.
///
/// # Safety
/// Called by a thunk of the table, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, words: &mut Words, _: usize) -> usize {
    thunk::pass(real_at(HOOKS + index), words, ARGS[index])
}

static ADDRESSES: [Address; N] = join(HOOK_ADDRESSES, THUNK_ADDRESSES);

/// Returns the address of our function of this row: a hook's, or a thunk.
pub fn ours(row: &Row) -> usize {
    ADDRESSES[row.index].0 as usize
}

/// Returns the address of the driver's own function, 0 if there is no driver or it lacks the function.
#[inline]
fn real(function: Function) -> usize {
    real_at(function as usize)
}

#[inline]
fn real_at(index: usize) -> usize {
    match known(index) {
        0 => real_slow(index),
        real => real,
    }
}

#[cold]
fn real_slow(index: usize) -> usize {
    // Called by name before any lookup: a program linked to the driver.
    if bind_if_loaded() {
        gate::door(Door::DriverExport);
    }
    known(index)
}

/// Returns the address of a row's real function, or of the gate in front of it, 0 if the driver lacks it.
pub(crate) fn real_of(row: &Row) -> usize {
    known(row.index)
}

/// Returns the gate in front of a function of the driver that has no row, `None` if it is called without one.
pub(super) fn gate_of(name: &[u8], real: usize) -> Option<usize> {
    Some(gates::in_front_of(name, real)).filter(|gate| *gate != real)
}

/// True if our function of this row leads to an address: the driver's, or an interposer's.
pub(crate) fn is_behind(row: &Row, address: usize) -> bool {
    bind_if_loaded();
    address != 0 && gates::behind(real_of(row)) == address
}
