//! What the shim writes and the inspector reads: one definition, no other code.
//!
//! * [`layout`]: the ledger file, byte for byte: header, table directory, slots.
//! * [`kinds`]: the numbers stored in slots, each with its name (allocation, graph node, event…).
//! * [`command`]: what the inspector may ask of a running process.
//! * [`counters`]: one row per counter.
//! * [`group`]: the file of processes that share one limit.
//! * [`place`]: where ledgers lie and how they are named.
//! * [`processor`]: what a build assumes of its processor, and what a processor has.
//! * [`read`]: bytes to an owned [`read::Snapshot`], without trusting a single one of them.
//! * [`references`]: which words of a process refer to its allocations, as it says them.
//! * [`settings`]: every variable, one row each, with its parser.
//! * [`tools`]: which libraries watch the GPU.
//! * [`trace`]: the file of an allocation trace.
//! * [`units`]: bytes for people.
//! * [`verdict`]: what the selftest found of a driver and GPU.
//!
//! Nothing here touches the GPU, allocates on the writer's side, or knows how either side works.
//! A change of layout changes [`layout::VERSION`]; the inspector refuses versions it does not know.

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
pub mod tools;
pub mod trace;
pub mod units;
pub mod verdict;
