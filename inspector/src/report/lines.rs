//! Lines that many views share.

use crate::model::parts::Part;
use crate::model::{Head, Ledger};
use crate::source::liveness::Life;
use crate::symbols::Frame;
use crate::text::{clean, count, units};
use crate::view::table::{DIM, HEAD, WARN, paint};
use std::io::Write;

/// Prints the process, its state, and the warnings.
pub(crate) fn head(out: &mut dyn Write, head: &Head, ledger: &Ledger) -> std::io::Result<()> {
    let recorded = format!("recorded for {}", units::span(head.recorded_ns));
    let status = ledger.status.text();
    let life = match ledger.status.life {
        Life::Running | Life::Elsewhere => recorded,
        Life::Parked => format!("{status} with {} on the host, {recorded}", units::bytes(head.parked_bytes)),
        Life::Stopped | Life::BeingParked | Life::Exited | Life::Killed | Life::Replaced | Life::Dump => {
            format!("{status}, {recorded}")
        }
    };
    let mode = if head.mode == "record-only" { format!(", record-only: {}", head.mode_reason) } else { String::new() };
    let name = paint(HEAD, clean(&head.name));
    writeln!(out, "{name}  pid {}, {life}, interception {}{}", head.pid, head.interception, clean(&mode))?;
    for warning in head.warnings() {
        writeln!(out, "{} {}", paint(WARN, "warning:"), clean(&warning))?;
    }
    Ok(())
}

/// Prints a value, its name, and a remark.
pub(crate) fn line(out: &mut dyn Write, value: &str, name: &str, remark: &str) -> std::io::Result<()> {
    writeln!(
        out,
        "  {value:>10}  {name}{}",
        if remark.is_empty() { String::new() } else { paint(DIM, format!("  {remark}")) }
    )
}

/// Prints those values that are not 0, each with its name and a remark.
pub(crate) fn nonzero(
    out: &mut dyn Write,
    show: impl Fn(u64) -> String,
    values: &[(u64, &str, &str)],
) -> std::io::Result<()> {
    let mut values = values.iter().filter(|(value, ..)| *value > 0);
    values.try_for_each(|&(value, name, remark)| line(out, &show(value), name, remark))
}

/// Parts that are shown for one allocation or group.
const PARTS: usize = 3;

/// Returns the memory that the program's own allocators handed out: a line for each of the largest, and one for the
/// others.
pub(crate) fn parts(parts: &[Part]) -> Vec<String> {
    let part = |part: &Part| {
        let (bytes, live) = (units::bytes(part.bytes), count(part.live, "part"));
        let pool = if part.pool.is_empty() { "a pool without a name".into() } else { clean(&part.pool) };
        format!("{bytes} in {live} of {pool}, by {}", clean(&part.site))
    };
    let mut lines: Vec<String> = parts.iter().take(PARTS).map(part).collect();
    if let Some(rest) = parts.get(PARTS..).filter(|rest| !rest.is_empty()) {
        let bytes = rest.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
        let live = rest.iter().map(|part| part.live).sum();
        lines.push(format!(
            "{} in {} of {} more",
            units::bytes(bytes),
            count(live, "part"),
            count(rest.len() as u64, "call site")
        ));
    }
    lines
}

/// Returns a call stack, one frame a line.
pub(crate) fn stack(frames: &[Frame]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| format!("    {}{}", frame.text(), if frame.inlined { " (inlined)" } else { "" }))
        .collect()
}

/// Prints the line below a shortened table: the number of hidden rows.
pub(crate) fn more(out: &mut dyn Write, hidden: usize) -> std::io::Result<()> {
    match hidden {
        0 => Ok(()),
        n => writeln!(out, "{}", paint(DIM, format!("… {} more: -n 0 shows all", units::number(n as u64)))),
    }
}
