//! A simulated `libcudart.so.11.0`; the source is shared, in `../cudart`. What the runtime of 12 has and this one has not
//! is there all the same, and answers 801 where the driver's function is newer than 11.8.

#[path = "../../cudart/mod.rs"]
mod cudart;

/// What cudaRuntimeGetVersion answers.
pub(crate) const VERSION: i32 = 11080;
