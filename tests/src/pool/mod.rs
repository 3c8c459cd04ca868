//! The tester of allocation: random programs that allocate, free and use memory in every way, each run
//! natively and under the preload, have to answer the same.
//!
//! * [`program`]: programs as data, one JSON object a line
//! * [`generate`]: makes them
//! * [`world`], [`memory`], [`work`], [`capture`]: runs one, leaving out what is not well defined
//! * [`driver`], [`stress`]: the driver and the runtime as the dynamic loader finds them; threads at once
//! * [`ledger`]: what the shim's own ledger says is live
//! * [`run`], [`hunt`]: operations on their threads; many programs, two processes each, what differs

mod capture;
mod driver;
pub mod generate;
pub mod hunt;
mod ledger;
mod memory;
pub mod program;
pub mod run;
mod stress;
mod work;
mod world;
