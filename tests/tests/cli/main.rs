//! Commands of `gpumem` on running processes of the simulated driver.

mod closed_pipe;
mod commands;
mod control;
mod demo;
mod leaks;
mod objects;
mod park;
mod parking;
mod plugins;
mod prometheus;
mod recording;
mod shares;
mod sharing;
mod sums;
mod suspects;
mod top;
mod transcripts;
mod turns;
mod verdicts;
