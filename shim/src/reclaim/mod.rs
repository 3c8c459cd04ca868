//! The only place where pool and graphs meet: a request for memory that the pool's idle blocks do not serve, and all
//! that is tried before it runs out.
//!
//! * [`alloc`]: a request of the program's, by the pool.
//! * [`out_of_memory`]: what is tried, in which order, also for requests that the pool has nothing to do with.
//! * [`ran_out`]: nothing is left to try; who holds what is reported.
//! * [`freed_in_graph`]: frees of memory that a live graph refers to.

mod alloc;
mod freed_in_graph;
mod out_of_memory;
mod ran_out;

pub(crate) use alloc::alloc;
pub(crate) use freed_in_graph::{look_for_block_in_graphs, look_for_memory_in_graphs};
pub(crate) use out_of_memory::{again, bounded, flush_here, has_limit, room_for};
pub(crate) use ran_out::ran_out;
