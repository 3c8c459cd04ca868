//! How calls come in, and how the real functions are found. Nothing here knows what a call means.
//!
//! * [`dl`]: `dlsym` and `dlvsym`.
//! * [`driver`]: `cu*`, by export, by `dlsym` and by `cuGetProcAddress` (see [`crate::hooks::procaddr`]).
//! * [`runtime`]: `cuda*`, by export only; what a program looks up itself still ends at the driver.
//! * [`hip`]: `hip*`, by export and by `dlsym`.
//! * [`thunk`], [`spare`]: functions without a hook that may be given a handle of ours; known ones by the
//!   first two doors and by theirs, unknown ones by a pool.

pub mod dl;
pub mod driver;
pub mod hip;
pub mod runtime;
mod short;
pub mod spare;
pub mod thunk;
