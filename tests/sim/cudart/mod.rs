//! A simulated CUDA runtime, shared by the three versions of it.
//!
//! Like the real one it knows the driver only through `dlopen("libcuda.so.1")`
//! and cuGetProcAddress, so that an interposer sees what it would see on a real
//! system. Every function is a thin layer over [`driver`]; what differs between
//! 12 and 13 is in `v12.rs` and `v13.rs`; 11 is as 12, but for `v11.rs` in the
//! place of `since12.rs`, another way to look functions of the driver up, and a
//! cudaSetDevice that puts off what it does.

#[macro_use]
mod core;
mod copies;
mod devices;
mod driver;
#[path = "../engine/src/errno.rs"]
mod errno;
mod events;
mod exec;
mod graphs;
#[allow(dead_code)] // what the heap has taken is asked of the driver alone
#[path = "../engine/src/heap.rs"]
mod heap;
mod launches;
mod memory;
mod params;
mod pools;
#[cfg_attr(runtime11, path = "v11.rs")]
#[cfg_attr(not(runtime11), path = "since12.rs")]
mod signatures;
mod streams;
#[cfg_attr(runtime12, path = "v12.rs")]
#[cfg_attr(not(runtime12), path = "v13.rs")]
mod version;

/// Whoever finds no memory here is the simulator, and says so.
#[global_allocator]
static HEAP: heap::Heap = heap::Heap;
