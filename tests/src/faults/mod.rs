//! A campaign of random faults. A program runs natively and preloaded under the same troubles. The preloaded run may
//! die, hang, answer wrongly or leave something behind only where the native run does so, too.
//!
//! * [`programs`]: the programs that are run.
//! * [`trouble`]: one thing that goes wrong, and how the campaign causes it.
//! * [`plan`]: a seed's program and troubles.
//! * `need`: how much of a limit a program needs natively.
//! * [`place`]: the directory of a run, and file systems of its own.
//! * [`run`]: one run of a plan, natively or preloaded.
//! * [`judge`]: compares the two runs.
//! * [`left`]: what a run left behind, as `gpumem` reads it.
//! * [`campaign`]: runs many seeds and counts the outcomes.

pub mod campaign;
pub mod judge;
pub mod left;
mod need;
pub mod place;
pub mod plan;
pub mod programs;
pub mod run;
mod settings;
pub mod trouble;
