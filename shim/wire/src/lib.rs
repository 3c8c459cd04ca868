//! The formats that the shim writes and the inspector reads: one definition, no other code.
//!
//! * [`layout`]: the ledger file, byte for byte: header, table directory, slots.
//! * [`kinds`]: the numbers stored in slots, each with its name (allocation, graph node, event…).
//! * [`command`]: requests of the inspector to a running process.
//! * [`counters`]: one row per counter.
//! * [`group`]: the file of processes that share one limit.
//! * [`place`]: directories and names of ledgers.
//! * [`processor`]: features that a build assumes of its processor, and those that a processor has.
//! * [`read`]: bytes to an owned [`read::Snapshot`], without trusting a single one of them.
//! * [`references`]: a process's report of the words that refer to its allocations.
//! * [`settings`]: every variable, one row each, with its parser.
//! * [`share`]: what a process says to the service of `gpumem share`, and what that answers.
//! * [`tools`]: libraries that watch the GPU.
//! * [`trace`]: the file of an allocation trace.
//! * [`units`]: bytes for people.
//! * [`verdict`]: the selftest's findings on a driver and GPU.
//!
//! Nothing here touches the GPU, allocates on the writer's side, or knows how either side works. A change of layout
//! changes [`layout::VERSION`]; the inspector refuses versions it does not know.

pub mod command;
pub mod counters;
pub mod group;
pub mod growth;
pub mod kinds;
pub mod layout;
pub mod location;
pub mod place;
pub mod processor;
pub mod read;
pub mod references;
pub mod settings;
pub mod share;
pub mod tools;
pub mod trace;
pub mod units;
pub mod verdict;
