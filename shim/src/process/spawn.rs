//! Threads of our own, beside the program's.

use super::own::OwnThread;
use super::{elf, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stacks are made of pages, of up to this many bytes.
const PAGE: usize = 64 << 10;

/// Starts a thread of ours, which nobody waits for, with this much stack. It blocks all signals: the program's must not
/// be delivered to it.
///
/// The thread is started by the C library's own function. The standard library's first looks up a symbol, and waits for
/// that while another thread opens a library.
pub(crate) fn spawn(stack: usize, f: impl FnOnce() + Send + 'static) -> bool {
    /// What the thread does, and the bytes of its stack.
    type Work = (Box<dyn FnOnce() + Send>, usize);
    extern "C" fn run(work: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: prctl reads a literal that ends in NUL. `work` is the box that `spawn` turned
        // into a pointer for this thread alone.
        let work = unsafe {
            libc::prctl(libc::PR_SET_NAME, c"gpumem".as_ptr());
            Box::from_raw(work.cast::<Work>())
        };
        threads::share_counts();
        let (work, stack) = *work;
        let _own = OwnThread::begin(&raw const stack as u64, stack as u64);
        // The program does not miss what the thread leaves undone.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            std::mem::forget(panic);
        }
        std::ptr::null_mut()
    }
    // Threads have their thread-local storage on their stacks, and a program's may be larger than any stack of ours.
    let stack = stack + elf::thread_storage();
    let work = Box::into_raw(Box::new((Box::new(f) as Box<dyn FnOnce() + Send>, stack)));
    // A new thread inherits the signal mask.
    // SAFETY: all structs are locals for which zeroes are valid, and the C library fills them in.
    // `run` has the type that is asked for. If no thread began, the box has no other owner.
    unsafe {
        let (mut all, mut before, mut how) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        let mut thread = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        libc::pthread_attr_init(&mut how);
        libc::pthread_attr_setstacksize(&mut how, stack.next_multiple_of(PAGE));
        libc::pthread_attr_setdetachstate(&mut how, libc::PTHREAD_CREATE_DETACHED);
        let started = libc::pthread_create(&mut thread, &how, run, work.cast()) == 0;
        libc::pthread_attr_destroy(&mut how);
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        if !started {
            drop(Box::from_raw(work));
        }
        started
    }
}
