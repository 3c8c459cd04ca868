//! The tables: one row for each function that gpumem intercepts.
//!
//! A row has the exported symbol, the terms on which `cuGetProcAddress` gives it (base name, first version, stream
//! flavour), the function of cudarc's `sys` whose ABI it must have, the hook that handles it, and its arguments.
//! Everything else is made from the rows: the exported functions, the slots for the real ones, the answers of `dlsym`
//! and `cuGetProcAddress`, the ABI check, the tests. A row whose hook does not exist, or takes other arguments, does
//! not compile.
//!
//! * [`driver_functions!`]: `cu*`, which carry the meaning of CUDA.
//! * [`graph_thunks!`]: driver functions without a hook that may be given a graph handle of ours, and so are passed on
//!   with the real one in its place; [`hip_graph_thunks!`]: HIP's.
//! * [`driver_calls!`]: driver functions that the shim itself calls; [`hip_calls!`]: HIP's.
//! * [`runtime_functions!`]: `cuda*`, which give the call site and have no meaning of their own.
//! * [`hip_functions!`]: `hip*`, hooked themselves, since HIP has no lower boundary.
//!
//! Every other [`known`] function is not in the tables and passed through untouched. That includes allocation by the
//! functions from before CUDA 3.2 (`cuMemAlloc` without `_v2`), whose pointers have 32 bits; the shim notices when a
//! program asks for one of those. Functions that give the device work are there in all their versions.
//!
//! [`known`] has the contents of each release's headers: functions, node kinds, attributes, flags. `headers.py` makes
//! it. A newer driver may have more of them; [`may_submit`] and similar functions judge them by their names.

#![allow(non_camel_case_types)]

#[macro_use]
mod driver;
#[macro_use]
mod hip;
#[macro_use]
mod runtime;
pub mod known;
mod names;
pub mod types;

/// Data of ROCm's headers and libraries on the HIP runtime, a line each. `hip_headers.py` makes it, and its text
/// explains the format. Only tests read it.
pub const KNOWN_HIP: &str = include_str!("known_hip.txt");

pub use names::{HIP_MAJORS, NEWEST, is_drivers, is_new_major, knows, knows_symbol, may_submit, only_asks};

#[cfg(test)]
mod check;
#[cfg(test)]
mod check_hip;
#[cfg(test)]
mod check_known;
