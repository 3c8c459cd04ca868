//! Features that a build assumes of its processor, and those that a processor has.
//!
//! A build for an architecture runs on all its processors. `RUSTFLAGS=-Ctarget-cpu=native` and similar flags build for
//! some of them. On another processor, such a library ends the program by SIGILL, unless this is checked before.

/// Section of libgpumem.so with its build's assumptions: one word, little-endian, whose bit N means the Nth of
/// [`FEATURES`] of the library's architecture.
pub const SECTION: &str = ".gpumem.needs";

/// A feature that compilers can be told to use.
pub struct Feature {
    /// Its name in `-Ctarget-feature`.
    pub name: &'static str,
    /// The processor's report of the feature.
    told: Told,
}

macro_rules! features {
    ($($name:tt $told:expr;)*) => {
        /// Features beyond those of every processor of this architecture. A release only adds at the end: the places
        /// are those of the bits in [`SECTION`].
        pub static FEATURES: &[Feature] =
            &[$(Feature { name: $name, told: $told }),*];

        /// Features that this build assumes.
        pub const COMPILED_IN: u64 = {
            let (mut bits, mut at) = (0, 0);
            $(
                bits |= (cfg!(target_feature = $name) as u64) << at;
                at += 1;
            )*
            assert!(at <= u64::BITS);
            bits
        };
    };
}

/// Returns a feature that a build needs and that this processor lacks, or that the system does not let programs use.
///
/// Every processor of the architecture can execute this, however it was compiled. It has no shifts by a variable, no
/// combination of "and" with "not", and nothing wider than a word, since compilers have instructions of later
/// processors for these.
#[inline(never)]
pub fn lacking_here(needs: u64) -> Option<&'static str> {
    lacking(needs, |feature| feature.told.now())
}

/// Returns the first needed feature that a processor lacks. A feature unknown to this release counts as present.
fn lacking(needs: u64, has: impl Fn(&Feature) -> bool) -> Option<&'static str> {
    let mut bit = 1_u64;
    for feature in FEATURES {
        if needs & bit != 0 && !has(feature) {
            return Some(feature.name);
        }
        bit = bit.wrapping_add(bit);
    }
    None
}

#[cfg(target_arch = "x86_64")]
mod told {
    use std::arch::x86_64::{__cpuid_count, CpuidResult};

    #[derive(Clone, Copy)]
    pub(super) enum Register {
        Ebx,
        Ecx,
    }

    /// Vector registers that the system has to save for the feature to be usable.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Kept {
        Sse,
        Avx,
        Avx512,
    }

    pub(super) struct Told {
        leaf: u32,
        register: Register,
        mask: u32,
        kept: Kept,
    }

    pub(super) const fn told(leaf: u32, register: Register, bit: u32, kept: Kept) -> Told {
        Told { leaf, register, mask: 1 << bit, kept }
    }

    impl Told {
        pub(super) fn now(&self) -> bool {
            if cpuid(self.leaf & 0x8000_0000).eax < self.leaf {
                return false;
            }
            let said = cpuid(self.leaf);
            let word = match self.register {
                Register::Ebx => said.ebx,
                Register::Ecx => said.ecx,
            };
            word & self.mask != 0 && self.kept.now()
        }
    }

    impl Kept {
        fn now(self) -> bool {
            let parts: u64 = match self {
                Self::Sse => return true,
                Self::Avx => 0x6,
                Self::Avx512 => 0xe6,
            };
            // Without OSXSAVE this cannot be asked, and the system saves none of them.
            cpuid(1).ecx & 1 << 27 != 0 && extended() & parts == parts
        }
    }

    // Safe in newer releases of Rust.
    #[allow(unused_unsafe)]
    fn cpuid(leaf: u32) -> CpuidResult {
        // SAFETY: every x86-64 has the instruction, and it touches nothing but the registers of its answer.
        unsafe { __cpuid_count(leaf, 0) }
    }

    /// Reads XCR0: the registers that the system saves.
    fn extended() -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: the caller has seen OSXSAVE, with which there is this instruction. It reads a register into two
        // others, which are named here, and touches no memory and no flag.
        unsafe {
            std::arch::asm!(
                "xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
                options(nomem, nostack, preserves_flags)
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }
}

#[cfg(target_arch = "x86_64")]
use told::{
    Kept::{Avx, Avx512, Sse},
    Register::{Ebx, Ecx},
    Told, told,
};

#[cfg(target_arch = "x86_64")]
features! {
    "sse3" told(1, Ecx, 0, Sse);
    "pclmulqdq" told(1, Ecx, 1, Sse);
    "ssse3" told(1, Ecx, 9, Sse);
    "fma" told(1, Ecx, 12, Avx);
    "cmpxchg16b" told(1, Ecx, 13, Sse);
    "sse4.1" told(1, Ecx, 19, Sse);
    "sse4.2" told(1, Ecx, 20, Sse);
    "movbe" told(1, Ecx, 22, Sse);
    "popcnt" told(1, Ecx, 23, Sse);
    "aes" told(1, Ecx, 25, Sse);
    "xsave" told(1, Ecx, 26, Sse);
    "avx" told(1, Ecx, 28, Avx);
    "f16c" told(1, Ecx, 29, Avx);
    "rdrand" told(1, Ecx, 30, Sse);
    "bmi1" told(7, Ebx, 3, Sse);
    "avx2" told(7, Ebx, 5, Avx);
    "bmi2" told(7, Ebx, 8, Sse);
    "avx512f" told(7, Ebx, 16, Avx512);
    "avx512dq" told(7, Ebx, 17, Avx512);
    "rdseed" told(7, Ebx, 18, Sse);
    "adx" told(7, Ebx, 19, Sse);
    "avx512cd" told(7, Ebx, 28, Avx512);
    "sha" told(7, Ebx, 29, Sse);
    "avx512bw" told(7, Ebx, 30, Avx512);
    "avx512vl" told(7, Ebx, 31, Avx512);
    "avx512vbmi" told(7, Ecx, 1, Avx512);
    "avx512vbmi2" told(7, Ecx, 6, Avx512);
    "gfni" told(7, Ecx, 8, Sse);
    "vaes" told(7, Ecx, 9, Avx);
    "vpclmulqdq" told(7, Ecx, 10, Avx);
    "avx512vnni" told(7, Ecx, 11, Avx512);
    "avx512bitalg" told(7, Ecx, 12, Avx512);
    "avx512vpopcntdq" told(7, Ecx, 14, Avx512);
    "lzcnt" told(0x8000_0001, Ecx, 5, Sse);
    "sse4a" told(0x8000_0001, Ecx, 6, Sse);
}

/// A bit of the kernel's report on the processor.
#[cfg(target_arch = "aarch64")]
struct Told {
    word: libc::c_ulong,
    mask: libc::c_ulong,
}

#[cfg(target_arch = "aarch64")]
const fn told(word: libc::c_ulong, bit: u32) -> Told {
    Told { word, mask: 1 << bit }
}

#[cfg(target_arch = "aarch64")]
impl Told {
    fn now(&self) -> bool {
        // SAFETY: getauxval takes a number and follows no pointer.
        unsafe { libc::getauxval(self.word) & self.mask != 0 }
    }
}

// Numbers of the kernel's asm/hwcap.h.
#[cfg(target_arch = "aarch64")]
features! {
    "aes" told(libc::AT_HWCAP, 3);
    "sha2" told(libc::AT_HWCAP, 6);
    "crc" told(libc::AT_HWCAP, 7);
    "lse" told(libc::AT_HWCAP, 8);
    "fp16" told(libc::AT_HWCAP, 10);
    "rdm" told(libc::AT_HWCAP, 12);
    "jsconv" told(libc::AT_HWCAP, 13);
    "fcma" told(libc::AT_HWCAP, 14);
    "rcpc" told(libc::AT_HWCAP, 15);
    "dpb" told(libc::AT_HWCAP, 16);
    "sha3" told(libc::AT_HWCAP, 17);
    "dotprod" told(libc::AT_HWCAP, 20);
    "sve" told(libc::AT_HWCAP, 22);
    "fhm" told(libc::AT_HWCAP, 23);
    "lse2" told(libc::AT_HWCAP, 25);
    "rcpc2" told(libc::AT_HWCAP, 26);
    "flagm" told(libc::AT_HWCAP, 27);
    "sb" told(libc::AT_HWCAP, 29);
    "sve2" told(libc::AT_HWCAP2, 1);
    "i8mm" told(libc::AT_HWCAP2, 13);
    "bf16" told(libc::AT_HWCAP2, 14);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bit of a feature.
    fn bit(name: &str) -> u64 {
        1 << FEATURES.iter().position(|feature| feature.name == name).expect("a feature of the table")
    }

    #[test]
    fn what_is_missing_is_named() {
        let (one, other) = (FEATURES[3].name, FEATURES[5].name);
        let (none, all) = (|_: &Feature| false, |_: &Feature| true);
        assert_eq!(lacking(0, none), None);
        assert_eq!(lacking(bit(one), all), None);
        assert_eq!(lacking(bit(one) | bit(other), |feature| feature.name == one), Some(other));
        assert_eq!(lacking(bit(one) | bit(other), none), Some(one), "the first");
        // Of a later release, so nothing is known against it.
        assert_eq!(lacking(1 << 63, none), None);
    }

    #[test]
    fn each_feature_has_a_bit_of_its_own() {
        let all = FEATURES.iter().fold(0, |bits, feature| bits | bit(feature.name));
        assert_eq!(all.count_ones() as usize, FEATURES.len());
        assert_eq!(lacking_here(COMPILED_IN), None, "this test runs");
    }

    /// The kernel lists the processor's features under its own names.
    #[test]
    fn the_processor_has_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let listed = text.lines().find_map(|line| line.strip_prefix("flags").or(line.strip_prefix("Features")));
        let Some(listed) = listed else { return };
        let words: Vec<&str> = listed.split_ascii_whitespace().collect();
        let theirs = |name: &'static str| match name {
            "sse3" => "pni",
            "sse4.1" => "sse4_1",
            "sse4.2" => "sse4_2",
            "cmpxchg16b" => "cx16",
            "lzcnt" => "abm",
            "sha" => "sha_ni",
            "lse" => "atomics",
            "crc" => "crc32",
            "fp16" => "asimdhp",
            "rdm" => "asimdrdm",
            "dotprod" => "asimddp",
            other => other,
        };
        let known = ["pni", "ssse3", "sse4_1", "popcnt", "avx", "avx2", "fma", "bmi2", "avx512f", "sha_ni", "abm"];
        let known =
            [&known[..], &["aes", "sha2", "crc32", "atomics", "asimdhp", "asimdrdm", "asimddp", "sve"]].concat();
        for feature in FEATURES.iter().filter(|feature| known.contains(&theirs(feature.name))) {
            let (told, said) = (feature.told.now(), words.contains(&theirs(feature.name)));
            assert_eq!(told, said, "{}", feature.name);
        }
    }
}
