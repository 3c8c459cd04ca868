//! A stack of our own, for work that needs more stack than a program's thread may have left: 70 KiB, while threads of
//! 16 KiB exist.
//!
//! The work stays on the thread that asked. If another thread did it, the asking thread would wait for it, and it could
//! wait for the asking thread: inside a library's constructor, which holds the loader's lock that a new thread needs.

use super::errno::KeepErrno;
use super::own;
use super::page::map;
use std::arch::asm;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes of the stack (making a graph cache takes 260 KiB in a debug build); below it lie guard pages. Untouched pages
/// take no memory.
const BYTES: usize = 1 << 20;
const GUARD: usize = 64 << 10;

/// Signals that an instruction of the thread itself raises. They cannot be deferred.
const AT_ONCE: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Runs `f` on a new stack. If there is no memory for one, `f` does not run and the result is `None`, because the room
/// left on the current stack is unknown. `f` does not unwind. Signals are deferred meanwhile: a handler of the program
/// may look where its stack is, or leave by `siglongjmp`.
pub(crate) fn with_room<F: FnOnce() -> R, R>(f: F) -> Option<R> {
    let stack = Stack::new()?;
    let _waiting = Waiting::new();
    let mut work = Work { f: Some(f), result: None };
    // SAFETY: `top` is the aligned end of a new mapping that this thread alone uses. `run` does not
    // unwind: a panic in an `extern "C"` function aborts. `work` is a local that outlives the call.
    unsafe { call_on(stack.top(), run::<F, R>, (&raw mut work).cast()) };
    match work.result {
        Some(result) => Some(result),
        // `run` ends with a result, or not at all.
        None => std::process::abort(),
    }
}

struct Work<F, R> {
    f: Option<F>,
    result: Option<R>,
}

extern "C" fn run<F: FnOnce() -> R, R>(work: *mut c_void) {
    // SAFETY: `with_room` passes its own Work of this type, and waits until this returns.
    let work = unsafe { &mut *work.cast::<Work<F, R>>() };
    work.result = work.f.take().map(|f| f());
}

/// Calls `run(data)` with the stack pointer at `top`.
///
/// # Safety
/// `top` is the aligned end of an unused stack that is large enough for `run`, which does not unwind.
#[inline(never)]
unsafe fn call_on(top: usize, run: extern "C" fn(*mut c_void), data: *mut c_void) {
    // The old stack pointer stays in a register that calls preserve. A stack walk continues through the frame pointer.
    // SAFETY: our caller vouches for the stack at `top`. Every register that a call may change is
    // named, and the old stack pointer comes back from a preserved one.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run,
            in("rdi") data,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    // SAFETY: our caller vouches for the stack at `top`. Every register that a call may change is
    // named, and the old stack pointer comes back from a preserved one.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {run}",
            "mov sp, x20",
            top = in(reg) top,
            run = in(reg) run,
            in("x0") data,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

/// Memory for a stack.
struct Stack(*mut c_void);

impl Stack {
    fn new() -> Option<Self> {
        let _errno = KeepErrno::new();
        let at = map(GUARD + BYTES, libc::MAP_STACK)?;
        // SAFETY: the guard that is made untouchable is the beginning of this mapping.
        unsafe { libc::mprotect(at, GUARD, libc::PROT_NONE) };
        own::add(at.cast(), GUARD + BYTES);
        Some(Self(at))
    }

    fn top(&self) -> usize {
        self.0 as usize + GUARD + BYTES
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let _errno = KeepErrno::new();
        own::remove(self.0.cast(), GUARD + BYTES);
        // SAFETY: `new` made this mapping with this length. `with_room` drops it after the call on
        // it has returned.
        unsafe { libc::munmap(self.0, GUARD + BYTES) };
    }
}

/// Defers signals that can be deferred while it lives.
struct Waiting(Option<libc::sigset_t>);

impl Waiting {
    fn new() -> Self {
        // SAFETY: both sets are locals for which zeroes are valid, and the C library fills them in.
        // The mask is this thread's alone.
        unsafe {
            let (mut wait, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut wait);
            for signal in AT_ONCE {
                libc::sigdelset(&mut wait, signal);
            }
            Self((libc::pthread_sigmask(libc::SIG_BLOCK, &wait, &mut before) == 0).then_some(before))
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: `before` is the mask that `new` found on this thread. The third argument may
            // be null.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_little_stack_has_room() {
        let small = || {
            with_room(|| {
                let mut room = [0_u8; 200 << 10];
                std::hint::black_box(&mut room).iter().map(|&byte| u64::from(byte)).sum::<u64>()
            })
        };
        let thread = std::thread::Builder::new().stack_size(32 << 10).spawn(small).expect("a thread");
        assert_eq!(thread.join().expect("it lives"), Some(0));
    }

    #[test]
    fn a_panic_is_caught_where_it_happens_and_a_stack_can_be_walked() {
        let mut walked = 0;
        let caught = with_room(|| {
            backtrace::trace(|_| {
                walked += 1;
                true
            });
            std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(7))).is_err()
        });
        assert!(caught == Some(true) && walked > 3, "{walked} frames");
    }
}
