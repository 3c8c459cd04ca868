//! A thread's state, which a hook finds by one load.

/// Declares the state that every thread has of a type, and `state()`, which finds the calling thread's. The value is
/// `const` and has no destructor: thread-local destructors of the program may still call in. The symbol is this state's
/// alone.
///
/// Where the state lies is kept in storage that every thread has from its start: one load, where asking the loader
/// takes dozens of instructions each time (a hook asks some twenty times). A preloaded library always has room there,
/// one that is opened later nearly always (glibc keeps some for it). `-Z tls-model`, which would say the same of the
/// whole state, is not stable.
macro_rules! thread_state {
    ($symbol:literal, $state:ty = $new:expr) => {
        thread_local! {
            static STATE: $state = const { $new };
        }

        #[cfg(target_arch = "x86_64")]
        mod place {
            use std::arch::{asm, global_asm};

            global_asm!(
                concat!(".pushsection .tbss.", $symbol, ", \"awT\", @nobits"),
                concat!(".globl ", $symbol),
                concat!(".hidden ", $symbol),
                concat!(".type ", $symbol, ", @tls_object"),
                concat!(".size ", $symbol, ", 8"),
                ".p2align 3",
                concat!($symbol, ":"),
                ".zero 8",
                ".popsection",
            );

            /// The state of the calling thread, for as long as it lives.
            #[inline(always)]
            pub(super) fn get() -> *const super::Of {
                let known: *const super::Of;
                // SAFETY: the symbol names eight bytes of every thread's static storage, which the
                // directives above lay out and zero. The instructions change only the register that
                // is named.
                unsafe {
                    asm!(
                        concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                        "mov {at}, qword ptr fs:[{at}]",
                        at = out(reg) known,
                        options(pure, readonly, nostack, preserves_flags)
                    );
                }
                if known.is_null() { first() } else { known }
            }

            #[cold]
            #[inline(never)]
            fn first() -> *const super::Of {
                let state = super::STATE.with(std::ptr::from_ref);
                // SAFETY: the symbol names the eight bytes of this thread's storage that `get`
                // reads. Only this thread has them, and the other registers stay as they are.
                unsafe {
                    asm!(
                        concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                        "mov qword ptr fs:[{at}], {state}",
                        at = out(reg) _,
                        state = in(reg) state,
                        options(nostack, preserves_flags)
                    );
                }
                state
            }
        }

        #[cfg(target_arch = "x86_64")]
        type Of = $state;

        /// The state of the calling thread.
        ///
        /// # Safety
        /// The reference is not kept beyond the call that the thread is in, nor given to another thread.
        #[inline(always)]
        pub(crate) unsafe fn state<'a>() -> &'a $state {
            #[cfg(target_arch = "x86_64")]
            let state = place::get();
            #[cfg(not(target_arch = "x86_64"))]
            let state = STATE.with(std::ptr::from_ref);
            // SAFETY: the state is a `const` thread-local without a destructor, so it is there
            // until its thread is gone. Our caller keeps the reference no longer than that.
            unsafe { &*state }
        }
    };
}
pub(crate) use thread_state;
