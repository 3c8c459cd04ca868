//! Variables of other projects that turn their own allocators off: then each tensor is an allocation of the driver.

use std::ffi::OsStr;

/// A variable of another project that turns its allocator off.
#[derive(Clone, Copy, Debug)]
pub struct Uncached {
    pub name: &'static str,
    /// The value that `gpumem run --tensors` sets.
    pub value: &'static str,
    /// True if other values also turn the allocator off: its project checks only that the variable exists.
    pub any: bool,
    pub of: &'static str,
}

/// Sources: `c10::cuda::CUDACachingAllocator` (`forceUncachedAllocator`); "GPU memory allocation" in JAX's
/// documentation. CuPy has none: its pool is turned off by a call, `cupy.cuda.set_allocator(None)`.
pub const UNCACHED: &[Uncached] = &[
    Uncached { name: "PYTORCH_NO_CUDA_MEMORY_CACHING", value: "1", any: true, of: "PyTorch" },
    Uncached { name: "PYTORCH_NO_HIP_MEMORY_CACHING", value: "1", any: true, of: "PyTorch" },
    Uncached { name: "XLA_PYTHON_CLIENT_ALLOCATOR", value: "platform", any: false, of: "JAX" },
];

/// Returns the project whose allocator a variable with this value turns off.
pub fn uncached(name: &OsStr, value: &OsStr) -> Option<&'static str> {
    let row = UNCACHED.iter().find(|row| name == row.name)?;
    (row.any || value == row.value).then_some(row.of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_turns_an_allocator_off_is_told_from_what_does_not() {
        let off = |name: &str, value: &str| uncached(OsStr::new(name), OsStr::new(value));
        assert_eq!(off("PYTORCH_NO_CUDA_MEMORY_CACHING", "0"), Some("PyTorch"));
        assert_eq!(off("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"), Some("JAX"));
        assert_eq!(off("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc"), None);
        assert_eq!(off("PYTORCH_CUDA_ALLOC_CONF", "1"), None);
    }
}
