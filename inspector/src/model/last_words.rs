//! Likely cause of a process's end: a request was refused for lack of memory, and the process ended soon after.

use super::Ledger;
use super::sites::Sites;
use crate::text::{shorten, units};
use gpumem_wire::kinds::EventKind;

/// A process that runs for longer after a refusal has recovered from it, ns.
const SOON_NS: u64 = 5_000_000_000;
/// The last sign of life of a killed process is up to a second before its end, ns.
const A_SECOND_NS: u64 = 1_000_000_000;

/// Describes the request that was refused shortly before the process ended. `None` if it runs, or ended for another
/// reason.
pub(super) fn out_of_memory(ledger: &Ledger) -> Option<String> {
    if !ledger.status.life.is_over() {
        return None;
    }
    let last = ledger.last_event(EventKind::OutOfMemory, |_| true)?;
    // Ages in a dead process's ledger count up to its end.
    let before_end = ledger.age(last.time_ns);
    if before_end > SOON_NS {
        return None;
    }
    let (bytes, live) = (units::bytes(last.a), units::bytes(last.b));
    let site = Sites::of_events(ledger).name(last.stack);
    let asked = if last.stack == 0 { String::new() } else { format!(", asked for by {}", shorten(&site, 200)) };
    let after = if before_end < A_SECOND_NS { "less than a second".to_owned() } else { units::span(before_end) };
    Some(format!("it ended {after} after it ran out of memory: {bytes}{asked}, with {live} live"))
}
