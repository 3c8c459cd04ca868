//! A lock that costs its owner a few instructions: the thread that takes it all the time. Other threads take it rarely,
//! and pay for both.

use super::sync::{AtomicBool, Ordering::*, heavy, light, spin_loop, yield_now};

/// A lock of two sides. Neither waits for the other in a lock of the system.
#[derive(Default)]
pub(super) struct BiasedLock {
    /// The owner is inside. Only the owner writes this.
    inside: AtomicBool,
    /// Another thread is inside, or waits to be.
    wanted: AtomicBool,
}

/// The lock while it is held. Contains the flag to clear on leaving.
pub(super) struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl BiasedLock {
    /// For the owner: enters, unless another thread wants the lock, or the owner is inside already (in a signal
    /// handler).
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<Held<'_>> {
        if self.inside.load(Relaxed) {
            return None;
        }
        self.inside.store(true, Relaxed);
        // Either this thread sees that another one wants the lock, or the other one sees that this thread is inside.
        light();
        if self.wanted.load(Acquire) {
            self.inside.store(false, Release);
            return None;
        }
        Some(Held(&self.inside))
    }

    /// For any thread: enters once the owner is out. `None` if another thread is doing the same, or if the owner does
    /// not come out (it may have been stopped inside).
    pub(super) fn take(&self) -> Option<Held<'_>> {
        /// How often to look at the owner inside. It leaves after a few instructions unless it is not running.
        const LOOKS: u32 = 200;
        self.wanted.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let held = Held(&self.wanted);
        if !heavy() {
            return None;
        }
        for look in 0..LOOKS {
            if !self.inside.load(Acquire) {
                return Some(held);
            }
            if look < LOOKS / 2 { spin_loop() } else { yield_now() }
        }
        None
    }
}
