//! A simulated `libcudart.so.11.0`; the source is shared, in `../cudart`. It also has the functions that only the runtime of
//! 12 has. They answer 801 if the driver's function is newer than 11.8.

#[path = "../../cudart/mod.rs"]
mod cudart;

/// Answer of cudaRuntimeGetVersion.
pub(crate) const VERSION: i32 = 11080;
