//! Tells reliably that a thread has ended.
//!
//! The kernel still finds a thread (`tgkill`) for a while after `pthread_join` has returned, or gives its number to
//! another thread. But before the joining thread continues, the kernel marks the robust mutexes that the ended thread
//! held (exit_mm_release in kernel/fork.c). So each thread holds one for its whole life, also while its destructors
//! run. Checking it needs no system call.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;

// pthread.h
const PTHREAD_MUTEX_ROBUST: libc::c_int = 1;

/// Held by a thread until it ends. It is not moved.
pub(crate) struct Life(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: pthread mutexes are made for use by many threads, and `Life` is made where it stays.
unsafe impl Send for Life {}
// SAFETY: all access goes through the pthread functions, which several threads may call at once.
unsafe impl Sync for Life {}

/// A `Life` with its own memory.
pub(crate) struct Lifetime(Box<MaybeUninit<Life>>);

impl Default for Lifetime {
    fn default() -> Self {
        let mut life = Box::new_uninit();
        // SAFETY: the box has room for it, and keeps it at one address.
        unsafe { Life::make_at(life.as_mut_ptr()) };
        Self(life)
    }
}

impl Deref for Lifetime {
    type Target = Life;

    #[inline]
    fn deref(&self) -> &Life {
        // SAFETY: `default`, the only way to a `Lifetime`, has made the `Life` that the box holds.
        unsafe { self.0.assume_init_ref() }
    }
}

/// Proof that the calling thread holds a `Life`.
pub(crate) struct LifetimeHold<'a>(&'a Life);

impl Life {
    /// Makes a `Life` that no thread holds.
    ///
    /// # Safety
    /// The place has room for it, no thread uses it yet, and what is made there is not moved.
    pub(crate) unsafe fn make_at(place: *mut Self) {
        let mut robust = MaybeUninit::uninit();
        // SAFETY: our caller vouches for the place, and a `Life` is a mutex. Each call gets attributes that the one
        // before has set up. None of these calls can fail with glibc (since 2.12), or asks for memory.
        unsafe {
            libc::pthread_mutexattr_init(robust.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(robust.as_mut_ptr(), PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(place.cast(), robust.as_ptr());
            libc::pthread_mutexattr_destroy(robust.as_mut_ptr());
        }
    }

    /// Takes it, unless a living thread has it. Apart from a thread's lifelong hold, it is held for a few instructions
    /// only.
    pub(crate) fn hold(&self) -> Option<LifetimeHold<'_>> {
        // SAFETY: `make_at` has initialised the mutex, and it stays at its address while `self` lives.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            0 => Some(LifetimeHold(self)),
            libc::EOWNERDEAD => {
                // SAFETY: pthread_mutex_trylock answered EOWNERDEAD, so this thread holds the mutex now, as the call
                // asks.
                unsafe { libc::pthread_mutex_consistent(self.0.get()) };
                Some(LifetimeHold(self))
            }
            _ => None,
        }
    }
}

impl LifetimeHold<'static> {
    /// Holds it until this thread has ended. The kernel keeps the mutex's address from now on; that memory is never
    /// freed.
    pub(crate) fn for_life(self) {
        std::mem::forget(self);
    }
}

impl Drop for LifetimeHold<'_> {
    fn drop(&mut self) {
        // SAFETY: a LifetimeHold exists only while the mutex is held. If another thread dropped it, the
        // mutex, being robust, would answer EPERM and stay held.
        unsafe { libc::pthread_mutex_unlock(self.0.0.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_for_as_long_as_its_thread_lives() {
        let life: &'static Lifetime = Box::leak(Box::default());
        for _ in 0..1000 {
            let held = std::thread::spawn(|| life.hold().map(LifetimeHold::for_life).is_some());
            assert!(held.join().unwrap());
            // The thread was joined, so no thread holds it.
            let held = life.hold().expect("its thread has ended");
            assert!(std::thread::spawn(|| life.hold().is_none()).join().unwrap());
            drop(held);
        }
    }
}
