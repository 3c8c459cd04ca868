//! One card for several programs: the service behind `gpumem share`.
//!
//! From top to bottom:
//!
//! * [`service`]: the members, their requests, and the worker that parks and resumes them.
//! * [`socket`]: takes the requests of members, and sends the answers.
//! * [`counts`]: what the service did, as a file for the metrics.
//! * [`turns`]: whose turn it is, a pure policy.

mod counts;
pub(crate) mod service;
mod socket;
pub(crate) mod turns;

pub(crate) use counts::all as counts;
