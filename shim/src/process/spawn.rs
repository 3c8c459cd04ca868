//! Threads of our own, beside the program's.

use super::own::OwnThread;
use super::{elf, threads};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stacks are made of pages, of up to this many bytes.
const PAGE: usize = 64 << 10;

/// How much stack a thread of ours has.
pub(crate) enum Stack {
    /// This many bytes, beside the storage that the C library puts on it.
    Bytes(usize),
    /// As much as a thread of the program's that asks for no size. Where memory is limited, the C library can give such a
    /// thread the stack that an ended thread of the program's left.
    Usual,
    /// This many bytes, storage included, that do not count against `RLIMIT_DATA`: mapped as the stack of main is
    /// (`is_data_mapping` in the kernel's mm/internal.h). The mapping stays until the process ends.
    Mapped(usize),
}

/// A mapping for [`Stack::Mapped`].
fn mapped(bytes: usize) -> Option<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_STACK | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that are free.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

/// Starts a thread of ours, which nobody waits for, with this stack. It blocks all signals: the program's must not
/// be delivered to it.
///
/// The thread is started by the C library's own function. The standard library's first looks up a symbol, and waits for
/// that while another thread opens a library.
pub(crate) fn spawn(stack: Stack, f: impl FnOnce() + Send + 'static) -> bool {
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
    // A new thread inherits the signal mask.
    // SAFETY: all structs are locals for which zeroes are valid, and the C library fills them in.
    // A mapped stack was made for this thread alone, and is never unmapped.
    // `run` has the type that is asked for. If no thread began, the box has no other owner.
    unsafe {
        let (mut all, mut before, mut how) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        let mut thread = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) == 0;
        libc::pthread_attr_init(&mut how);
        // Threads have their thread-local storage on their stacks, and a program's may be larger than any stack of ours.
        match stack {
            Stack::Bytes(bytes) => {
                libc::pthread_attr_setstacksize(&mut how, (bytes + elf::thread_storage()).next_multiple_of(PAGE));
            }
            Stack::Usual => {}
            Stack::Mapped(bytes) => {
                if let Some(low) = mapped(bytes) {
                    libc::pthread_attr_setstack(&mut how, low, bytes);
                }
            }
        }
        let mut bytes = 0;
        libc::pthread_attr_getstacksize(&how, &mut bytes);
        let work = Box::into_raw(Box::new((Box::new(f) as Box<dyn FnOnce() + Send>, bytes)));
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
