//! Reasons why a launch did not happen.

use crate::MAX_SPIN;
use cudarc::driver::result::DriverError;
use std::{fmt, time::Duration};

/// Reason why nothing was launched.
#[derive(Debug)]
pub enum LaunchError {
    /// The address is null or not a multiple of the element's size.
    Address { address: u64, align: u64 },
    /// The range leaves the buffer, or wraps round the address space.
    Range { asked: u64, have: u64 },
    /// `scale` needs as many source words as destination words.
    Lengths { dst: u64, src: u64 },
    /// Source and destination share some words but not all of them.
    Overlap,
    /// Longer than [`MAX_SPIN`].
    SpinTooLong { asked: Duration },
    /// The driver refused.
    Driver(DriverError),
}

impl From<DriverError> for LaunchError {
    fn from(e: DriverError) -> Self {
        LaunchError::Driver(e)
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchError::Address { address, align } => {
                write!(f, "address {address:#x} is null or not a multiple of {align}")
            }
            LaunchError::Range { asked, have } => {
                write!(f, "{asked} words asked for, the buffer has {have}")
            }
            LaunchError::Lengths { dst, src } => {
                write!(f, "destination has {dst} words, source has {src}")
            }
            LaunchError::Overlap => write!(f, "source and destination overlap in part"),
            LaunchError::SpinTooLong { asked } => {
                write!(f, "spin of {asked:?} asked for, at most {MAX_SPIN:?} is allowed")
            }
            LaunchError::Driver(e) => write!(f, "driver: {:?}", e.0),
        }
    }
}

impl std::error::Error for LaunchError {}
