//! A campaign of random faults: a program runs natively and preloaded under the same troubles, and the preloaded
//! run may not die, hang, answer or leave what the native one would not.
//!
//! * [`programs`]: what is run.
//! * [`trouble`]: one thing that goes wrong, and how it is brought about.
//! * [`plan`]: a seed's program and troubles.
//! * `need`: how much of a limit a program needs natively.
//! * [`run`]: a plan, once, natively or preloaded.
//! * [`judge`]: the two runs held against each other.
//! * [`left`]: what a run left behind, read by `gpumem`.
//! * [`campaign`]: many seeds, and what came of them.

pub mod campaign;
pub mod judge;
pub mod left;
mod need;
pub mod plan;
pub mod programs;
pub mod run;
mod settings;
pub mod trouble;
