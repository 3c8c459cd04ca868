//! Answers to the process that parks this one.

use super::{idle, trim};
use crate::backend;
use crate::graphs;
use crate::pool;
use crate::process::own;
use crate::records::parking;
use crate::references;
use crate::shim::Shim;
use gpumem_wire::kinds::{Parking, Space, Vendor};
use gpumem_wire::location::Tally;
use std::time::{Duration, Instant};

/// Why a command that needs the driver is refused.
pub(super) const PARKED: &str = "this process is parked, or being parked: gpumem resume comes first";

/// Maximum time that threads of the shim may still be in the driver.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks. A thread that was started just before the first look is found by the second.
const SLEEP: Duration = Duration::from_millis(20);

/// Time for which the last word of the asking process is believed. It may have died, or another tool may have parked
/// this process; then the driver is asked.
const BELIEVED: Duration = Duration::from_secs(60);

/// The process that parks this one.
#[derive(Default)]
pub(super) struct Asker {
    /// Its last word, unless that was that the process has resumed.
    heard: Option<Instant>,
}

impl Asker {
    pub(super) fn park(&mut self, shim: &'static Shim) -> Result<String, String> {
        self.heard = Some(Instant::now());
        park(shim)
    }

    pub(super) fn parked(&mut self, shim: &Shim, bytes: u64) {
        self.heard = Some(Instant::now());
        graphs::watch_parking(true);
        parking::parked(shim, bytes);
    }

    pub(super) fn resumed(&mut self, shim: &Shim) {
        self.heard = None;
        parking::resumed(shim);
        graphs::watch_parking(false);
    }

    /// Asks the driver if the process is parked, once a second, before work that may call the driver: such a call of a
    /// parked process waits, and some end it (`cuStreamQuery` on an H200, driver 580). Does nothing while the asking
    /// process is believed, or if there is
    /// neither a pool nor a graph cache.
    pub(super) fn look(&self, shim: &Shim) {
        let is_quiet = parking::is_quiet();
        let is_believed = is_quiet && self.heard.is_some_and(|heard| heard.elapsed() < BELIEVED);
        if is_believed || !is_quiet && pool::all().next().is_none() && graphs::caches().next().is_none() {
            return;
        }
        let state = backend::of(Vendor::Cuda).parking();
        match state {
            Some(Parking::Parked) if !parking::is(Parking::Parked) => parking::parked(shim, device_bytes(shim)),
            Some(Parking::Quiet) if !is_quiet => parking::begin(shim),
            Some(Parking::Running) if is_quiet => parking::resumed(shim),
            // A driver that cannot tell has locked nothing.
            None if parking::is(Parking::Quiet) => parking::resumed(shim),
            _ => {}
        }
        graphs::watch_parking(parking::is_quiet());
    }
}

/// Returns the recorded device bytes, live and idle.
fn device_bytes(shim: &Shim) -> u64 {
    let made = |up, down| shim.ledger.counter(up).saturating_sub(shim.ledger.counter(down));
    let live: u64 = Tally::all_in(Space::Device).map(|row| made(row.alloc_bytes(), row.free_bytes())).sum();
    live.saturating_add(idle(shim))
}

/// Gives back what is kept, and makes the shim quiet. Returns a sentence for users once none of the shim's threads is
/// in the driver.
///
/// # Errors
/// Why the shim is not quiet.
fn park(shim: &'static Shim) -> Result<String, String> {
    if parking::is(Parking::Parked) {
        return Err("this process is parked already".into());
    }
    // The process may be locked if it was asked before.
    let asked_before = parking::is_quiet();
    let given = if asked_before { None } else { trim(shim, false).ok() };
    graphs::watch_parking(true);
    parking::begin(shim);
    let start = Instant::now();
    let mut looks_alone = 0;
    while looks_alone < 2 {
        if start.elapsed() > PATIENCE {
            parking::resumed(shim);
            graphs::watch_parking(false);
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
pub(super) fn may_call() -> Result<(), String> {
    if parking::is_quiet() { Err(PARKED.into()) } else { Ok(()) }
}
