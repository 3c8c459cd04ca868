//! How calls come in, and how the real functions are found. Nothing here knows what a call means.
//!
//! * [`dl`]: `dlsym` and `dlvsym`.
//! * [`driver`]: `cu*`, by export, by `dlsym` and by `cuGetProcAddress` (see [`crate::hooks::procaddr`]).
//! * [`runtime`]: `cuda*`, by export only; what a program looks up itself still ends at the driver.
//! * [`hip`]: `hip*`, by export and by `dlsym`.
//! * [`elf`]: loaded objects and their symbols, without `dlsym`.

pub mod dl;
pub mod driver;
pub mod elf;
pub mod hip;
pub mod providers;
pub mod runtime;
