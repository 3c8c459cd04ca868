//! `dlsym` and `dlvsym`: the way by which static cudarts, Python bindings and plugins find the driver.
//!
//! Both are naked functions. They ask [`decide`], and if it has no answer they jump to the real function, which then
//! sees the caller's return address. glibc takes the scope of `RTLD_NEXT` and `RTLD_DEFAULT` from that address. Behind
//! an ordinary wrapper, another library's `dlsym(RTLD_NEXT, …)` would find itself and recurse.

use super::{driver, hip, rows, runtime, spare, thunk};
use crate::backend::driver::{bind_at, unbind_if_gone};
use crate::backend::gates;
use crate::gate;
use crate::process::elf;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// Answer of [`decide`]: jump to the real function with the unchanged arguments.
const JUMP: usize = 0;
/// Answer of [`decide`]: return NULL; `dlerror` has been set by the lookup that failed.
const NOT_FOUND: usize = 1;

/// Calls the real `dlsym`: the next one in the global scope, so that another interposer keeps its place.
///
/// # Safety
/// As for `dlsym`; scopes that depend on the caller are those of this library.
unsafe fn real_dlsym(handle: *mut c_void, name: &CStr) -> usize {
    let real = elf::symbol_after_us_once(&REAL_DLSYM, c"dlsym");
    if real == 0 {
        return 0;
    }
    // SAFETY: the symbol behind us is the real dlsym, which has this prototype. Our caller vouches for
    // `handle`, and `name` is a C string.
    unsafe { std::mem::transmute::<usize, Dlsym>(real)(handle, name.as_ptr()) as usize }
}

/// Calls the real `dlclose`, and notes that earlier facts about loaded libraries may be wrong now.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: the program's call of dlclose: the handle goes on as it came.
    let result = unsafe { real_dlclose(handle) };
    if elf::look_for_unloads() {
        unbind_if_gone();
        // Stacks forget the unloaded code.
        gate::record_if_started(|_| drop(crate::stacks::modules::refresh()));
    }
    result
}

/// # Safety
/// As for `dlclose`.
unsafe fn real_dlclose(handle: *mut c_void) -> c_int {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let real = elf::symbol_after_us_once(&REAL, c"dlclose");
    if real == 0 {
        return -1;
    }
    // SAFETY: the symbol behind us is the real dlclose, which has this prototype. Our caller vouches for
    // `handle`.
    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> c_int>(real)(handle) }
}

/// Decides the answer to a lookup: one of our functions, [`NOT_FOUND`], or [`JUMP`].
///
/// # Safety
/// Called by the naked functions below with the arguments of a `dlsym` or, if `version` is not null, a `dlvsym`, and
/// the address it returns to.
unsafe extern "C" fn decide(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    return_address: usize,
) -> usize {
    elf::symbol_after_us_once(&REAL_DLSYM, c"dlsym");
    elf::symbol_after_us_once(&REAL_DLVSYM, c"dlvsym");
    if name.is_null() {
        return JUMP;
    }
    // SAFETY: not null, so the program passed a C string. Its second byte is read only if the first
    // is no NUL.
    let name = unsafe {
        if (*name as u8 != b'c' || *name.add(1) as u8 != b'u') && (*name as u8 != b'h' || *name.add(1) as u8 != b'i') {
            return JUMP;
        }
        CStr::from_ptr(name)
    };
    let disabled = gate::disabled();
    let row = rows::row_named(name.to_bytes());
    let is_hip = hip::export_named(name.to_bytes()).is_some();
    // We do not export these names. A disabled shim has nothing to do with them.
    let unknown = !disabled && row.is_none() && spare::is_for(name.to_bytes());
    let gated = row.is_none() && gates::is_member() && gpumem_abi::is_drivers(name.to_bytes());
    if row.is_none() && !is_hip && !unknown && !gated && !runtime::is_exported(name.to_bytes()) {
        return JUMP;
    }
    // If our export hides another one, the answer is as if ours did not exist.
    let (found, shadowed) = if handle == libc::RTLD_NEXT {
        match next_without_us(name, return_address) {
            Some(found) => (found, true),
            None => return JUMP,
        }
    } else {
        // SAFETY: the program asks for this lookup: the handle and the version go on as they came.
        match unsafe { lookup(handle, name, version) } {
            0 => return JUMP,
            // A library that natively comes before us also does so here. The linker's -Bsymbolic makes us find
            // ourselves first.
            found if elf::is_ours(found) && handle == libc::RTLD_DEFAULT && elf::is_before_us(name) => return JUMP,
            found if elf::is_ours(found) => (real_behind(name, return_address), true),
            found => (found, false),
        }
    };
    if found == 0 {
        return NOT_FOUND;
    }
    let passes = disabled || must_find_the_real(name, return_address);
    let ours = if passes {
        None
    } else if let Some(row) = row {
        (bind_at(found) || driver::is_behind(row, found)).then(|| driver::ours(row))
    } else if name.to_bytes().starts_with(b"cu") {
        let gate = if gated && bind_at(found) { driver::gate_of(name.to_bytes(), found) } else { None };
        let spare = (unknown && bind_at(found)).then(|| spare::of(gate.unwrap_or(found), name.to_bytes())).flatten();
        spare.or(gate)
    } else {
        hip::ours(name.to_bytes(), found)
    };
    // A function of such a name may lead to the driver in its own way. Other names may belong to any library.
    let may_lead = || thunk::is_graph_function(name.to_bytes()) || gpumem_abi::may_submit(name.to_bytes());
    if ours.is_none() && !passes && may_lead() {
        spare::went_past(name.to_bytes());
    }
    match ours {
        Some(hook) => {
            gate::door(gpumem_wire::layout::Door::Dlsym);
            hook
        }
        None if shadowed => found,
        None => JUMP,
    }
}

/// # Safety
/// As for `dlsym` and `dlvsym`.
unsafe fn lookup(handle: *mut c_void, name: &CStr, version: *const c_char) -> usize {
    if version.is_null() {
        // SAFETY: our caller vouches for the handle, as dlsym wants it.
        return unsafe { real_dlsym(handle, name) };
    }
    let real = REAL_DLVSYM.load(Relaxed);
    if real == 0 {
        return 0;
    }
    // SAFETY: REAL_DLVSYM holds the real dlvsym, which has this prototype. Our caller vouches for
    // the handle and the version.
    unsafe { std::mem::transmute::<usize, Dlvsym>(real)(handle, name.as_ptr(), version) as usize }
}

/// Returns what `RTLD_NEXT` would give this caller without gpumem; 0 if nothing, with `dlerror` set. `None` if
/// `RTLD_NEXT` leads to no copy of gpumem.
fn next_without_us(name: &CStr, caller: usize) -> Option<usize> {
    let objects = elf::Listing::with_symbol(name);
    Some(match objects.next_copy(caller)? {
        elf::NextCopy::This => next_behind(name),
        elf::NextCopy::Another => objects.in_first_scope_behind(caller).unwrap_or_else(|| nowhere(name)),
    })
}

/// Returns the symbol in the global scope behind us; 0 if there is none, with `dlerror` set.
fn next_behind(name: &CStr) -> usize {
    // SAFETY: RTLD_NEXT is a handle that dlsym accepts. From here it stands for the global scope
    // behind this library.
    let next = unsafe { real_dlsym(libc::RTLD_NEXT, name) };
    match next {
        _ if elf::is_ours(next) => 0,
        _ if elf::is_in_another_copy(next) => elf::symbol_in_first_scope(name).unwrap_or_else(|| nowhere(name)),
        _ => next,
    }
}

/// Returns 0 for a name that only copies of gpumem define, with `dlerror` set.
fn nowhere(name: &CStr) -> usize {
    // SAFETY: RTLD_NOLOAD loads nothing and takes one reference, which is given back. The C library is never unloaded,
    // so the handle stays good. It defines no GPU function, so the lookup fails; it comes last, because `dlerror`
    // reports the last call.
    unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !handle.is_null() {
            real_dlclose(handle);
            real_dlsym(handle, name);
        }
    }
    0
}

/// Returns what a caller would have found without this library: the symbol in the global scope behind us, or else in
/// the caller's own scope. 0 if there is none.
fn real_behind(name: &CStr, caller: usize) -> usize {
    match next_behind(name) {
        0 => match through_caller(name, caller) {
            // Looked up once more, because `dlerror` reports the last lookup.
            0 => next_behind(name),
            found => found,
        },
        next => next,
    }
}

/// Returns the symbol in the caller's own dependencies; 0 if there is none or it is ours.
fn through_caller(name: &CStr, caller: usize) -> usize {
    let Some(path) = elf::object_at(caller).and_then(|object| std::ffi::CString::new(object.path).ok()) else {
        return 0;
    };
    let path_or_program = if path.is_empty() { std::ptr::null() } else { path.as_ptr() };
    // SAFETY: `path_or_program` is null or a CString that outlives the call. RTLD_NOLOAD loads
    // nothing and takes one reference, which is given back below.
    unsafe {
        let handle = libc::dlopen(path_or_program, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return 0;
        }
        let found = real_dlsym(handle, name);
        real_dlclose(handle);
        if elf::is_ours(found) || elf::is_in_another_copy(found) { 0 } else { found }
    }
}

/// True if a lookup comes from a library that must not find our function. This is a driver that looks for its own
/// functions, another copy of gpumem, or an interposer behind us that defines the name itself and that we call. An
/// interposer that we do not call (a table of functions that a framework fills itself) finds ours.
fn must_find_the_real(name: &CStr, return_address: usize) -> bool {
    elf::object_at(return_address).is_some_and(|object| {
        let file = object.file_name();
        let vendor = [&b"libcuda.so"[..], b"libnvidia-", b"libcudadebugger", b"libamdhip64", b"libhsa-runtime"]
            .iter()
            .any(|vendor| file.starts_with(vendor));
        let called = || {
            !name.to_bytes().starts_with(b"cu")
                || elf::symbol_in_first_scope(name).is_some_and(|found| object.holds(found))
        };
        vendor || elf::is_in_another_copy(return_address) || (object.symbol(name).is_some() && called())
    })
}

/// Defines a naked function that asks [`decide`], or else jumps to the real function. `$no_version` makes the third
/// argument of `decide` null if the function has no version.
macro_rules! lookup_door {
    ($name:ident($($arg:ident: $ty:ty),*), $real:ident, $no_version:literal) => {
        // Stack on entry: [rsp] return address. Three pushes keep the arguments and align the stack.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            std::arch::naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, [rsp + 24]",
                $no_version,
                "call {decide}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "cmp rax, 1",
                "jb 2f",
                "ja 3f",
                "xor eax, eax",
                "3: ret",
                "2: mov rax, [rip + {real}]",
                "jmp rax",
                decide = sym decide,
                real = sym $real,
            )
        }

        // x30 holds the return address; it and the arguments are kept over the call.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "mov x29, sp",
                $no_version,
                "mov x3, x30",
                "bl {decide}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "cmp x16, #1",
                "b.lo 2f",
                "csel x0, xzr, x16, eq",
                "ret",
                "2: adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "br x16",
                decide = sym decide,
                real = sym $real,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
lookup_door!(dlsym(handle: *mut c_void, name: *const c_char), REAL_DLSYM, "xor edx, edx");
#[cfg(target_arch = "aarch64")]
lookup_door!(dlsym(handle: *mut c_void, name: *const c_char), REAL_DLSYM, "mov x2, xzr");
lookup_door!(dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char), REAL_DLVSYM, "");
