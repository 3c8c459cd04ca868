//! Facts about the process that the shim is in, and what the shim owns there.
//!
//! It covers threads, the clock, loaded objects, memory for our own records, and facts from the start of the process.
//! This room knows nothing of a GPU and uses no other room.

pub(crate) mod aside;
pub(crate) mod cancel;
pub(crate) mod clock;
pub(crate) mod copies;
pub(crate) mod descriptor;
pub(crate) mod device_calls;
pub(crate) mod elf;
pub(crate) mod errno;
pub(crate) mod fences;
pub(crate) mod handle_range;
pub(crate) mod heap;
pub(crate) mod keys;
pub(crate) mod load;
pub(crate) mod lock;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod own;
pub(crate) mod page;
mod pagemap;
pub(crate) mod panics;
pub(crate) mod peek;
mod processor;
pub(crate) mod raised;
pub(crate) mod regs;
pub(crate) mod socket;
pub(crate) mod spawn;
pub(crate) mod stack;
pub(crate) mod stderr;
pub(crate) mod thread_end;
pub(crate) mod thread_stacks;
pub(crate) mod threads;
pub(crate) mod thunks;
pub(crate) mod tls;
pub(crate) mod wiped;
mod write;
