//! Parks processes: the driver moves their device memory to host memory and back (`cuCheckpointProcess*`).
//!
//! From top to bottom:
//!
//! * [`share`]: one card for several programs: the service behind `gpumem share`.
//! * [`worker`]: a process of its own that makes the calls. It goes on if the asking process ends.
//! * [`progress`]: a line on the terminal that says how far it is.
//! * [`plan`]: which processes a park is about, and what each has on which card. [`obstacles`]: what keeps one from
//!   being parked. [`room`]: host memory for the copy, and room on the cards for the way back.
//! * [`registry`]: the processes that are parked, as files. A parked process is in no list of NVML's.
//! * [`files`]: small files beside the ledgers.
//! * [`sequence`]: the order of the driver's calls, and their undoing if one is refused.
//! * [`driver`]: the calls.

pub(crate) mod driver;
mod files;
pub(crate) mod obstacles;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod registry;
pub(crate) mod room;
pub(crate) mod sequence;
pub(crate) mod share;
pub(crate) mod worker;
