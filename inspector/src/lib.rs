//! The inspector shows from outside what a process holds on the GPU, be it running, hung or dead.
//!
//! Its layers, the top one first. Each layer uses only those below it, which tests/tests/repository/layers.rs checks:
//!
//! * [`cli`]: the command line, and the choice of the command.
//! * [`commands`]: one file per command: its arguments, its report, and how that is printed.
//! * [`context`]: the context of every command; [`args`]: arguments that several commands share.
//! * [`report`]: texts that several commands share. [`launch`]: starts programs under the shim. [`metrics`]: metrics
//!   and profiles for collectors. [`web`]: answers over HTTP, knows no ledger.
//! * [`parking`]: moves the device memory of processes to host memory and back.
//! * [`model`]: interprets a ledger: groups, graphs, totals, differences. Knows no terminal. [`view`]: tables, colours,
//!   JSON. Knows no ledger.
//! * [`symbols`]: addresses to functions, files and lines, out of process.
//! * [`source`]: finds ledgers, tells whose they are, and opens one safely.
//! * [`failure`]: failures of commands. [`compose`]: writes compact ledger files (dumps).
//! * [`text`]: text fit for a terminal, numbers with units.
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
mod parking;
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
