//! A pointer per thread to the shim's state of that thread, found by one load.
//!
//! A library that is loaded before the program takes its static storage from the space that all threads have. The C
//! library normally has room for any size then. It has not if something made it lay out threads earlier: with LD_AUDIT
//! set, as for a library that is opened later, all such libraries together have `glibc.rtld.optional_static_tls`, 512
//! bytes, and some more that is kept for other purposes (with glibc 2.36, libraries of up to 1,664 bytes were loaded).
//! So a thread's state lies in the shim's own memory, and static storage holds only pointers to it: 16 bytes, beside
//! about 100 of Rust's library.
//!
//! Asking the loader for a thread's storage would take dozens of instructions each time, and a hook asks about twenty
//! times. `-Z tls-model`, which would do for a `thread_local!` what the directives below do, is not stable.

/// Declares a pointer that every thread has, null at first, and `known` and `know`, which read and set the calling
/// thread's pointer. The symbol belongs to this pointer alone.
macro_rules! thread_pointer {
    ($symbol:literal, $to:ty) => {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        std::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ", \"awT\", %nobits"),
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", %tls_object"),
            concat!(".size ", $symbol, ", 8"),
            ".p2align 3",
            concat!($symbol, ":"),
            ".zero 8",
            ".popsection",
        );

        /// Returns the calling thread's pointer.
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        fn known() -> *const $to {
            let known: *const $to;
            // SAFETY: the symbol names eight bytes of every thread's static storage, which the directives above lay out
            // and zero. The instructions change only the register that is named.
            unsafe {
                std::arch::asm!(
                    concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "mov {at}, qword ptr fs:[{at}]",
                    at = out(reg) known,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
            known
        }

        /// Sets the calling thread's pointer.
        #[cfg(target_arch = "x86_64")]
        fn know(to: *const $to) {
            // SAFETY: the symbol names the eight bytes of this thread's storage that `known` reads. Only this thread
            // has them, and the other registers stay as they are.
            unsafe {
                std::arch::asm!(
                    concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "mov qword ptr fs:[{at}], {to}",
                    at = out(reg) _,
                    to = in(reg) to,
                    options(nostack, preserves_flags)
                );
            }
        }

        /// Returns the calling thread's pointer.
        #[cfg(target_arch = "aarch64")]
        #[inline(always)]
        fn known() -> *const $to {
            let known: *const $to;
            // SAFETY: the symbol names eight bytes of every thread's static storage, which the directives above lay out
            // and zero. The instructions change only the registers that are named.
            unsafe {
                std::arch::asm!(
                    concat!("adrp {at}, :gottprel:", $symbol),
                    concat!("ldr {at}, [{at}, :gottprel_lo12:", $symbol, "]"),
                    "mrs {thread}, tpidr_el0",
                    "ldr {at}, [{thread}, {at}]",
                    at = out(reg) known,
                    thread = out(reg) _,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
            known
        }

        /// Sets the calling thread's pointer.
        #[cfg(target_arch = "aarch64")]
        fn know(to: *const $to) {
            // SAFETY: the symbol names the eight bytes of this thread's storage that `known` reads. Only this thread
            // has them, and the other registers stay as they are.
            unsafe {
                std::arch::asm!(
                    concat!("adrp {at}, :gottprel:", $symbol),
                    concat!("ldr {at}, [{at}, :gottprel_lo12:", $symbol, "]"),
                    "mrs {thread}, tpidr_el0",
                    "str {to}, [{thread}, {at}]",
                    at = out(reg) _,
                    thread = out(reg) _,
                    to = in(reg) to,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}
pub(crate) use thread_pointer;
