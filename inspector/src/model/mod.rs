//! What a ledger means. No terminal, no JSON, no file names to guess.
//!
//! * [`ledger`]: one snapshot with its symbols, its clock and its process.
//! * [`allocs`]: live allocations in groups.
//! * [`cache`]: the graph cache: what it holds, what it did, whether its bounds are too tight.
//! * [`graphs`]: graphs and execs, in groups and one by one.
//! * [`pool`]: the pool: what it keeps, what it did, what it placed elsewhere, what is stranded.
//! * [`sites`]: call sites, named so that they can be told apart.
//! * [`totals`]: sums, the device's and the host's memory explained, growth.
//! * [`changes`]: two snapshots compared.

pub mod allocs;
pub mod cache;
pub mod changes;
pub mod graphs;
pub mod ledger;
pub mod pool;
pub mod sites;
pub mod totals;

pub use ledger::{Head, Ledger};
