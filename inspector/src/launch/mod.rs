//! Starts programs under the shim.
//!
//! * [`library`]: finds the libgpumem.so to preload.
//! * [`elf`]: tells if a preload reaches a program at all.
//! * [`versions`]: tells if a program's C library is new enough for libgpumem.so.
//! * [`processor`]: tells if the processor has the features that libgpumem.so was built for.
//! * [`start`]: the environment of a command, and exec.

pub(crate) mod elf;
pub(crate) mod library;
pub(crate) mod processor;
pub(crate) mod start;
mod versions;
