//! Starts programs under the shim.
//!
//! * [`library`]: finds the libgpumem.so to preload.
//! * [`elf`]: tells if a preload reaches a program at all.
//! * [`needs`]: tells if a program's C library and the processor are new enough for libgpumem.so.
//! * [`start`]: the environment of a command, and exec.

pub(crate) mod elf;
pub(crate) mod library;
pub(crate) mod needs;
pub(crate) mod start;
