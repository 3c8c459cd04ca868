//! What is known only when the program is loaded, before any of it runs: which objects are in the
//! global scope from the start, and what the program's stderr is. Reading this, and one registration with the kernel that
//! is slow later ([`fences`]), is all that happens at load, unless the processor lacks what this library was built to use.
//! A constructor of a library that the program is linked with may run before, and have it read then.

use super::{descriptor, elf, fences, processor, wiped};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static NOTED: AtomicBool = AtomicBool::new(false);
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// # Safety
/// The loader calls it, with what the program was started with.
unsafe extern "C" fn at_load(_: c_int, argv: *const *const c_char, environment: *mut *mut c_char) {
    // First of all: what comes behind it may need what is missing.
    if let Some(missing) = processor::lacking() {
        // SAFETY: the lists are the loader's, and a library that is preloaded is begun before any thread is.
        unsafe { processor::step_aside(missing, argv, environment) };
    }
    note();
}

/// On its own: what the compiler does for this must not come before the processor was looked at.
#[inline(never)]
fn note() {
    elf::objects_at_load();
    elf::first_copy();
    note_stderr();
    if !wiped::is_to_be_disabled() {
        fences::prepare_at_load();
    }
}

/// Once: what was closed then may be a file of the program's later.
fn note_stderr() {
    if NOTED.swap(true, Relaxed) {
        return;
    }
    if let Some((device, inode)) = descriptor::identity(libc::STDERR_FILENO) {
        STDERR[0].store(device, Relaxed);
        STDERR[1].store(inode, Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: unsafe extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = at_load;

/// Whether descriptor 2 is what it was at load; a program may have closed it and opened a file.
pub(crate) fn stderr_is_the_same() -> bool {
    note_stderr();
    let now = descriptor::identity(libc::STDERR_FILENO);
    now == Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed)))
}
