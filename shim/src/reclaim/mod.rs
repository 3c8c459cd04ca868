//! The only place where pool and graphs meet: a request for memory that the pool's idle blocks do not serve, and all
//! that is tried before it runs out.
//!
//! * [`alloc`]: a request of the program's, by the pool.
//! * [`out_of_memory`]: what is tried, in which order; also for requests that are none of the pool's.

mod alloc;
mod out_of_memory;

pub use alloc::alloc;
pub use out_of_memory::{again, bounded, flush_here, has_limit, room_for};
