//! A storm: a program that verifies all of its data runs while terminals change every variable that can be changed, turn
//! gpumem off and on, give memory back, have the guard look, and search for references. Whatever they send, the program
//! does what it does natively.
//!
//! * [`plan`]: what a seed decides. [`terminal`]: one that sends commands. [`run`]: one run, and what was wrong with it.
//! * [`campaign`]: many seeds.

pub mod campaign;
pub mod plan;
pub mod run;
mod terminal;
