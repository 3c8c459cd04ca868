//! Locks that survive a panic and leave the program's errno alone.

use super::errno::KeepErrno;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks, also after a panic of a holder: every holder leaves consistent data. Preserves errno.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(held)) => held.into_inner(),
        Err(TryLockError::WouldBlock) => wait(mutex),
    }
}

/// Waits for the lock. The kernel's answer to a wait goes to errno (EAGAIN, EINTR), which is the program's, so errno is
/// restored.
#[cold]
fn wait<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let _errno = KeepErrno::new();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

    /// The wait ends early when a signal arrives, and also when the lock is released while the wait begins: errno is
    /// EINTR or EAGAIN then.
    #[test]
    fn a_wait_for_a_lock_leaves_errno_alone() {
        static CAME: AtomicUsize = AtomicUsize::new(0);
        /// # Safety
        /// It needs nothing of its caller, the C library.
        unsafe extern "C" fn came(_: libc::c_int) {
            CAME.fetch_add(1, SeqCst);
        }
        // SAFETY: zeroes are a valid sigaction: no flags, so calls are not begun anew. `came` has the type of a
        // handler, and nothing else in these tests uses SIGURG.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = came as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
        }
        let (mutex, waiter) = (Mutex::new(()), AtomicI32::new(0));
        std::thread::scope(|scope| {
            let held = lock(&mutex);
            let errno = scope.spawn(|| {
                // SAFETY: gettid takes nothing. The C library gives the address of this thread's errno.
                let errno = unsafe {
                    waiter.store(libc::gettid(), SeqCst);
                    libc::__errno_location()
                };
                // SAFETY: this thread's errno, as above.
                unsafe { *errno = 4711 };
                drop(lock(&mutex));
                // SAFETY: this thread's errno, as above.
                unsafe { *errno }
            });
            // Signals are sent until the wait has been disturbed several times, however late it begins.
            while CAME.load(SeqCst) < 20 {
                std::thread::sleep(std::time::Duration::from_millis(2));
                let waiter = waiter.load(SeqCst);
                if waiter != 0 {
                    // SAFETY: tgkill takes three numbers. The thread waits for what this one holds, so it lives.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), waiter, libc::SIGURG) };
                }
            }
            drop(held);
            assert_eq!(errno.join().unwrap(), 4711);
        });
    }
}
