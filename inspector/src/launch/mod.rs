//! Starting programs under the shim.
//!
//! * [`library`]: which libgpumem.so is preloaded.
//! * [`elf`]: whether a preload reaches a program at all.
//! * [`versions`]: whether a program's C library has what the library needs.
//! * [`processor`]: whether the processor has what the library was built to use.
//! * [`start`]: the environment of a command, and becoming it.

pub(crate) mod elf;
pub(crate) mod library;
pub(crate) mod processor;
pub(crate) mod start;
mod versions;
