//! Allocations for people: a table of groups, or a list of single allocations.

use super::{AllocRow, Args, GroupRow, Report};
use crate::model::Ledger;
use crate::model::allocs::By;
use crate::model::parts::Part;
use crate::report::{head, lines};
use crate::symbols::Frame;
use crate::text::{self, units};
use crate::view::table::Table;
use std::io::Write;

/// Prints a table of rows.
type PrintRows<R> = fn(&mut dyn Write, &Report<R>, &Args) -> std::io::Result<()>;

pub(super) fn print<R>(
    out: &mut dyn Write,
    report: &Report<R>,
    ledger: &Ledger,
    args: &Args,
    rows: PrintRows<R>,
) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    let process = &report.process_live;
    let part = |bytes, what| if bytes > 0 { format!(", {} {what}", units::bytes(bytes)) } else { String::new() };
    writeln!(
        out,
        "{} live: {} device{}{}{}{}",
        text::count(process.count, "allocation"),
        units::bytes(process.device),
        part(process.managed, "managed"),
        part(process.host, "host"),
        part(process.unknown, "in unknown places"),
        part(process.parked, "on the host while parked"),
    )?;
    if report.rows.is_empty() {
        return match process.count {
            0 => writeln!(out, "nothing is live; --freed shows the sites of what was freed"),
            _ => writeln!(out, "none of them matches the filters"),
        };
    }
    writeln!(out)?;
    rows(out, report, args)?;
    lines::more(out, report.rows_total - report.rows.len())
}

/// Returns the lines below a row.
fn below(parts: &[Part], stack: &[Frame]) -> Vec<String> {
    let parts = lines::parts(parts).into_iter().map(|part| format!("    inside: {part}"));
    parts.chain(lines::stack(stack)).collect()
}

pub(super) fn print_groups(out: &mut dyn Write, report: &Report<GroupRow>, args: &Args) -> std::io::Result<()> {
    let with_stacks = args.stacks || args.by == By::Stack;
    let age = |group: &GroupRow, ns| if group.live == 0 { String::new() } else { units::span(ns) };
    let table = Table::<GroupRow>::new()
        .bytes("live", 0, |group| group.bytes)
        .right("%", 0, |group| units::percent(group.bytes, report.bytes))
        .some_bytes("spilled", 0, |group| group.spilled_bytes)
        .number("count", 0, |group| group.live)
        .right("peak", 0, |group| group.peak_bytes.map(units::bytes).unwrap_or_default())
        .right("total", 3, |group| group.total_bytes.map(units::bytes).unwrap_or_default())
        .right("times", 2, |group| group.total_allocs.map(units::number).unwrap_or_default())
        .right("growth", 0, |group| group.growth_bytes.map(units::signed_bytes).unwrap_or_default())
        .right("oldest", 4, |group| age(group, group.oldest_age_ns))
        .right("newest", 1, |group| age(group, group.newest_age_ns))
        .some_bytes("addresses", 0, |group| group.address_bytes)
        .text(&report.by, 0, |group| &group.key);
    let table = table.below(move |group| below(&group.parts, if with_stacks { &group.stack } else { &[] }));
    table.print(out, || report.rows.iter())
}

pub(super) fn print_allocs(out: &mut dyn Write, report: &Report<AllocRow>, args: &Args) -> std::io::Result<()> {
    let table = Table::<AllocRow>::new()
        .right("address", 0, |row| format!("{:#x}", row.alloc.address))
        .bytes("bytes", 0, |row| row.alloc.bytes)
        .left("kind", 0, |row| row.alloc.kind)
        .span("age", 0, |row| row.alloc.age_ns)
        .left("thread", 0, |row| format!("{} {}", row.alloc.tid, row.thread).trim_end().to_owned())
        .text("memory", 0, |row| &row.alloc.location)
        .right("stream", 0, |row| if row.alloc.stream == 0 { String::new() } else { row.alloc.stream.to_string() })
        .left("flags", 0, |row| row.alloc.flags.join(","))
        .text("tag", 0, |row| &row.alloc.tag)
        .text("site", 0, |row| &row.site);
    table.below(|row| below(&row.parts, if args.stacks { &row.stack } else { &[] })).print(out, || report.rows.iter())
}
