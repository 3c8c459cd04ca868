//! A simulated `libcudart.so.12`; the source is shared, in `../cudart`.

#[path = "../../cudart/mod.rs"]
mod cudart;

/// Answer of cudaRuntimeGetVersion.
pub(crate) const VERSION: i32 = 12090;
