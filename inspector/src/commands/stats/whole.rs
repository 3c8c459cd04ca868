//! All that `stats` knows.

use super::{Report, devices};
use crate::model::growth::COLUMNS;
use crate::model::taken::TakenBy;
use crate::model::totals::{Host, KindTotal};
use crate::report;
use crate::report::lines::line;
use crate::text::{clean, units};
use crate::view::table::{HEAD, Side, Table, paint};
use gpumem_wire::counters;
use std::io::Write;

/// Prints what stands below the head.
pub(super) fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    print_kinds(out, &report.overview.kinds)?;
    devices::print(out, report)?;
    print_taken(out, &report.driver_took)?;
    report::shared::print_left(out, &report.left_by_graphs)?;
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
    let right = Side::Right;
    let mut table = Table::new(&[
        ("kind", Side::Left),
        ("memory", Side::Left),
        ("live", right),
        ("count", right),
        ("allocated", right),
        ("times", right),
        ("freed", right),
        ("failed", right),
    ]);
    for kind in kinds {
        table.row([
            kind.kind.to_owned(),
            if kind.space == "none" { "-".to_owned() } else { kind.space.to_owned() },
            units::bytes(kind.live_bytes),
            units::number(kind.live),
            units::bytes(kind.alloc_bytes),
            units::number(kind.allocs),
            units::number(kind.frees),
            if kind.failures > 0 { units::number(kind.failures) } else { String::new() },
        ]);
    }
    if table.is_empty() {
        return writeln!(out, "\nnothing was allocated");
    }
    writeln!(out)?;
    table.print(out)
}

/// Call sites that had the driver take memory for itself.
fn print_taken(out: &mut dyn Write, rows: &[TakenBy]) -> std::io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", paint(HEAD, "what the driver took for itself: free memory fell by it around these calls"))?;
    let right = Side::Right;
    let mut table =
        Table::new(&[("bytes", right), ("times", right), ("last", right), ("for", Side::Left), ("site", Side::Left)]);
    for row in rows {
        table.row([
            units::bytes(row.bytes),
            units::number(row.times),
            units::span(row.last_age_ns),
            row.what.to_owned(),
            row.site.clone(),
        ]);
    }
    table.print(out)
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
    if host.source_bytes > 0 {
        line(out, &units::bytes(host.source_bytes), "sources of graph execs", "")?;
    }
    if host.own_bytes > 0 {
        line(out, &units::bytes(host.own_bytes), "gpumem's own", "at the last sample")?;
    }
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
    let mut table = Table::new(&[
        ("", Side::Left),
        ("first", Side::Right),
        ("last", Side::Right),
        ("peak", Side::Right),
        ("per minute", Side::Right),
        ("last minute", Side::Right),
    ]);
    for row in growth.rows.iter().filter(|row| row.peak > 0) {
        let bytes = row.what.ends_with("_bytes");
        let show = |n| if bytes { units::bytes(n) } else { units::number(n) };
        let change = row.per_minute.round() as i64;
        table.row([
            format!("  {}", row.what.trim_end_matches("_bytes").replace('_', " ")),
            show(row.first),
            show(row.last),
            show(row.peak),
            if bytes { units::signed_bytes(change) } else { units::signed(change) },
            if bytes { units::signed_bytes(row.last_minute) } else { units::signed(row.last_minute) },
        ]);
    }
    if table.is_empty() { Ok(()) } else { table.print(out) }
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
    if report.captures_in_progress > 0 {
        line(out, &units::number(report.captures_in_progress), "captures in progress", "")?;
    }
    line(out, &units::number(report.call_stacks), "different call stacks", "")
}

/// Headings for [`COLUMNS`], in their order.
const SAMPLE_HEADS: [&str; COLUMNS.len()] = [
    "device",
    "host",
    "managed",
    "unknown",
    "allocs",
    "graphs",
    "execs",
    "graph host~",
    "rss",
    "gpumem",
    "rest of rss",
    "device used",
    "idle",
];

/// Every sample of growth.
pub(super) fn print_samples(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let heads: Vec<_> =
        std::iter::once(("age", Side::Right)).chain(SAMPLE_HEADS.iter().map(|&name| (name, Side::Right))).collect();
    let mut table = Table::new(&heads);
    for sample in &report.samples {
        let age = units::span(sample["age_ns"]);
        let cells = COLUMNS.iter().map(|&(name, _)| {
            if name.ends_with("_bytes") { units::bytes(sample[name]) } else { units::number(sample[name]) }
        });
        table.row(std::iter::once(age).chain(cells));
    }
    writeln!(out)?;
    table.print(out)
}
