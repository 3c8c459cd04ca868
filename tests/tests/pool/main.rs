//! The pool: what it serves, holds and gives back; limits, the guard, and what happens when memory runs out.

mod aside;
mod bench;
mod bounds;
mod differ;
mod faults;
mod group_limit;
mod guard;
mod hazards;
mod oom;
mod oom_report;
mod short;
mod stranded;
mod views;
mod waits;
