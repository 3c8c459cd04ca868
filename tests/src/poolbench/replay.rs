//! Runs a plan and says what it took.

use super::driver::{Driver, Way};
use super::{Plan, Step};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The cost of one replay. Bytes are the device's. Times count the calls alone.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub mode: &'static str,
    pub steps: usize,
    pub allocations: usize,
    /// Allocations that failed.
    pub failed: u64,
    /// Rows of the trace that were left out.
    pub skipped: u64,
    pub seconds: f64,
    pub ns_per_step: f64,
    pub peak_requested_bytes: u64,
    /// The most bytes that the device had given, at the moments of measurement.
    pub peak_reserved_bytes: u64,
    pub reserved_over_requested: f64,
    /// The share of that peak that the program had not asked for at that moment.
    pub fragmentation: f64,
}

/// How often device memory is measured during a replay. The measurements do not count as time.
const LOOKS: usize = 500;

struct Books {
    requested: u64,
    peak_requested: u64,
    peak_reserved: u64,
    requested_then: u64,
}

impl Books {
    fn look(&mut self, driver: &Driver) -> Result<(), String> {
        let reserved = driver.reserved()?;
        if reserved > self.peak_reserved {
            (self.peak_reserved, self.requested_then) = (reserved, self.requested);
        }
        Ok(())
    }
}

/// Replays `plan`, then frees what is left of it.
///
/// # Errors
/// Says which call gave what. An allocation that fails is no error: it is counted.
pub fn replay(driver: &Driver, plan: &Plan) -> Result<Outcome, String> {
    let mut held: Vec<Option<(u64, u64)>> = vec![None; plan.slots as usize];
    let mut books = Books { requested: 0, peak_requested: 0, peak_reserved: 0, requested_then: 0 };
    let (mut failed, mut took) = (0, Duration::ZERO);
    let every = (plan.steps.len() / LOOKS).max(1);
    for part in plan.steps.chunks(every) {
        let start = Instant::now();
        for step in part {
            match *step {
                Step::Take { slot, bytes } => match driver.take(bytes) {
                    Ok(address) => {
                        held[slot as usize] = Some((address, bytes));
                        books.requested += bytes;
                        books.peak_requested = books.peak_requested.max(books.requested);
                    }
                    Err(_) => failed += 1,
                },
                Step::Give { slot } => {
                    if let Some((address, bytes)) = held[slot as usize].take() {
                        driver.give(address)?;
                        books.requested -= bytes;
                    }
                }
            }
        }
        took += start.elapsed();
        books.look(driver)?;
    }
    let start = Instant::now();
    driver.synchronize()?;
    took += start.elapsed();
    for (address, _) in held.into_iter().flatten() {
        driver.give(address)?;
    }
    let seconds = took.as_secs_f64();
    Ok(Outcome {
        mode: match (driver.way(), driver.hooked()) {
            (Way::Async, false) => "async",
            (Way::Async, true) => "async, preloaded",
            (Way::Plain, false) => "native",
            (Way::Plain, true) => "preloaded",
        },
        steps: plan.steps.len(),
        allocations: plan.takes(),
        failed,
        skipped: plan.skipped,
        seconds,
        ns_per_step: seconds * 1e9 / plan.steps.len().max(1) as f64,
        peak_requested_bytes: books.peak_requested,
        peak_reserved_bytes: books.peak_reserved,
        reserved_over_requested: books.peak_reserved as f64 / books.peak_requested.max(1) as f64,
        fragmentation: 1.0 - books.requested_then as f64 / books.peak_reserved.max(1) as f64,
    })
}
