//! What is recorded: for each noun of the API what happens to it, as functions on the shim. They keep the registry's
//! tables and the ledger in step.
//!
//! A file uses those below it, from top to bottom:
//!
//! * [`context_end`]: a context ends, with all that belongs to it. `reported`: what the program itself says, by
//!   `gpumem.h`. [`vmm`]: virtual memory. [`handles`]: what the graph cache does.
//! * [`allocations`], [`graphs`] and [`execs`], [`streams`], [`pooled`], [`taken`]: one noun each.
//! * [`places`]: call sites in words. [`contexts`]: whose memory it is. Everything belongs to a context.

pub(crate) mod allocations;
pub(crate) mod context_end;
pub(crate) mod contexts;
pub(crate) mod execs;
pub(crate) mod graphs;
pub(crate) mod grouped;
pub(crate) mod handles;
pub(crate) mod places;
pub(crate) mod pooled;
mod reported;
pub(crate) mod streams;
pub(crate) mod taken;
pub(crate) mod vmm;
