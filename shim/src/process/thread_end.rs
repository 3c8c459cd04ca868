//! Whether a thread has ended, as others may rely on it.
//!
//! The kernel still finds a thread (`tgkill`) for a while after `pthread_join` has returned, or gives its number to
//! another. What it does before whoever joins the thread goes on is to mark the robust mutexes that the thread holds
//! (exit_mm_release in kernel/fork.c). So each thread holds one, for as long as it lives, also while its destructors
//! run; and whoever asks needs no system call.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

// pthread.h
const PTHREAD_MUTEX_ROBUST: libc::c_int = 1;

/// What a thread holds until it ends. The mutex stays where it is.
pub(crate) struct Lifetime(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: pthread mutexes are made for use by many threads, and the Box keeps the mutex at one
// address.
unsafe impl Send for Lifetime {}
// SAFETY: all access goes through the pthread functions, which several threads may call at once.
unsafe impl Sync for Lifetime {}

impl Default for Lifetime {
    fn default() -> Self {
        let life = Self(Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        let mut robust = MaybeUninit::uninit();
        // SAFETY: each call gets attributes that the one before has set up. No other thread knows
        // the mutex yet. None of these calls can fail with glibc (since 2.12).
        unsafe {
            libc::pthread_mutexattr_init(robust.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(robust.as_mut_ptr(), PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(life.0.get(), robust.as_ptr());
            libc::pthread_mutexattr_destroy(robust.as_mut_ptr());
        }
        life
    }
}

/// The calling thread holds it.
pub(crate) struct LifetimeHold<'a>(&'a Lifetime);

impl Lifetime {
    /// Takes hold of it, unless a thread has it that lives: it is held for a few instructions otherwise.
    pub(crate) fn hold(&self) -> Option<LifetimeHold<'_>> {
        // SAFETY: `default` has initialised the mutex, and it stays at its address while `self`
        // lives.
        match unsafe { libc::pthread_mutex_trylock(self.0.get()) } {
            0 => Some(LifetimeHold(self)),
            libc::EOWNERDEAD => {
                // SAFETY: pthread_mutex_trylock answered EOWNERDEAD, so this thread holds the mutex now, as the call asks.
                unsafe { libc::pthread_mutex_consistent(self.0.get()) };
                Some(LifetimeHold(self))
            }
            _ => None,
        }
    }
}

impl LifetimeHold<'static> {
    /// Until this thread has ended: the kernel has the mutex's address from now on, which is never freed.
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
            // Joined, so nobody's.
            let held = life.hold().expect("its thread has ended");
            assert!(std::thread::spawn(|| life.hold().is_none()).join().unwrap());
            drop(held);
        }
    }
}
