//! What the shim knows of the process that it is in, and what it has of its own there.
//!
//! That is the threads, the clock, the loaded objects, memory for our own records, and what was so when the process
//! began. Nothing here knows of a GPU, and nothing here uses another room.

pub mod cancel;
pub mod clock;
pub mod descriptor;
pub mod elf;
pub mod errno;
pub mod fences;
pub mod heap;
pub mod load;
pub mod lock;
pub mod map;
pub mod memory;
pub mod own;
pub mod peek;
pub mod raised;
pub mod regs;
pub mod spawn;
pub mod stack;
pub mod stderr;
pub mod thread_end;
pub mod thread_stacks;
pub mod threads;
pub mod tls;
pub mod wiped;
