//! What is known only when the program is loaded, before any of it runs: which objects are in the
//! global scope from the start, and what the program's stderr is. Reading this is all that happens at
//! load; a constructor of a library that the program is linked with may run before, and have it read then.

use super::{descriptor, elf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static NOTED: AtomicBool = AtomicBool::new(false);
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn at_load() {
    elf::objects_at_load();
    note_stderr();
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
static AT_LOAD: extern "C" fn() = at_load;

/// Whether descriptor 2 is what it was at load; a program may have closed it and opened a file.
pub(crate) fn stderr_is_the_same() -> bool {
    note_stderr();
    let now = descriptor::identity(libc::STDERR_FILENO);
    now == Some((STDERR[0].load(Relaxed), STDERR[1].load(Relaxed)))
}
