//! Registers from which a stack walk begins.

/// Starting point of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Regs {
    /// A return address.
    pub pc: u64,
    /// The stack pointer after that return.
    pub sp: u64,
    /// The frame pointer register after that return.
    pub fp: u64,
}

impl Regs {
    /// Returns the caller of the function that this is inlined into.
    ///
    /// That function must keep a frame pointer (build with `-C force-frame-pointers=yes`). If the register cannot be
    /// one, all are zero and the walk is empty.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub fn of_caller() -> Regs {
        let (fp, sp): (u64, u64);
        // SAFETY: the instructions read two registers and write only the two that are named.
        unsafe {
            std::arch::asm!("mov {}, rbp", "mov {}, rsp", out(reg) fp, out(reg) sp, options(nomem, nostack, preserves_flags))
        };
        // Our frames are small: no hook keeps more than 1 MiB on the stack.
        if fp.wrapping_sub(sp) > 1 << 20 || fp & 7 != 0 {
            return Regs::default();
        }
        // SAFETY: with frame pointers on, the saved frame pointer and the return address lie at
        // `fp`. The check above has refused what is not aligned, or not within 1 MiB above `sp`.
        unsafe { Regs { pc: *((fp + 8) as *const u64), sp: fp + 16, fp: *(fp as *const u64) } }
    }

    /// Returns the caller of the function that this is inlined into.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub fn of_caller() -> Regs {
        let fp: u64;
        // SAFETY: the instruction reads one register. The ABI keeps x29 at a frame record of two
        // words, the saved frame pointer and the return address.
        unsafe {
            std::arch::asm!("mov {}, x29", out(reg) fp, options(nomem, nostack, preserves_flags));
            Regs { pc: *((fp + 8) as *const u64), sp: fp + 16, fp: *(fp as *const u64) }
        }
    }
}
