//! Our own threads, beside the program's.

use super::own::OwnThread;
use super::page::map;
use super::{elf, heap, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Upper bound on the bytes of a page, by which stacks are sized.
const PAGE: usize = 64 << 10;

/// Origin of the stack of our thread, and its bytes without the storage that the C library puts there.
#[derive(Clone, Copy)]
pub(crate) enum Stack {
    /// Mapped by the C library.
    Bytes(usize),
    /// Mapped like the stack of main, so that it does not count against `RLIMIT_DATA` (`is_data_mapping` in the
    /// kernel's mm/internal.h). The mapping stays until the process ends.
    Mapped(usize),
}

/// Makes a mapping for [`Stack::Mapped`].
fn mapped(bytes: usize) -> Option<*mut libc::c_void> {
    let at = map(bytes, libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_NORESERVE)?;
    // SAFETY: the advice is for this mapping alone: a huge page would take two MiB for the few frames of the thread.
    unsafe { heap::use_small_pages(at, bytes) };
    Some(at)
}

/// Starts a detached thread of ours with this stack. It blocks all signals: those of the program must not be delivered
/// to it.
///
/// The thread is started by the C library's own function. The standard library's function first looks up a symbol, and
/// that waits while another thread opens a library.
pub(crate) fn spawn(stack: Stack, f: impl FnOnce() + Send + 'static) -> bool {
    /// The thread's work, and the bytes of its stack.
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
        // The program does not miss the work that the thread leaves undone.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            std::mem::forget(panic);
        }
        std::ptr::null_mut()
    }
    // Threads have their thread-local storage on their stacks, and the program's storage may be larger than our stack.
    let (Stack::Bytes(bytes) | Stack::Mapped(bytes)) = stack;
    let bytes = (bytes + elf::thread_storage()).next_multiple_of(PAGE);
    let low = match stack {
        Stack::Bytes(_) => None,
        Stack::Mapped(_) => match mapped(bytes) {
            None => return false,
            low => low,
        },
    };
    let work = Box::into_raw(Box::new((Box::new(f) as Box<dyn FnOnce() + Send>, bytes)));
    // A new thread inherits the signal mask.
    // SAFETY: all structs are locals for which zeroes are valid, and the C library fills them in. `run` has the type
    // that is asked for. `low` is a mapping of `bytes` that no other code knows. If no thread began, the box and the
    // mapping have no other owner.
    unsafe {
        let (mut all, mut before, mut how) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        let mut thread = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        libc::pthread_attr_init(&mut how);
        match low {
            None => libc::pthread_attr_setstacksize(&mut how, bytes),
            Some(low) => libc::pthread_attr_setstack(&mut how, low, bytes),
        };
        libc::pthread_attr_setdetachstate(&mut how, libc::PTHREAD_CREATE_DETACHED);
        let started = libc::pthread_create(&mut thread, &how, run, work.cast()) == 0;
        libc::pthread_attr_destroy(&mut how);
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        if !started {
            drop(Box::from_raw(work));
            if let Some(low) = low {
                libc::munmap(low, bytes);
            }
        }
        started
    }
}
