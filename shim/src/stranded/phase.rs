//! Whether a thread is in the middle of a computation: it has launched kernels and has not waited for
//! the device since.
//!
//! Programs allocate what they will work with before they launch anything, or after they have waited
//! for what they launched; what is asked for between launches is scratch.

use std::cell::Cell;

thread_local! {
    // No destructor: hooks are called from thread-local destructors of the program too.
    static LAUNCHED: Cell<bool> = const { Cell::new(false) };
}

/// This thread launches a kernel. Copies do not count: models are loaded by them.
#[inline(always)]
pub fn submitted() {
    LAUNCHED.with(|launched| launched.set(true));
}

/// This thread waited for a stream, an event or the device, or for a copy.
#[inline(always)]
pub fn synced() {
    LAUNCHED.with(|launched| launched.set(false));
}

/// Whether it is in the middle of a computation.
#[inline]
pub fn inside() -> bool {
    LAUNCHED.with(Cell::get)
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
    }
}
