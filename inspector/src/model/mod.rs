//! What a ledger means. No terminal, no JSON, no file names to guess.
//!
//! * [`ledger`]: one snapshot with its symbols, its clock and its process.
//! * [`account`]: what a process takes of a device, in parts that add up to what the driver counts.
//! * [`last_words`]: why a process may have ended.
//! * [`allocs`]: live allocations in groups.
//! * [`ages`]: what is live by its age.
//! * [`parts`]: parts of allocations that the program itself reported.
//! * [`cache`]: the graph cache: what it holds, what it did, whether its bounds are too tight.
//! * [`execs`]: one exec or one graph: its state, its class, what it takes.
//! * [`graphs`]: graphs and execs in groups.
//! * [`rows`]: allocations, graphs and execs one by one, as JSON has them.
//! * [`pool`]: the pool: what it keeps, what it did, what it placed elsewhere, what is stranded.
//! * [`sites`]: call sites, named so that they can be told apart.
//! * [`totals`]: sums, and the host's memory explained. [`devices`]: each device's.
//! * [`overview`]: all of these together, for every view.
//! * [`growth`]: samples over time.
//! * [`changes`]: two snapshots compared.
//! * [`marks`]: moments that a user can name. [`history`]: what was live over time.
//! * [`balance`]: graphs and execs that call sites made and destroyed.
//! * [`verdict`]: whether it grows for ever. [`suspects`]: who may leak, most likely first, by what [`live`] has of each.
//!   [`references`]: what the process hardly refers to any more.
//! * [`summary`]: what is true at one moment, as plain data. [`course`]: what was live over time. [`chart`]: that
//!   as charts. [`flame`]: memory by call stack.
//! * [`recording`]: what was live at each second, written down and read again.
//! * [`left`]: memory that graphs left behind which are gone.
//! * [`taken`]: what the driver took for itself. [`unmapped`]: physical memory that has no address. [`shared`]: memory that
//!   processes share.
//! * [`variables`]: what is in force, and where that came from.

pub(crate) mod account;
pub(crate) mod ages;
pub(crate) mod allocs;
pub(crate) mod balance;
pub(crate) mod cache;
pub(crate) mod changes;
pub(crate) mod chart;
pub(crate) mod course;
pub(crate) mod devices;
pub(crate) mod execs;
pub(crate) mod flame;
pub(crate) mod graphs;
pub(crate) mod growth;
pub(crate) mod history;
mod last_words;
pub(crate) mod ledger;
pub(crate) mod left;
mod live;
pub(crate) mod marks;
pub(crate) mod overview;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod recording;
pub(crate) mod references;
pub(crate) mod rows;
pub(crate) mod shared;
pub(crate) mod sites;
pub(crate) mod summary;
pub(crate) mod suspects;
pub(crate) mod taken;
pub(crate) mod totals;
pub(crate) mod unmapped;
pub(crate) mod variables;
pub(crate) mod verdict;

pub(crate) use ledger::{Head, Ledger};

/// For so long after an event advice about it is given, ns. If it has not happened again by then, the problem counts as
/// gone.
pub(crate) const RECENT_NS: u64 = 180_000_000_000;
