//! Whether a thread is in the middle of a computation: it has launched kernels and has not waited for
//! the device since.
//!
//! Programs allocate what they will work with before they launch anything, or after they have waited
//! for what they launched; what is asked for between launches is scratch.

use crate::process::threads::local;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether some thread has launched a kernel since this was last asked.
static WORK: AtomicBool = AtomicBool::new(false);

/// This thread launches a kernel. Copies do not count: models are loaded by them.
#[inline(always)]
pub(crate) fn submitted() {
    local(|local| local.launched.set(true));
    work();
}

/// The device is given work, or may be: HIP's launches are not seen.
#[inline(always)]
pub(super) fn work() {
    // Only the first launch after an allocation writes what all threads read.
    if !WORK.load(Relaxed) {
        WORK.store(true, Relaxed);
    }
}

/// Whether a kernel was launched since this was last asked.
pub(super) fn worked() -> bool {
    WORK.swap(false, Relaxed)
}

/// This thread waited for a stream, an event or the device, or for a copy.
#[inline(always)]
pub(crate) fn synced() {
    local(|local| local.launched.set(false));
}

/// Whether it is in the middle of a computation.
#[inline]
pub(crate) fn inside() -> bool {
    local(|local| local.launched.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_from_its_launch_to_its_wait() {
        assert!(!inside());
        submitted();
        assert!(inside());
        std::thread::spawn(|| assert!(!inside())).join().unwrap();
        synced();
        assert!(!inside());
        assert_eq!([worked(), worked()], [true, false]);
    }
}
