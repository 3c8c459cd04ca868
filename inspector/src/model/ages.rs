//! Live memory by its age.

use super::Ledger;
use serde::Serialize;

/// Age limits in minutes.
pub(crate) const AGES: [u64; 4] = [1, 5, 15, 60];
/// Nanoseconds in a minute.
const MINUTE_NS: u64 = 60_000_000_000;

/// Live memory younger than one limit and at least as old as the limit before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OfAge {
    /// Minutes; `None` for everything older than the last limit.
    pub under_minutes: Option<u64>,
    pub bytes: u64,
    pub live: u64,
}

/// Groups live memory by age.
pub(super) fn ages(ledger: &Ledger, born: &[(u64, u64)]) -> Vec<OfAge> {
    let mut ages: Vec<OfAge> =
        AGES.iter().map(|&minutes| OfAge { under_minutes: Some(minutes), ..OfAge::default() }).collect();
    ages.push(OfAge::default());
    for &(time_ns, bytes) in born {
        let age = ledger.age(time_ns) / MINUTE_NS;
        let place = AGES.iter().position(|&minutes| age < minutes).unwrap_or(AGES.len());
        ages[place].bytes = ages[place].bytes.saturating_add(bytes);
        ages[place].live += 1;
    }
    ages.retain(|of_age| of_age.live > 0);
    ages
}
