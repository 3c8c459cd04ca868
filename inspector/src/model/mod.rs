//! Interprets a ledger. It knows no terminal and no JSON, and searches no files.
//!
//! * [`ledger`]: one snapshot with its symbols, its clock and its process.
//! * [`account`]: memory of a process on a device, in parts that add up to the driver's count.
//! * [`head`]: which process, and how it is recorded. [`last_words`]: likely cause of a process's end.
//! * [`allocs`]: live allocations in groups. [`key`]: the keys of groups.
//! * [`ages`]: live memory by age.
//! * [`parts`]: parts of allocations that the program itself reported.
//! * [`cache`]: the graph cache: its contents, its work, and whether its limits are too tight.
//! * [`events`]: events in words.
//! * [`execs`]: one exec or one graph: its state, its class, its bytes.
//! * [`graphs`]: graphs and execs in groups.
//! * [`rows`]: allocations, graphs and execs one by one, as in JSON.
//! * [`pool`]: the pool: idle memory, its work, memory placed elsewhere, stranded memory.
//! * [`sites`]: call sites, named so that they can be distinguished. [`names`]: their names, looked up by another thread.
//! * [`sums`]: bytes by any key.
//! * [`totals`]: sums, and the explained part of host memory. [`devices`]: the same for each device.
//! * [`measured`]: what the driver takes for itself on some cards. [`pages`]: what it takes beyond what was asked for.
//! * [`overview`]: all of these together, for every view.
//! * [`growth`]: samples over time.
//! * [`changes`]: two snapshots compared.
//! * [`marks`]: moments that a user can name. [`history`]: live memory over time.
//! * [`balance`]: graphs and execs that call sites made and destroyed.
//! * [`verdict`]: tells steady growth from other growth. [`judged`]: the verdict on one holder. [`suspects`]: likely
//!   leaks, most likely first, from the facts in [`live`]. [`references`]: allocations to which the process has few references.
//! * [`summary`]: the state at one moment, as plain data. [`course`]: live memory over time. [`chart`]: that as charts,
//!   [`cards`] for several processes. [`flame`]: memory by call stack.
//! * [`recording`]: live memory at each second, written to a file and read back.
//! * [`left`]: memory left behind by destroyed graphs.
//! * [`taken`]: memory that the driver took for itself. [`unmapped`]: physical memory without an address. [`shared`]:
//!   memory that processes share.
//! * [`variables`]: the variables in force, and their origin.

pub(crate) mod account;
pub(crate) mod ages;
pub(crate) mod allocs;
pub(crate) mod balance;
pub(crate) mod cache;
pub(crate) mod cards;
pub(crate) mod changes;
pub(crate) mod chart;
pub(crate) mod course;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod execs;
pub(crate) mod flame;
pub(crate) mod graphs;
pub(crate) mod growth;
mod head;
pub(crate) mod history;
mod judged;
pub(crate) mod key;
mod last_words;
pub(crate) mod ledger;
pub(crate) mod left;
mod live;
pub(crate) mod marks;
mod measured;
pub(crate) mod names;
pub(crate) mod overview;
mod pages;
pub(crate) mod parts;
pub(crate) mod pool;
pub(crate) mod recording;
pub(crate) mod references;
pub(crate) mod rows;
pub(crate) mod shared;
pub(crate) mod sites;
pub(crate) mod summary;
pub(crate) mod sums;
pub(crate) mod suspects;
pub(crate) mod taken;
pub(crate) mod totals;
pub(crate) mod unmapped;
pub(crate) mod variables;
pub(crate) mod verdict;

pub(crate) use head::Head;
pub(crate) use ledger::Ledger;

/// Advice about an event is given for this long after it, ns. If the event does not recur within it, the problem counts
/// as gone.
pub(crate) const RECENT_NS: u64 = 180_000_000_000;
