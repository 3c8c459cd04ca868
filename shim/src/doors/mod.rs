//! Ways by which calls of the program come in: the exported names, `dlsym`, and thunks. Nothing here knows what a call
//! means. Of the rooms below, doors use only the hooks, the gate, and the lookup of real functions.
//!
//! A file uses those below it, from top to bottom:
//!
//! * [`dl`]: `dlsym` and `dlvsym`.
//! * [`driver`]: `cu*`, by export, by `dlsym` and, with its part `procaddr`, by `cuGetProcAddress`. [`hip`]: `hip*`, in
//!   the same ways. [`runtime`]: `cuda*`, by export only. Functions that a program looks up itself still end at the
//!   driver.
//! * [`spare`]: thunks for unknown functions. Their number is fixed.
//! * [`rows`]: the driver's functions by name and version. [`thunk`]: leads a function without a hook, which may be
//!   given a handle of ours, to the real one.
//!
//! The real functions behind the doors are found by [`crate::backend`].

pub(crate) mod dl;
pub(crate) mod driver;
pub(crate) mod hip;
pub(crate) mod rows;
pub(crate) mod runtime;
pub(crate) mod spare;
pub(crate) mod thunk;
