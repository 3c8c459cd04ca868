//! The device code that tests and the demo run, and a checked launcher for it.
//!
//! [`PTX`] is the text of `gpumem.ptx`, built from `gpumem.cu` by `build-ptx.sh`; `check-ptx.sh` and a test below
//! compare one with the other. [`Kernels::load`] makes a module of it in the current context. Each launch function
//! makes all possible checks before it calls the driver: nothing here can write outside the [`Words`] that it is given,
//! and no spin is longer than [`MAX_SPIN`].

mod error;
mod launch;

pub use error::LaunchError;
pub use launch::{Kernels, MAX_SPIN, Stream, Words};

use std::ffi::CStr;

/// The PTX of all four kernels, in the form for `cuModuleLoadData`.
///
/// It targets `sm_75`, the oldest architecture that CUDA 13 still accepts.
pub const PTX: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("../gpumem.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("gpumem.ptx holds a zero byte"),
};

/// One kernel of [`PTX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `gpumem_fill(u32 *p, u64 n_words, u32 value)`
    Fill,
    /// `gpumem_verify(const u32 *p, u64 n_words, u32 value, u64 *mismatches)`
    Verify,
    /// `gpumem_scale(u32 *dst, const u32 *src, u64 n, u32 factor)`
    Scale,
    /// `gpumem_spin(u64 ns, u32 *done)`
    Spin,
}

impl Kernel {
    /// Every kernel, in the order of the source.
    pub const ALL: [Kernel; 4] = [Kernel::Fill, Kernel::Verify, Kernel::Scale, Kernel::Spin];

    /// Returns the name to look up in the module.
    pub const fn name(self) -> &'static CStr {
        match self {
            Kernel::Fill => c"gpumem_fill",
            Kernel::Verify => c"gpumem_verify",
            Kernel::Scale => c"gpumem_scale",
            Kernel::Spin => c"gpumem_spin",
        }
    }

    /// Returns the sizes of the parameters in bytes, in order; each is aligned to its size.
    pub const fn parameter_sizes(self) -> &'static [usize] {
        match self {
            Kernel::Fill => &[8, 8, 4],
            Kernel::Verify => &[8, 8, 4, 8],
            Kernel::Scale => &[8, 8, 8, 4],
            Kernel::Spin => &[8, 8],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Checks the recorded hash always, and the whole file if the clang that built it is installed.
    #[test]
    fn ptx_belongs_to_its_source() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/check-ptx.sh");
        let out = Command::new("sh").arg(script).output().expect("sh runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// `parameter_sizes` matches the PTX, kernel by kernel.
    #[test]
    fn parameters_match_the_ptx() {
        let text = PTX.to_str().expect("PTX is ASCII");
        for kernel in Kernel::ALL {
            let head = format!(".entry {}(", kernel.name().to_str().unwrap());
            let (_, rest) = text.split_once(&head).expect("entry is in the PTX");
            let (list, _) = rest.split_once(')').expect("parameter list ends");
            let sizes: Vec<usize> =
                list.split(".param").skip(1).map(|p| if p.contains(".u64") { 8 } else { 4 }).collect();
            assert_eq!(sizes, kernel.parameter_sizes(), "{kernel:?}");
        }
        assert_eq!(text.matches(".visible .entry").count(), Kernel::ALL.len());
    }
}
