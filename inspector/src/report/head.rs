//! The lines above every view of one process.

use crate::model::{Head, Ledger};
use crate::source::liveness::Life;
use crate::text::{clean, units};
use crate::view::table::{HEAD, WARN, paint};
use std::io::Write;

/// Prints the process, its state, and the warnings.
pub(crate) fn print(out: &mut dyn Write, head: &Head, ledger: &Ledger) -> std::io::Result<()> {
    let recorded = format!("recorded for {}", units::span(head.recorded_ns));
    let status = ledger.status.text();
    let life = match ledger.status.life {
        Life::Running | Life::Elsewhere => recorded,
        Life::Parked => format!("{status} with {} on the host, {recorded}", units::bytes(head.parked_bytes)),
        Life::BeingParked | Life::Exited | Life::Killed | Life::Dump => format!("{status}, {recorded}"),
    };
    let mode = if head.mode == "record-only" { format!(", record-only: {}", head.mode_reason) } else { String::new() };
    let name = paint(HEAD, clean(&head.name));
    writeln!(out, "{name}  pid {}, {life}, interception {}{}", head.pid, head.interception, clean(&mode))?;
    for warning in head.warnings() {
        writeln!(out, "{} {}", paint(WARN, "warning:"), clean(&warning))?;
    }
    Ok(())
}
