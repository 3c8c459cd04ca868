//! Allocations for people: a table of groups, or a list of single allocations.

use super::{Args, GroupRow, Report, Row};
use crate::model::Ledger;
use crate::model::allocs::By;
use crate::model::parts::Part;
use crate::report::{head, lines};
use crate::symbols::Frame;
use crate::text::{self, units};
use crate::view::table::{Line, Side, Table};
use std::io::Write;

pub(super) fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    let process = &report.process_live;
    let part = |bytes, what| if bytes > 0 { format!(", {} {what}", units::bytes(bytes)) } else { String::new() };
    writeln!(
        out,
        "{} live: {} device{}{}{}",
        text::count(process.count, "allocation"),
        units::bytes(process.device),
        part(process.managed, "managed"),
        part(process.host, "host"),
        part(process.unknown, "in unknown places"),
    )?;
    if report.rows.is_empty() {
        return match process.count {
            0 => writeln!(out, "nothing is live; --freed shows the sites of what was freed"),
            _ => writeln!(out, "none of them matches the filters"),
        };
    }
    writeln!(out)?;
    if args.all {
        print_allocs(out, report, args)?;
    } else {
        print_groups(out, report, args)?;
    }
    lines::more(out, report.rows_total - report.rows.len())
}

/// The lines below a row.
fn below(parts: &[Part], stack: &[Frame]) -> Vec<String> {
    let parts = lines::parts(parts).into_iter().map(|part| format!("    inside: {part}"));
    parts.chain(lines::stack(stack)).collect()
}

/// Columns that the table of groups can do without, the first ones first. The names stay, since a reader looks for
/// those.
const GIVING_WAY: &[&str] = &["newest", "times", "total", "oldest"];

fn print_groups(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    let groups = || report.rows.iter().filter_map(|row| if let Row::Group(group) = row { Some(group) } else { None });
    // Most processes have none.
    let spilled = groups().any(|group| group.spilled_bytes > 0);
    let addresses = groups().any(|group| group.addresses > 0);
    let mut columns = vec![
        ("live", Side::Right),
        ("%", Side::Right),
        ("count", Side::Right),
        ("peak", Side::Right),
        ("total", Side::Right),
        ("times", Side::Right),
        ("growth", Side::Right),
        ("oldest", Side::Right),
        ("newest", Side::Right),
        (report.by, Side::Left),
    ];
    if addresses {
        columns.insert(columns.len() - 1, ("addresses", Side::Right));
    }
    if spilled {
        columns.insert(2, ("spilled", Side::Right));
    }
    let with_stacks = args.stacks || args.by == By::Stack;
    let line = |group: Box<GroupRow>| {
        let mut cells = vec![
            units::bytes(group.bytes),
            units::percent(group.bytes, report.bytes),
            units::number(group.live),
            group.peak_bytes.map(units::bytes).unwrap_or_default(),
            group.total_bytes.map(units::bytes).unwrap_or_default(),
            group.total_allocs.map(units::number).unwrap_or_default(),
            group.growth_bytes.map(units::signed_bytes).unwrap_or_default(),
            if group.live == 0 { String::new() } else { units::span(group.oldest_age_ns) },
            if group.live == 0 { String::new() } else { units::span(group.newest_age_ns) },
            group.key.clone(),
        ];
        let some = |bytes: u64| if bytes == 0 { String::new() } else { units::bytes(bytes) };
        if addresses {
            cells.insert(cells.len() - 1, some(group.address_bytes));
        }
        if spilled {
            cells.insert(2, some(group.spilled_bytes));
        }
        Line::new(cells).below(below(&group.parts, if with_stacks { &group.stack } else { &[] }))
    };
    Table::new(&columns).without(GIVING_WAY).print_lines(out, || groups().map(line))
}

fn print_allocs(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    let table = Table::new(&[
        ("address", Side::Right),
        ("bytes", Side::Right),
        ("kind", Side::Left),
        ("age", Side::Right),
        ("thread", Side::Left),
        ("memory", Side::Left),
        ("stream", Side::Right),
        ("flags", Side::Left),
        ("tag", Side::Left),
        ("site", Side::Left),
    ]);
    let line = |row: Row| {
        let Row::Alloc(alloc) = row else { return None };
        let line = Line::new([
            format!("{:#x}", alloc.address),
            units::bytes(alloc.bytes),
            alloc.kind.to_owned(),
            units::span(alloc.age_ns),
            format!("{} {}", alloc.tid, alloc.thread).trim_end().to_owned(),
            alloc.location.clone(),
            if alloc.stream == 0 { String::new() } else { alloc.stream.to_string() },
            alloc.flags.join(","),
            alloc.tag.clone(),
            alloc.site.clone(),
        ]);
        Some(line.below(below(&alloc.parts, if args.stacks { &alloc.stack } else { &[] })))
    };
    table.print_lines(out, || report.rows.iter().filter_map(line))
}
