//! Thunks: a fixed number of small functions, each of which is given a function to lead to while the process runs.
//!
//! All thunks of a pool share one piece of code, which gets the number of the thunk. [`through`] makes such code for
//! callees that take six words and may change them; all registers with arguments are kept.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The arguments that a thunk shows, in order.
pub(crate) type Words = [usize; 6];

/// Bytes from the start of one thunk to the start of the next.
pub(crate) const STRIDE: usize = 16;

/// Returns the slot of this function, or the first free slot, which belongs to the function from then on.
pub(crate) fn claim(slots: &[AtomicUsize], real: usize) -> Option<usize> {
    slots.iter().position(|slot| match slot.compare_exchange(0, real, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(other) => other == real,
    })
}

/// The instructions of a thunk, which load its number and jump to `{through}`. `counted`: the thunks of a [`pool`] count
/// themselves.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    (counted) => {
        $crate::process::thunks::instructions!("offset .Lgpumem_thunk")
    };
    ($number:literal) => {
        concat!("endbr64\n", "mov r11d, ", $number, "\n", "jmp {through}")
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! instructions {
    (counted) => {
        $crate::process::thunks::instructions!("#.Lgpumem_thunk")
    };
    ($number:literal) => {
        concat!("hint #34\n", "mov w9, ", $number, "\n", "b {through}")
    };
}

/// Defines `$count` thunks, which load their numbers and jump to `$through`, and `$at`: the address of the thunk of a
/// number.
macro_rules! pool {
    ($at:ident, $count:expr, $through:path) => {
        /// Returns the address of a thunk.
        fn $at(index: usize) -> usize {
            const STRIDE: usize = $crate::process::thunks::STRIDE;

            /// # Safety
            /// It is data, and never called: its thunks are entered by their addresses.
            #[unsafe(naked)]
            unsafe extern "C" fn pool() {
                std::arch::naked_asm!(
                    ".cfi_startproc",
                    ".balign {stride}",
                    ".set .Lgpumem_thunk, 0",
                    ".rept {count}",
                    $crate::process::thunks::instructions!(counted),
                    ".balign {stride}",
                    ".set .Lgpumem_thunk, .Lgpumem_thunk + 1",
                    ".endr",
                    ".cfi_endproc",
                    stride = const STRIDE,
                    count = const $count,
                    through = sym $through,
                )
            }

            // The function's symbol may lie before the first thunk, whose start is aligned.
            (pool as *const () as usize).next_multiple_of(STRIDE) + index * STRIDE
        }
    };
}

/// Defines the code that all thunks of one table share: it keeps the arguments, asks `$enter(index, words, return
/// address)` for the target, and jumps.
macro_rules! through {
    ($name:ident, $enter:path) => {
        // r11 holds the thunk's number. The push aligns the stack to 16 bytes; 48 bytes of words and 128 of vector
        // arguments keep it so.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "sub rsp, 176",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "mov edi, r11d",
                "mov rsi, rsp",
                "mov rdx, [rbp + 8]",
                "call {enter}",
                "mov r11, rax",
                "movaps xmm0, [rsp + 48]",
                "movaps xmm1, [rsp + 64]",
                "movaps xmm2, [rsp + 80]",
                "movaps xmm3, [rsp + 96]",
                "movaps xmm4, [rsp + 112]",
                "movaps xmm5, [rsp + 128]",
                "movaps xmm6, [rsp + 144]",
                "movaps xmm7, [rsp + 160]",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "leave",
                ".cfi_def_cfa rsp, 8",
                ".cfi_restore rbp",
                "jmp r11",
                ".cfi_endproc",
                enter = sym $enter,
            )
        }

        // w9 holds the thunk's number, x30 the return address. Words are x0 to x5; x6, x7 and x8 (the address of a
        // result) follow them, then 128 bytes of vector arguments.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-224]!",
                ".cfi_def_cfa_offset 224",
                ".cfi_offset x29, -224",
                ".cfi_offset x30, -216",
                "mov x29, sp",
                ".cfi_def_cfa_register x29",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "mov w0, w9",
                "add x1, sp, #16",
                "mov x2, x30",
                "bl {enter}",
                "mov x16, x0",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp x29, x30, [sp], #224",
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
                enter = sym $enter,
            )
        }
    };
}

pub(crate) use {instructions, pool, through};

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 300;

    /// # Safety
    /// Called by a thunk of this test, with the words that it keeps.
    unsafe extern "C" fn enter(_: usize, _: &mut Words, _: usize) -> usize {
        0
    }

    through!(through, enter);
    pool!(at, COUNT, through);

    #[test]
    fn a_slot_is_for_one_function_and_for_good() {
        let slots = [const { AtomicUsize::new(0) }; 3];
        assert_eq!([7, 8, 7, 9, 8, 9].map(|real| claim(&slots, real)), [0, 1, 0, 2, 1, 2].map(Some));
        assert_eq!([10, 9].map(|real| claim(&slots, real)), [None, Some(2)]);
    }

    #[test]
    fn each_thunk_of_the_pool_passes_its_number() {
        for index in 0..COUNT {
            // SAFETY: `index` is below COUNT, so a whole thunk of STRIDE bytes of the pool's code
            // lies there.
            let code = unsafe { *(at(index) as *const [u8; STRIDE]) };
            #[cfg(target_arch = "x86_64")]
            assert_eq!(code[4..10], [&[0x41, 0xbb][..], &(index as u32).to_le_bytes()].concat(), "mov r11d, {index}");
            #[cfg(target_arch = "aarch64")]
            assert_eq!(code[4..8], (0x5280_0009 | (index as u32) << 5).to_le_bytes(), "mov w9, {index}");
        }
    }
}
