//! How calls come in, and how the real functions are found. Nothing here knows what a call means.
//!
//! * [`dl`]: `dlsym` and `dlvsym`.
//! * [`driver`]: `cu*`, by export, by `dlsym` and by `cuGetProcAddress` (see [`crate::hooks::procaddr`]).
//! * [`runtime`]: `cuda*`, by export only; what a program looks up itself still ends at the driver.
//! * [`hip`]: `hip*`, by export and by `dlsym`.
//! * [`thunk`], [`spare`]: functions without a hook that may be given a handle of ours; known ones by the
//!   first two doors and by theirs, unknown ones by a pool.

/// The name of a row as lookups want it.
macro_rules! c_name {
    ($name:ident) => {
        // SAFETY: the literal ends with its only NUL.
        unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
    };
}

pub mod dl;
pub mod driver;
pub mod hip;
pub mod providers;
pub mod runtime;
mod short;
pub mod spare;
pub mod thunk;
