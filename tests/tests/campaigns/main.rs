//! Short shares of campaigns with random programs, faults and damage, and the suites behind `make proof`.

mod conformance;
mod damage;
mod faults;
mod long_run;
mod proof;
mod storm;
