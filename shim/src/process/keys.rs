//! Deletions of a key of thread-specific values. Python's interpreter deletes its key when it ends, on whichever thread.

use super::elf;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

const DELETE: &CStr = c"pthread_key_delete";

/// The watched key plus one; 0 if there is none.
static WATCHED: AtomicU32 = AtomicU32::new(0);
static DELETIONS: AtomicU32 = AtomicU32::new(0);

/// Counts the deletions of this key from now on, in place of another one. Returns false if they are not seen, because
/// another library's function comes before ours.
pub(crate) fn watch(key: u32) -> bool {
    WATCHED.store(key + 1, Release);
    !elf::is_before_us(DELETE)
}

/// Returns the number of deletions of watched keys.
#[inline]
pub(crate) fn deletions() -> u32 {
    DELETIONS.load(Acquire)
}

/// Calls the real function, and counts the deletion of a watched key.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_key_delete(key: libc::pthread_key_t) -> c_int {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    if WATCHED.load(Acquire) == key.wrapping_add(1) {
        DELETIONS.fetch_add(1, AcqRel);
    }
    match elf::symbol_after_us_once(&REAL, DELETE) {
        0 => libc::EINVAL,
        // SAFETY: the symbol behind us has this prototype. The key goes on as it came.
        real => unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(libc::pthread_key_t) -> c_int>(real)(key) },
    }
}
