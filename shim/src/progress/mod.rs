//! What the device has done, and what it is doing.
//!
//! * [`activity`]: which submissions there were, and whether one is being made.
//! * [`queries`]: the gate between captures and questions to the driver.
//! * [`device`]: whether contexts and devices are idle. A context does not end while it is looked at.
//!
//! Which contexts there are, and whether anything captures, is asked of the records. No block and no graph is known
//! here.

pub mod activity;
pub(crate) mod device;
pub(crate) mod queries;
