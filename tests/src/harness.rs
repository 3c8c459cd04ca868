//! Runs programs natively and under the preload on the simulated driver, and compares what the programs report of
//! themselves with what the ledger says of them.
//!
//! * [`artifacts`]: where the libraries and programs are; builds what is missing.
//! * [`run`]: one program, once, with a time limit and a directory of its own.
//! * [`scratch`]: a folder that is removed in the end.
//! * [`ledger`]: what the run left, read with `gpumem_wire` and with `gpumem --json`.
//! * [`terminal`]: a program on a terminal of its own: its screen, its keys.
//! * [`flat`]: the host memory of two processes side by side.
//! * [`hip`]: the simulated runtime of AMD, and the programs that are linked to it.

pub mod artifacts;
pub mod flat;
pub mod hip;
pub mod ledger;
pub mod run;
pub mod scratch;
pub mod terminal;

pub use artifacts::artifacts;
pub use ledger::Ledger;
pub use run::{Program, Ran, client, command, program};
