//! Answers to the process that parks this one.

use super::trim;
use crate::process::own;
use crate::records::parking;
use crate::references;
use crate::shim::Shim;
use gpumem_wire::kinds::Parking;
use std::time::{Duration, Instant};

/// Why a command that needs the driver is refused.
pub(super) const PARKED: &str = "this process is parked, or being parked: gpumem resume comes first";

/// Maximum time that threads of the shim may still be in the driver.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks. A thread that was started just before the first look is found by the second.
const SLEEP: Duration = Duration::from_millis(20);

/// Gives back what is kept, and makes the shim quiet. Returns a sentence for users once none of the shim's threads is
/// in the driver.
///
/// # Errors
/// Why the shim is not quiet.
pub(super) fn park(shim: &'static Shim) -> Result<String, String> {
    if parking::is(shim, Parking::Parked) {
        return Err("this process is parked already".into());
    }
    // The process may be locked if it was asked before.
    let asked_before = parking::is_quiet(shim);
    let given = if asked_before { None } else { trim(shim, false).ok() };
    parking::begin(shim);
    let start = Instant::now();
    let mut looks_alone = 0;
    while looks_alone < 2 {
        if start.elapsed() > PATIENCE {
            parking::resumed(shim);
            return Err(format!("a thread of gpumem is still in the driver after {} s", PATIENCE.as_secs()));
        }
        if references::is_going_on() {
            references::end();
        }
        std::thread::sleep(SLEEP);
        looks_alone = if own::threads() <= 1 { looks_alone + 1 } else { 0 };
    }
    Ok(given.unwrap_or_else(|| "nothing was kept".into()))
}

/// # Errors
/// [`PARKED`], while the shim must make no driver call.
pub(super) fn may_call(shim: &Shim) -> Result<(), String> {
    if parking::is_quiet(shim) { Err(PARKED.into()) } else { Ok(()) }
}
