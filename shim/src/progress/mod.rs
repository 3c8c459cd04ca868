//! Work that the device has done, and is doing.
//!
//! * [`activity`]: the submissions made, and those in progress.
//! * [`queries`]: the gate between captures and questions to the driver.
//! * [`device`]: tells if contexts and devices are idle. A context does not end while it is looked at.
//!
//! The records tell which contexts there are, and if anything captures. No block and no graph is known here.

pub mod activity;
pub(crate) mod device;
pub(crate) mod queries;
