//! AMD's runtime: on a simulated libamdhip64, and on the real one where it is installed.

mod graphs;
mod lookups;
mod pool;
mod programs;
mod real;
mod releases;
mod simulator;
