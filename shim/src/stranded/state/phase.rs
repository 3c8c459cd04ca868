//! Tells if a thread is in the middle of a computation: it has launched kernels and has not waited for the device
//! since.
//!
//! Programs allocate their working memory before they launch anything, or after they have waited for their launches.
//! Memory requested between launches is scratch.

use crate::process::threads::local;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// True if a thread has launched a kernel since the last [`worked`].
static WORK: AtomicBool = AtomicBool::new(false);

/// Notes that this thread launches a kernel. Copies do not count: models are loaded by them.
#[inline(always)]
pub(crate) fn submitted() {
    local(|local| local.launched.set(true));
    work();
}

/// Notes that the device is given work, or may be: HIP's launches are not seen.
#[inline(always)]
pub(in crate::stranded) fn work() {
    // Only the first launch after an allocation writes the word that all threads read.
    if !WORK.load(Relaxed) {
        WORK.store(true, Relaxed);
    }
}

/// Returns true if a kernel was launched since the last call.
pub(in crate::stranded) fn worked() -> bool {
    WORK.swap(false, Relaxed)
}

/// Notes that this thread waited for a stream, an event, the device or a copy.
#[inline(always)]
pub(crate) fn synced() {
    local(|local| local.launched.set(false));
}

/// True if this thread is in the middle of a computation.
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
