//! Suites that run against a CUDA driver, real or simulated.

#![deny(clippy::print_stdout)]

pub mod conformance;
pub mod damage;
pub mod differ;
pub mod faults;
pub mod group;
pub mod harness;
pub mod long_run;
pub mod patience;
pub mod pool;
pub mod poolbench;
pub mod proof;
pub mod python;
pub mod say;
pub mod skipped;
pub mod stage;
pub mod storm;
pub mod tester;
