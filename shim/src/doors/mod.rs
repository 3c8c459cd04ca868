//! How calls of the program come in: the exported names, `dlsym`, and thunks. Nothing here knows what a call means.
//!
//! * [`dl`]: `dlsym` and `dlvsym`.
//! * [`driver`]: `cu*`, by export, by `dlsym` and by `cuGetProcAddress` ([`procaddr`]).
//! * [`runtime`]: `cuda*`, by export only. What a program looks up itself still ends at the driver.
//! * [`short`]: `cudaMalloc` and `cudaFree` that a block of the thread serves without the runtime.
//! * [`hip`]: `hip*`, by export and by `dlsym`.
//! * [`thunk`], [`spare`]: functions without a hook that may be given a handle of ours. Known functions have a thunk
//!   each; unknown ones get one of a fixed number of spare thunks.
//!
//! The real functions behind the doors are found by [`crate::vendor`].

pub mod dl;
pub mod driver;
pub mod hip;
mod procaddr;
pub mod runtime;
mod short;
pub mod spare;
pub mod thunk;
