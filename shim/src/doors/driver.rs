//! The CUDA driver's door: exported `cu*` functions, and the rows by name.

use super::procaddr;
use super::thunk::{self, Words};
use crate::call::Call;
use crate::gate;
use crate::hooks::{
    array, capture, context, exec, graph, graph_use, green, host, ipc, memory, peer, process, stream, submit, sync, vmm,
};
use crate::process::regs::Regs;
use crate::vendor::driver::{Function, HOOKS, N, Thunk, bind_if_loaded, index_at, known};
use crate::vendor::join;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What the table says of one function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    /// What `cuGetProcAddress` is asked for.
    pub base: &'static str,
    /// First version of the API that gives it.
    pub since: u32,
    /// The flavour whose default stream is per thread.
    pub per_thread: bool,
    hook: Address,
    /// Whether it is a thunk.
    pub thunk: bool,
}

/// Where a function of ours begins.
#[derive(Clone, Copy, Debug)]
struct Address(*const ());

// SAFETY: the address is that of code, which every thread may call and no thread changes.
unsafe impl Sync for Address {}

impl Row {
    /// Address of our function: a hook's, or a thunk.
    pub fn hook(&self) -> usize {
        self.hook.0 as usize
    }
}

macro_rules! emit {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const HOOK_ROWS: [Row; Function::Count as usize] = [$(Row {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: matches!(stringify!($flavour).as_bytes(), b"ptds"),
            hook: Address(export::$name as *const ()),
            thunk: false,
        },)*];

        mod export {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                #[allow(non_snake_case, clippy::too_many_arguments)]
                pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> Status {
                    type Real = unsafe extern "C-unwind" fn($($ty),*) -> Status;
                    let real = real(Function::$name);
                    if real == 0 {
                        return SYMBOL_NOT_FOUND;
                    }
                    // SAFETY: the slot holds the driver's function of this name, and the row
                    // declares its signature (a test compares the rows with cudarc's).
                    let real = unsafe { std::mem::transmute::<usize, Real>(real) };
                    if gate::disabled() {
                        // SAFETY: the program's call: the function that it named gets its arguments
                        // as they came.
                        return unsafe { real($($arg),*) };
                    }
                    let call = Call::new(Vendor::Cuda, Regs::of_caller());
                    // SAFETY: the program's call: the hook gets the function that the program
                    // named, and its arguments as they came. The hooks' rule of the call asks for
                    // that.
                    unsafe { $module::$hook(call, real, $($arg),*) }
                }
            )*
        }
    };
}
gpumem_abi::driver_functions!(emit);

macro_rules! emit_thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        /// How many arguments each has.
        static ARGS: [usize; Thunk::Count as usize] = [$(
            [$(stringify!($arg)),*].len(),
        )*];

        const THUNK_ROWS: [Row; Thunk::Count as usize] = [$(Row {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: matches!(stringify!($flavour).as_bytes(), b"ptds"),
            hook: Address(export_thunk::$name as *const ()),
            thunk: true,
        },)*];

        mod export_thunk {
            use super::{Thunk, through};
            $(super::thunk::thunk!($name, Thunk::$name as usize, through);)*
        }
    };
}
gpumem_abi::graph_thunks!(emit_thunks);

thunk::through!(through, enter);

/// Where a thunk jumps.
///
/// # Safety
/// Called by a thunk of the table, with the words that it keeps.
unsafe extern "C" fn enter(index: usize, words: &mut Words, _: usize) -> usize {
    thunk::pass(real_at(HOOKS + index), words, ARGS[index])
}

static ROWS: [Row; N] = join(HOOK_ROWS, THUNK_ROWS);

/// All rows, in the order of the slots.
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// Address of the driver's own function, 0 if there is no driver or it lacks the function.
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
    // Called by name before anything was looked up: a program linked to the driver.
    if bind_if_loaded() {
        gate::door(Door::DriverExport);
    }
    known(index)
}

/// Address of a row's real function, 0 if the driver lacks it.
pub fn real_of(row: &Row) -> usize {
    rows().iter().position(|other| other.name == row.name).map_or(0, known)
}

/// Whether our function of this row leads to an address: the driver's, or an interposer's.
pub fn is_behind(row: &Row, address: usize) -> bool {
    bind_if_loaded();
    address != 0 && real_of(row) == address
}

/// The row of a symbol, as `dlsym` is asked for it.
pub fn row_named(name: &[u8]) -> Option<&'static Row> {
    let rows = rows();
    static SORTED: once_cell::race::OnceBox<Vec<u16>> = once_cell::race::OnceBox::new();
    let order = SORTED.get_or_init(|| {
        let mut order: Vec<u16> = (0..rows.len() as u16).collect();
        order.sort_unstable_by_key(|&index| rows[index as usize].name);
        Box::new(order)
    });
    let found = order.binary_search_by(|&index| rows[index as usize].name.as_bytes().cmp(name)).ok()?;
    Some(&rows[order[found] as usize])
}

/// The row whose real function lies at an address.
pub fn row_at(address: usize) -> Option<&'static Row> {
    index_at(address).map(|index| &rows()[index])
}

/// The row that the driver gives for a base name at a version: the newest one not newer than it.
pub fn row_for(base: &[u8], version: u32, per_thread: bool) -> Option<&'static Row> {
    let newest = |per_thread| {
        rows()
            .iter()
            .filter(|row| row.base.as_bytes() == base && row.since <= version && row.per_thread == per_thread)
            .max_by_key(|row| row.since)
    };
    if per_thread { newest(true).or_else(|| newest(false)) } else { newest(false) }
}

/// Whether the table has any row of this base name.
pub fn knows_base(base: &[u8]) -> bool {
    rows().iter().any(|row| row.base.as_bytes() == base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_flavours_choose_the_row_that_the_driver_gives() {
        let name = |base: &str, version, per_thread| row_for(base.as_bytes(), version, per_thread).map(|row| row.name);
        assert_eq!(name("cuGraphInstantiate", 10000, false), Some("cuGraphInstantiate"));
        assert_eq!(name("cuGraphInstantiate", 11000, false), Some("cuGraphInstantiate_v2"));
        assert_eq!(name("cuGraphInstantiate", 13000, true), Some("cuGraphInstantiate_v2"));
        assert_eq!(name("cuGraphLaunch", 12000, false), Some("cuGraphLaunch"));
        assert_eq!(name("cuGraphLaunch", 12000, true), Some("cuGraphLaunch_ptsz"));
        assert_eq!(name("cuStreamBeginCapture", 10000, true), Some("cuStreamBeginCapture_ptsz"));
        assert_eq!(name("cuMemAlloc", 2000, false), None, "32-bit pointers: not ours");
        assert_eq!(name("cuGetProcAddress", 11030, false), Some("cuGetProcAddress"));
        assert_eq!(name("cudnnCreate", 13000, false), None);
    }

    #[test]
    fn every_row_is_found_by_its_name() {
        for row in rows() {
            assert_eq!(row_named(row.name.as_bytes()).unwrap().hook(), row.hook());
        }
        assert!(row_named(b"cuMemAlloc").is_none());
        assert!(row_named(b"curl_easy_init").is_none());
    }
}
