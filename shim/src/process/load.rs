//! Facts that can only be read at load, before the program runs: the objects in the initial global scope, and the
//! identity of the program's stderr.
//!
//! Load does no more than read these and have the kernel do what would be slow later ([`prepare_while_alone`]), unless
//! the processor lacks an instruction set that this library was built for. A constructor of a library that the
//! program is linked with may run earlier, and the facts are read then.

use super::{descriptor, elf, fences, processor, wiped};
use std::ffi::{c_char, c_int};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static NOTED: AtomicBool = AtomicBool::new(false);
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// # Safety
/// The loader calls it, with the program's own arguments and environment.
unsafe extern "C" fn at_load(_: c_int, argv: *const *const c_char, environment: *mut *mut c_char) {
    // This comes first: the code after it may need what is missing.
    if let Some(missing) = processor::lacking() {
        // SAFETY: the lists are the loader's, and a library that is preloaded is begun before any thread is.
        unsafe { processor::step_aside(missing, argv, environment) };
    }
    note();
}

/// Reads the facts. It is a separate function, because the compiler's code for it must not run before the processor
/// check.
#[inline(never)]
fn note() {
    elf::objects_at_load();
    elf::first_copy();
    note_stderr();
    if !wiped::is_to_be_disabled() {
        prepare_while_alone();
    }
}

/// Registers for [`fences`] and makes room for our descriptors, if the process has one thread. If it has more, the
/// kernel waits for every processor to pass through the scheduler, in each of the two: 4 to 14 ms.
pub(crate) fn prepare_while_alone() {
    // The folder of threads contains one folder.
    if let Ok(threads) = File::open("/proc/self/task")
        && threads.metadata().is_ok_and(|of| of.nlink() == 3)
    {
        fences::prepare();
        descriptor::make_room(threads.as_fd());
    }
}

/// Records stderr once: if it was closed then, the number may later be a file of the program.
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

/// True if descriptor 2 is the same as at load. A program may have closed it and opened a file.
pub(crate) fn stderr_is_the_same() -> bool {
    note_stderr();
    let now = descriptor::identity(libc::STDERR_FILENO);
    now == Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed)))
}
