//! The inspector: shows what a process holds on the GPU, from outside, whether it runs, hangs or
//! is dead.
//!
//! Its layers, the top one first; each uses those below it alone (tests/tests/repository/layers.rs holds them to it):
//!
//! * [`cli`]: the command line, and which command it names.
//! * [`commands`]: one file per command: its arguments, its report, and how that is printed.
//! * [`context`]: what every command gets; [`args`]: arguments that several commands share.
//! * [`report`]: what several commands show in the same words. [`launch`]: starting programs under the shim.
//!   [`metrics`]: what collectors of metrics get. [`web`]: answers over HTTP, knows no ledger.
//! * [`model`]: what a ledger means: groups, graphs, totals, differences. Knows no terminal.
//!   [`view`]: tables, colours, JSON. Knows no ledger.
//! * [`symbols`]: addresses to functions, files and lines, out of process.
//! * [`source`]: which ledgers there are, whose they are, opening one safely.
//! * [`failure`]: how a command fails. [`compose`]: writes compact ledger files (dumps).
//! * [`text`]: words fit for a terminal, numbers with units.
//!
//! All that it knows of the shim is the crate `gpumem-wire`.

#![warn(unreachable_pub)]

mod args;
mod cli;
mod commands;
pub mod compose;
mod context;
mod failure;
mod launch;
mod metrics;
mod model;
mod report;
mod source;
mod symbols;
mod text;
mod view;
mod web;

pub use cli::{Args, answer, main};
pub use commands::doctor::check_list;
pub use commands::examples::EXAMPLES;
pub use failure::Code;
pub use metrics::table::{Kind, Metric, all as metrics};
