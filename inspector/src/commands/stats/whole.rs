//! Everything that `stats` knows.

use super::{Report, devices};
use crate::model::Ledger;
use crate::model::growth::{COLUMNS, Growth};
use crate::model::taken::TakenBy;
use crate::model::totals::{Host, KindTotal};
use crate::report;
use crate::report::lines::{line, nonzero};
use crate::text::{clean, units};
use crate::view::table::{HEAD, Table, paint};
use gpumem_wire::counters;
use std::collections::BTreeMap;
use std::io::Write;

/// Prints the part below the head.
pub(super) fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger) -> std::io::Result<()> {
    print_kinds(out, &report.overview.kinds)?;
    devices::print(out, report)?;
    print_taken(out, &report.driver_took)?;
    report::shared::print_left(out, &report.left_by_graphs, ledger)?;
    report::shared::print(out, &report.sharing, true)?;
    print_host(out, &report.host)?;
    report::pool::print_part(out, &report.overview.pool)?;
    report::cache::print_part(out, &report.overview.cache)?;
    print_growth(out, report)?;
    print_counters(out, report)?;
    writeln!(out, "\n{}", paint(HEAD, "settings"))?;
    report.settings.iter().try_for_each(|setting| writeln!(out, "  {}", clean(setting)))
}

fn print_kinds(out: &mut dyn Write, kinds: &[KindTotal]) -> std::io::Result<()> {
    if kinds.is_empty() {
        return writeln!(out, "\nnothing was allocated");
    }
    writeln!(out)?;
    let table = Table::<KindTotal>::new()
        .left("kind", 0, |kind| kind.kind)
        .left("memory", 0, |kind| if kind.space == "none" { "-" } else { kind.space })
        .bytes("live", 0, |kind| kind.live_bytes)
        .number("count", 0, |kind| kind.live)
        .bytes("allocated", 0, |kind| kind.alloc_bytes)
        .number("times", 0, |kind| kind.allocs)
        .number("freed", 0, |kind| kind.frees)
        .right("failed", 0, |kind| if kind.failures > 0 { units::number(kind.failures) } else { String::new() });
    table.print(out, || kinds.iter())
}

/// Prints call sites whose calls made the driver take memory for itself.
fn print_taken(out: &mut dyn Write, rows: &[TakenBy]) -> std::io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint(HEAD, "what the driver took for itself: free memory fell by it around these calls"))?;
    let table = Table::<TakenBy>::new()
        .bytes("bytes", 0, |row| row.bytes)
        .number("times", 0, |row| row.times)
        .span("last", 0, |row| row.last_age_ns)
        .left("for", 0, |row| row.what)
        .text("site", 0, |row| &row.site);
    table.print(out, || rows.iter())
}

fn print_host(out: &mut dyn Write, host: &Host) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "host memory of this process"))?;
    let rss = host.rss_bytes.map_or("?".into(), units::bytes);
    let remark = match (host.rss_source, &host.resident) {
        ("now", Some(resident)) => format!(
            "{} anonymous, {} of files, {} shared",
            units::bytes(resident.anonymous),
            units::bytes(resident.file),
            units::bytes(resident.shared)
        ),
        (source, _) => source.replace('-', " "),
    };
    line(out, &rss, "resident", &remark)?;
    line(out, &units::bytes(host.pinned_bytes), "pinned memory from the driver", "")?;
    line(out, &units::bytes(host.registered_bytes), "the program's own memory, pinned", "")?;
    line(out, &units::bytes(host.graph_bytes), "graphs", "estimated")?;
    line(out, &units::bytes(host.exec_bytes), "graph execs", "estimated")?;
    let others =
        [(host.source_bytes, "sources of graph execs", ""), (host.own_bytes, "gpumem's own", "at the last sample")];
    nonzero(out, units::bytes, &others)?;
    if let (Some(unexplained), Some(rss)) = (host.unexplained_bytes, host.rss_bytes) {
        let remark = if host.explained_bytes > rss {
            "the estimates add up to more than is resident"
        } else {
            "the program's own memory, the driver's, caches"
        };
        line(out, &units::bytes(unexplained), "not explained", remark)?;
    }
    Ok(())
}

fn print_growth(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let Some(growth) = &report.growth else { return Ok(()) };
    let title = format!("growth over {} ({} samples)", units::span(growth.span_ns), growth.samples);
    writeln!(out, "\n{}", paint(HEAD, title))?;
    let rows = || growth.rows.iter().filter(|row| row.peak > 0);
    if rows().next().is_none() { Ok(()) } else { growth_table().print(out, rows) }
}

/// Returns the table of growth.
pub(in crate::commands) fn growth_table() -> Table<'static, Growth> {
    let bytes = |row: &Growth| row.what.ends_with("_bytes");
    let show = move |row: &Growth, n| if bytes(row) { units::bytes(n) } else { units::number(n) };
    let change = move |row: &Growth, n| if bytes(row) { units::signed_bytes(n) } else { units::signed(n) };
    Table::<Growth>::new()
        .left("", 0, |row| format!("  {}", row.what.trim_end_matches("_bytes").replace('_', " ")))
        .right("first", 1, move |row| show(row, row.first))
        .right("last", 0, move |row| show(row, row.last))
        .right("peak", 3, move |row| show(row, row.peak))
        .right("per minute", 0, move |row| change(row, row.per_minute.round() as i64))
        .right("last minute", 2, move |row| change(row, row.last_minute))
}

fn print_counters(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "counters"))?;
    for &(_, name, doc) in counters::ALL {
        let value = report.counters[name];
        let shown = match name {
            _ if name.ends_with("_ns") => units::span(value),
            _ if name.contains("_bytes") => units::bytes(value),
            _ => units::number(value),
        };
        let name = name.strip_suffix("_ns").map_or(name.to_owned(), |name| format!("{name} time")).replace('_', " ");
        line(out, &shown, &name, doc.trim())?;
    }
    line(out, &units::number(report.threads), "threads that made recorded calls", "")?;
    line(out, &units::number(report.streams), "live streams", "")?;
    nonzero(out, units::number, &[(report.captures_in_progress, "captures in progress", "")])?;
    line(out, &units::number(report.call_stacks), "different call stacks", "")
}

/// Prints every sample of growth.
pub(super) fn print_samples(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    type SampleRow = BTreeMap<&'static str, u64>;
    let mut table = Table::new().span("age", 0, |sample: &SampleRow| sample["age_ns"]);
    for &(name, title, _) in COLUMNS {
        let show = if name.ends_with("_bytes") { units::bytes } else { units::number };
        table = table.right(title, 0, move |sample| show(sample[name]));
    }
    writeln!(out)?;
    table.print(out, || report.samples.iter())
}
