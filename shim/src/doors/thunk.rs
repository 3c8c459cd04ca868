//! Functions that take a graph handle and have no hook: on the way to the real function, handles of ours become the
//! real ones ([`crate::graphs::swap`]).
//!
//! A thunk knows only its function's name and number of arguments. It passes the six arguments in integer registers to
//! Rust code, puts them back, and jumps. The real function sees the caller's return address, the stack and all other
//! registers unchanged. Arguments beyond the sixth stay on the stack; no function has a handle there.
//!
//! The upper halves of vector registers wider than 128 bits are not kept: no function of these APIs has an argument
//! there.

use crate::gate;
use crate::hooks::unknown;
use crate::process::thunks::Words;
use gpumem_abi::types::{SYMBOL_NOT_FOUND, Status};

/// Answers for a thunk without a real function.
extern "C" fn absent() -> Status {
    SYMBOL_NOT_FOUND
}

/// Returns the address to jump to with the unchanged arguments.
#[inline]
pub(crate) fn straight(real: usize) -> usize {
    if real == 0 { absent as *const () as usize } else { real }
}

/// Replaces handles of ours among the first `args` words by the real ones; returns the address to jump to. A register
/// beyond the function's arguments may hold an earlier handle, which must not count as used.
#[inline]
pub(crate) fn pass(real: usize, words: &mut Words, args: usize) -> usize {
    if real == 0 || gate::disabled() {
        return straight(real);
    }
    let mut seen = [0; 6];
    let args = args.min(seen.len());
    seen[..args].copy_from_slice(&words[..args]);
    unknown::give_real_handles(&mut seen);
    words[..args].copy_from_slice(&seen[..args]);
    real
}

/// True if a function of this name may take a graph handle and so needs a thunk.
pub(crate) fn is_graph_function(name: &[u8]) -> bool {
    let begins = |start: &str| name.starts_with(start.as_bytes());
    (begins("cuGraph") && !begins("cuGraphics"))
        || (begins("hipGraph") && !begins("hipGraphics"))
        || begins("hipDrvGraph")
}

/// Defines the exported thunk of one function: it loads its number and jumps to the code that all thunks of its table
/// share.
macro_rules! thunk {
    ($name:ident, $index:expr, $through:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                $crate::process::thunks::instructions!("{index}"),
                ".cfi_endproc",
                index = const $index,
                through = sym $through,
            )
        }
    };
}

/// Defines the exported thunks of one table, in a module `export_thunk`, and `ARGS`: the number of each function's
/// arguments.
macro_rules! thunks {
    ($through:ident; $($name:ident ($($arg:ident),*);)*) => {
        static ARGS: [usize; Thunk::Count as usize] = [$([$(stringify!($arg)),*].len(),)*];

        mod export_thunk {
            use super::{Thunk, $through};
            $(super::thunk::thunk!($name, Thunk::$name as usize, $through);)*
        }
    };
}

pub(super) use {thunk, thunks};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::thunks::through;
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

    /// A stand-in for a handle of ours, and for the real one.
    const OURS: usize = 0x5eed_0000_0000;
    const REAL: usize = 0x7eed_0000_0000;
    const INDEX: usize = 41;

    static TARGET: AtomicUsize = AtomicUsize::new(0);
    static CALLER: AtomicUsize = AtomicUsize::new(0);
    static WALKED: AtomicBool = AtomicBool::new(false);
    static THROWS: AtomicBool = AtomicBool::new(false);

    #[repr(align(16))]
    struct Aligned([u8; 32]);

    /// Overwrites all registers that a Rust function may overwrite, and swaps the handle.
    ///
    /// # Safety
    /// Called by the thunk of this test, with the words that it keeps.
    unsafe extern "C" fn enter(index: usize, words: &mut Words, caller: usize) -> usize {
        let local = Aligned([7; 32]);
        assert_eq!(black_box(&local).0.as_ptr() as usize % 16, 0, "the stack is aligned");
        // SAFETY: the instructions only write registers that a call may change, and all of these
        // are named.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "pcmpeqd xmm0, xmm0", "pcmpeqd xmm1, xmm1", "pcmpeqd xmm2, xmm2", "pcmpeqd xmm3, xmm3",
                "pcmpeqd xmm4, xmm4", "pcmpeqd xmm5, xmm5", "pcmpeqd xmm6, xmm6", "pcmpeqd xmm7, xmm7",
                "mov edi, 1", "mov esi, 1", "mov edx, 1", "mov ecx, 1", "mov r8d, 1", "mov r9d, 1", "mov r10d, 1",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("rdi") _, out("rsi") _, out("rdx") _, out("rcx") _, out("r8") _, out("r9") _, out("r10") _,
            );
        }
        assert_eq!(index, INDEX);
        CALLER.store(caller, Relaxed);
        backtrace::trace(|frame| {
            WALKED.fetch_or(is_in_call(frame.ip() as usize), Relaxed);
            true
        });
        for word in words.iter_mut().filter(|word| **word == OURS) {
            *word = REAL;
        }
        TARGET.load(Relaxed)
    }

    through!(through, enter);
    thunk!(gpumem_test_thunk, INDEX, through);

    type Wide = unsafe extern "C-unwind" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
        f64,
    ) -> u128;

    fn wide() -> Wide {
        // SAFETY: the thunk jumps to `target` with all arguments in their places, so it has the
        // prototype of `target`.
        unsafe { std::mem::transmute::<unsafe extern "C-unwind" fn(), Wide>(gpumem_test_thunk) }
    }

    /// # Safety
    /// It takes any values.
    #[allow(clippy::many_single_char_names)]
    unsafe extern "C-unwind" fn target(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        g: usize,
        h: usize,
        i: f64,
        j: f64,
        k: f64,
        l: f64,
        m: f64,
        n: f64,
        o: f64,
        p: f64,
        q: f64,
    ) -> u128 {
        assert_eq!([a, b, c, d, e, f], [1, REAL, 3, 4, REAL, 6]);
        assert_eq!([g, h], [OURS, 8], "what is on the stack stays as it is");
        assert_eq!([i, j, k, l, m, n, o, p, q], [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]);
        if THROWS.load(Relaxed) {
            std::panic::resume_unwind(Box::new("thrown"));
        }
        (11 << 64) | 12
    }

    #[inline(never)]
    fn call() -> u128 {
        // SAFETY: the targets of this test take any values and follow no pointer.
        unsafe { wide()(1, OURS, 3, 4, OURS, 6, OURS, 8, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5) }
    }

    fn is_in_call(address: usize) -> bool {
        let start = call as *const () as usize;
        (start..start + 1024).contains(&address)
    }

    /// One test for all of it, because the tests would share the target.
    #[test]
    #[cfg_attr(target_arch = "aarch64", ignore = "eight integer arguments are in registers there")]
    fn all_arguments_arrive_and_handles_are_swapped() {
        TARGET.store(target as *const () as usize, Relaxed);
        assert_eq!(call(), (11 << 64) | 12);
        assert!(is_in_call(CALLER.load(Relaxed)), "the return address is the caller's");
        assert!(WALKED.load(Relaxed), "a stack can be walked through a thunk");
        // An exception of the real function passes through: no frame of the thunk is left.
        THROWS.store(true, Relaxed);
        let thrown = std::panic::catch_unwind(call).expect_err("it throws");
        assert_eq!(thrown.downcast_ref(), Some(&"thrown"));
    }

    #[test]
    fn registers_beyond_the_arguments_do_not_count() {
        assert_eq!(pass(0, &mut [1; 6], 6), absent as *const () as usize);
        let mut words = [1, 2, 3, 4, 5, 6];
        assert_eq!(pass(0x1000, &mut words, 9), 0x1000);
        assert_eq!(words, [1, 2, 3, 4, 5, 6]);
        assert_eq!(absent(), SYMBOL_NOT_FOUND);
    }

    #[test]
    fn names_of_graph_functions() {
        for name in ["cuGraphLaunch", "cuGraphFutureThing_v7", "hipGraphUpload", "hipDrvGraphAddMemcpyNode"] {
            assert!(is_graph_function(name.as_bytes()), "{name}");
        }
        for name in ["cuGraphicsMapResources", "cudaGraphLaunch", "hipGraphicsMapResources", "cuLaunchKernel", "cu"] {
            assert!(!is_graph_function(name.as_bytes()), "{name}");
        }
    }
}
