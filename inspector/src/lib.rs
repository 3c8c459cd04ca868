//! The inspector: shows what a process holds on the GPU, from outside, whether it runs, hangs or
//! is dead.
//!
//! * [`source`]: which ledgers there are, whose they are, opening one safely.
//! * [`model`]: what a ledger means: groups, graphs, totals, differences. Knows no terminal.
//! * [`symbols`]: addresses to functions, files and lines, out of process.
//! * [`view`]: tables, units, colours, JSON. Knows no ledger.
//! * [`commands`]: one file per command: gathers a report, then prints it as text or JSON.
//! * [`compose`]: writes compact ledger files (dumps).
//!
//! All that it knows of the shim is the crate `gpumem-wire`.

pub mod args;
pub mod commands;
pub mod compose;
pub mod failure;
pub mod model;
pub mod source;
pub mod symbols;
pub mod view;
