//! What the device has done, and what it is doing.
//!
//! * [`activity`]: which submissions there were, and whether one is under way.
//! * [`queries`]: questions to the driver that no capture may meet.
//! * [`device`]: whether contexts and devices are idle; contexts that are looked at do not end meanwhile.
//!
//! Which contexts there are, and whether anything captures, is asked of the records. No block and no graph is known
//! here.

pub mod activity;
pub(crate) mod device;
pub(crate) mod queries;
