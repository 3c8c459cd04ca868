//! The CUDA driver: exported `cu*` functions, the real ones behind them, and the rows by name.

use super::thunk::{self, Words};
use crate::call::Call;
use crate::gate;
use crate::hooks::{
    array, capture, context, exec, graph, graph_use, green, host, ipc, memory, peer, procaddr, process, stream, submit,
    sync, vmm,
};
use crate::process::elf::{self, Object};
use crate::process::regs::Regs;
use gpumem_abi::types::*;
use gpumem_wire::kinds::Vendor;
use gpumem_wire::layout::Door;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

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

// SAFETY: code is the same for every thread.
unsafe impl Sync for Address {}

impl Row {
    /// Address of our function: a hook's, or a thunk.
    pub fn hook(&self) -> usize {
        self.hook.0 as usize
    }
}

macro_rules! emit {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        /// Index of each row.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub enum Function { $($name,)* Count }

        const HOOK_NAMES: [&CStr; Function::Count as usize] = [$(
            c_name!($name),
        )*];

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
                    // SAFETY: the slot holds the driver's function of this name, whose ABI is the row's.
                    let real = unsafe { std::mem::transmute::<usize, Real>(real) };
                    if gate::disabled() {
                        // SAFETY: the program's own call, passed on as it came.
                        return unsafe { real($($arg),*) };
                    }
                    let call = Call::new(Vendor::Cuda, Regs::of_caller());
                    // SAFETY: the program's own call; hooks pass its arguments on as they came.
                    unsafe { $module::$hook(call, real, $($arg),*) }
                }
            )*
        }
    };
}
gpumem_abi::driver_functions!(emit);

macro_rules! emit_thunks {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] ($($arg:ident),*);)*) => {
        /// Index of each thunk.
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

/// Functions with a hook come first, then those with a thunk.
const HOOKS: usize = Function::Count as usize;
const N: usize = HOOKS + Thunk::Count as usize;

/// What our functions call: the driver's, or another interposer's behind us.
static REAL: [AtomicUsize; N] = [const { AtomicUsize::new(0) }; N];
/// The driver's own, to know its answers by.
static DRIVER: [AtomicUsize; N] = [const { AtomicUsize::new(0) }; N];

/// Names with the NUL that lookups want.
const NAMES: [&CStr; N] = thunk::join(HOOK_NAMES, THUNK_NAMES);

static ROWS: [Row; N] = thunk::join(HOOK_ROWS, THUNK_ROWS);

/// All rows, in the order of the slots.
pub fn rows() -> &'static [Row] {
    &ROWS
}

macro_rules! emit_calls {
    ($($name:ident = $sys:tt ($($arg:ident: $ty:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Calls { $($name: AtomicUsize,)* }

        static CALLS: Calls = Calls { $($name: AtomicUsize::new(0),)* };

        // Driver functions that the shim calls itself; `None` where the driver lacks one.
        $(
            #[allow(non_snake_case)]
            /// # Safety
            /// As for the driver's function of this name.
            pub unsafe fn $name($($arg: $ty),*) -> Option<Status> {
                let real = CALLS.$name.load(Relaxed);
                if real == 0 {
                    return None;
                }
                // SAFETY: the slot holds the driver's function of this name; the rest is the caller's promise.
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

/// Whether the driver has events behind all work of a context (12.5 has).
pub fn has_context_events() -> bool {
    CALLS.cuCtxRecordEvent.load(Relaxed) != 0
}

/// Whether the driver frees memory in the order of a stream (11.2 does).
pub fn frees_in_order() -> bool {
    let Calls { cuMemFreeAsync, cuStreamCreate, cuStreamSynchronize, .. } = &CALLS;
    [cuMemFreeAsync, cuStreamCreate, cuStreamSynchronize].into_iter().all(|call| call.load(Relaxed) != 0)
}

/// Whether the driver has all that the graph cache cannot do without (12.4 has).
pub fn has_graph_calls() -> bool {
    let Calls {
        cuFuncGetParamInfo,
        cuGraphAddDependencies_v2,
        cuGraphAddKernelNode_v2,
        cuGraphExecKernelNodeSetParams_v2,
        cuGraphInstantiateWithFlags,
        cuGraphKernelNodeGetParams_v2,
        cuGraphNodeGetDependencies_v2,
        cuThreadExchangeStreamCaptureMode,
        ..
    } = &CALLS;
    [
        cuFuncGetParamInfo,
        cuGraphAddDependencies_v2,
        cuGraphAddKernelNode_v2,
        cuGraphExecKernelNodeSetParams_v2,
        cuGraphInstantiateWithFlags,
        cuGraphKernelNodeGetParams_v2,
        cuGraphNodeGetDependencies_v2,
        cuThreadExchangeStreamCaptureMode,
    ]
    .into_iter()
    .all(|slot| slot.load(Relaxed) != 0)
}

static BOUND: AtomicBool = AtomicBool::new(false);
/// Where the driver that is bound begins.
static BOUND_AT: AtomicUsize = AtomicUsize::new(0);

/// Forgets the driver if it was unloaded: a program may load it once to look and again to use it.
/// Functions of ours that were handed out stay good; they bind again.
pub fn unbind_if_gone() {
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

/// Address of the driver's own function, 0 if there is no driver or it lacks the function.
#[inline]
pub fn real(function: Function) -> usize {
    real_at(function as usize)
}

#[inline]
fn real_at(index: usize) -> usize {
    let real = REAL[index].load(Relaxed);
    if real != 0 { real } else { real_slow(index) }
}

#[cold]
fn real_slow(index: usize) -> usize {
    // Called by name before anything was looked up: a program linked to the driver.
    if bind_if_loaded() {
        gate::door(Door::DriverExport);
    }
    REAL[index].load(Relaxed)
}

/// Binds the driver if there is one and none was bound; whether it did.
fn bind_if_loaded() -> bool {
    if BOUND.load(Acquire) {
        return false;
    }
    let objects = elf::Listing::new();
    let driver = objects.objects().find(|object| object.file_name().starts_with(FILE));
    driver.and_then(|driver| elf::object_at(driver.start)).filter(is_driver).inspect(bind).is_some()
}

/// What the driver's file is called.
const FILE: &[u8] = b"libcuda.so";

fn is_driver(object: &Object) -> bool {
    object.file_name().starts_with(FILE)
}

/// Binds the driver if this address is in it; whether it is.
pub fn bind_at(address: usize) -> bool {
    match elf::object_at(address) {
        Some(object) if is_driver(&object) => {
            bind(&object);
            true
        }
        _ => false,
    }
}

fn bind(driver: &Object) {
    if BOUND.load(Acquire) {
        return;
    }
    let names = || NAMES.iter().chain(CALL_NAMES).copied();
    // Another interposer behind us keeps its place, also for the calls that we make ourselves: handles
    // that it gave out mean nothing to the driver.
    let mut found = driver.symbols(names()).zip(elf::symbols_in_first_scope(names())).map(|(own, first)| {
        let real = if first == 0 || driver.holds(first) { own } else { first };
        (own, real)
    });
    for (slots, found) in REAL.iter().zip(&DRIVER).zip(found.by_ref()) {
        let ((real, driver), (own, first)) = (slots, found);
        driver.store(own, Relaxed);
        real.store(first, Relaxed);
    }
    bind_calls(|| found.next().map_or(0, |(_, real)| real));
    BOUND_AT.store(driver.start, Relaxed);
    BOUND.store(true, Release);
}

/// Address of a row's real function, 0 if the driver lacks it.
pub fn real_of(row: &Row) -> usize {
    let index = rows().iter().position(|known| known.name == row.name);
    index.map_or(0, |index| REAL[index].load(Relaxed))
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
    let index = DRIVER.iter().position(|slot| slot.load(Relaxed) == address && address != 0)?;
    Some(&rows()[index])
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
