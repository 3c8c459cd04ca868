//! A GPU that is not there: the rules of the CUDA driver, without its ABI.
//!
//! The simulated driver and runtimes of `tests/sim` are thin layers over this.
//! The imitated behaviour was measured on an H200 (driver 580, CUDA 13.0): error
//! codes, capture rules, cudaFree's barrier, what graphs cost, what ExecUpdate
//! accepts. It is strict: work that touches freed memory, a disturbed capture
//! or a dead handle is recorded and reported, not forgiven.
//!
//! One lock guards the [`machine`]; work runs on one thread per stream and
//! takes it only to look memory up, so a call that waits never holds it.

pub mod abi;
pub mod arena;
pub mod array;
pub mod attrs;
pub mod capture;
pub mod card;
pub mod checkpoint;
pub mod config;
pub mod context;
pub mod copy;
pub mod errno;
pub mod error;
pub mod event;
pub mod exec;
pub mod fault;
pub mod graph;
pub mod green;
pub mod handle;
pub mod heap;
pub mod inside;
pub mod ipc;
pub mod kernels;
pub mod launch;
pub mod lifecycle;
pub mod machine;
pub mod memory;
pub mod module;
pub mod node;
pub mod note;
pub mod params;
pub mod place;
pub mod pool;
pub mod ptx;
pub mod queue;
pub mod report;
pub mod shared;
pub mod stream;
mod thread;
pub mod update;
pub mod user_object;
pub mod vmm;
pub mod work;

#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use machine::{Machine, lock};
