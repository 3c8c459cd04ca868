//! The recording functions, one file for each noun of the API. They are functions on the shim, and keep the registry's
//! maps and the ledger in step.
//!
//! A file uses those below it, from top to bottom:
//!
//! * `reported`: the program's own reports, by `gpumem.h`. [`vmm`]: virtual memory. [`shared`]: memory that processes
//!   share. [`handles`]: the graph cache.
//! * [`parking`]: device memory that another process moves to the host.
//! * [`code`] and [`events`]: records of allocations without memory of their own.
//! * [`allocations`], [`blocks`], [`graphs`] and [`execs`], [`streams`], [`pooled`], [`driver_memory`],
//!   [`driver_pools`]: one noun each.
//! * [`site_text`]: call sites in words. [`contexts`]: the context that memory belongs to. Everything belongs to a
//!   context.
//! * [`freed_in_graph`]: memory that is freed while a live graph refers to it.
//! * [`registry`]: everything live, as maps that find a record. The maps are passive: they know no shim, and only the
//!   files above change them.

pub(crate) mod allocations;
pub(crate) mod blocks;
pub(crate) mod code;
pub(crate) mod contexts;
pub(crate) mod driver_memory;
pub(crate) mod driver_pools;
pub(crate) mod events;
pub(crate) mod execs;
pub(crate) mod freed_in_graph;
pub(crate) mod graph_memory;
pub(crate) mod graphs;
pub(crate) mod grouped;
pub(crate) mod handles;
pub(crate) mod parking;
pub(crate) mod pooled;
pub(crate) mod registry;
mod reported;
pub(crate) mod shared;
pub(crate) mod site_text;
pub(crate) mod streams;
pub(crate) mod vmm;
