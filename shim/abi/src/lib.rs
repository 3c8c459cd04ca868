//! The tables: one row for each function that gpumem intercepts.
//!
//! A row names the exported symbol, when `cuGetProcAddress` gives it (base name, first version,
//! stream flavour), the function of cudarc's `sys` whose ABI it must have, the hook that handles
//! it, and its arguments. Everything else is made from the rows: the exported functions, the slots
//! for the real ones, the answers of `dlsym` and `cuGetProcAddress`, the ABI check, the tests. A row
//! whose hook does not exist, or takes other arguments, does not compile.
//!
//! * [`driver_functions!`]: `cu*`, where CUDA's meaning lives.
//! * [`graph_thunks!`]: driver functions without a hook that may be given a graph handle of ours, and so
//!   are passed on with the real one in its place; [`hip_graph_thunks!`]: HIP's.
//! * [`driver_calls!`]: driver functions that the shim itself calls; [`hip_calls!`]: HIP's.
//! * [`runtime_functions!`]: `cuda*`, which give the call site and carry no meaning of their own.
//! * [`hip_functions!`]: `hip*`, hooked themselves, since HIP has no lower boundary.
//!
//! Not in the tables, and so passed through untouched: everything else that is [`known`]. That includes allocation by
//! the functions from before CUDA 3.2 (`cuMemAlloc` without `_v2`), whose pointers have 32 bits; the shim
//! notices when a program asks for one of those. Functions that give the device work are there in all their
//! versions.
//!
//! [`known`] says what the headers of each release have: functions, node kinds, attributes, flags. `headers.py` makes
//! it. A newer driver may have more of them; what their names tell is said by [`may_submit`] and its like.

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

/// What headers and libraries of ROCm's releases say of the HIP runtime, a line each: made by `hip_headers.py`, whose
/// text says how to read it. Only tests do.
pub const KNOWN_HIP: &str = include_str!("known_hip.txt");

pub use names::{HIP_MAJORS, NEWEST, is_drivers, is_new_major, knows, knows_symbol, may_submit, only_asks};

#[cfg(test)]
mod check;
#[cfg(test)]
mod check_hip;
#[cfg(test)]
mod check_known;
