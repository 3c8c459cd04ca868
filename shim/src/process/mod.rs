//! What a process is to the shim: its threads, its clock, its loaded objects, its memory for our own books, and what
//! was so when it began. Nothing here knows of a GPU.

pub mod cancel;
pub mod clock;
pub mod descriptor;
pub mod elf;
pub mod heap;
pub mod load;
pub mod lock;
pub mod raised;
pub mod regs;
pub mod spawn;
pub mod stack;
pub mod threads;
pub mod tls;
