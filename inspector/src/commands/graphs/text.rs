//! Graphs and execs as tables.

use super::{Args, ExecRow, GraphRow, Report, Row, by_name};
use crate::model::Ledger;
use crate::report::cache;
use crate::report::head;
use crate::report::lines;
use crate::text::{self, units};
use crate::view::lazy::Lazy;
use crate::view::table::{Line, Side, Table};
use gpumem_wire::kinds::ExecState;
use std::collections::BTreeMap;
use std::io::Write;

/// Prints a report.
pub(super) fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    let total = &report.total;
    let made = [total.graphs, total.execs, report.counters["graphs_created"], report.counters["execs_created"]];
    if made == [0; 4] {
        return writeln!(out, "no graph was made so far");
    }
    writeln!(
        out,
        "{} and {} live, about {} of host and {} of device memory; instantiated so far: {} in {}",
        text::count(total.graphs, "graph"),
        text::count(total.execs, "exec"),
        units::bytes(total.host_bytes_estimated),
        units::bytes(total.device_bytes_estimated),
        units::number(report.counters["execs_created"]),
        units::span(report.counters["instantiate_ns"]),
    )?;
    writeln!(
        out,
        "{}, {} ({} failed), {} ({} failed)",
        text::count(report.counters["launches"], "launch"),
        text::count(report.counters["updates"], "update"),
        units::number(report.counters["update_failures"]),
        text::count(report.counters["captures_begun"], "capture"),
        units::number(report.counters["captures_failed"]),
    )?;
    cache::print_head(out, &report.cache)?;
    if report.groups_total == 0 {
        return match args.pinned || !args.state.is_empty() {
            true => writeln!(out, "none of them matches the filters"),
            false => Ok(()),
        };
    }
    writeln!(out)?;
    print_groups(out, report, args)?;
    if let Some(execs) = report.execs.as_ref().filter(|execs| !execs.is_empty()) {
        writeln!(out)?;
        print_execs(out, execs, args.wide)?;
        lines::more(out, report.execs_total.unwrap_or(0).saturating_sub(execs.len()))?;
    }
    if let Some(graphs) = report.graphs.as_ref().filter(|graphs| !graphs.is_empty()) {
        writeln!(out)?;
        print_graphs(out, graphs, args.wide)?;
        lines::more(out, report.graphs_total.unwrap_or(0).saturating_sub(graphs.len()))?;
    }
    Ok(())
}

/// What the tables can do without on a narrow terminal, the first ones first.
const OF_GROUPS: &[&str] = &[
    "sources",
    "saved",
    "oldest",
    "folded",
    "evicted",
    "ever",
    "hits",
    "failed",
    "retargets",
    "instantiated",
    "updates",
    "nodes of execs",
    "last launch",
    "resident",
    "device~",
    "graphs",
    "pinned",
    "launches",
];
const OF_EXECS: &[&str] = &[
    "sets",
    "failed",
    "saved",
    "evicted",
    "retargets",
    "instantiated",
    "hits",
    "made in",
    "source",
    "nodes",
    "updates",
    "class",
    "age",
    "tag",
    "last launch",
    "of graph",
    "device~",
    "launches",
];
const OF_GRAPHS: &[&str] = &["folded", "instantiated", "last used", "tag", "age", "origin", "execs", "serial"];

fn age(ns: Option<u64>) -> String {
    ns.map_or("never".into(), |ns| format!("{} ago", units::span(ns)))
}

fn nodes(nodes: &BTreeMap<&'static str, u64>) -> String {
    let mut nodes: Vec<_> = nodes.iter().collect();
    nodes.sort_by_key(|&(_, &n)| std::cmp::Reverse(n));
    nodes.iter().map(|(name, n)| format!("{} {name}", units::number(**n))).collect::<Vec<_>>().join(", ")
}

fn print_groups(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    let right = Side::Right;
    let table = Table::new(&[
        ("graphs", right),
        ("execs", right),
        ("ever", right),
        ("host~", right),
        ("device~", right),
        ("launches", right),
        ("last launch", right),
        ("updates", right),
        ("failed", right),
        ("resident", right),
        ("folded", right),
        ("sources", right),
        ("hits", right),
        ("retargets", right),
        ("instantiated", right),
        ("evicted", right),
        ("saved", right),
        ("oldest", right),
        ("nodes of execs", Side::Left),
        ("pinned", Side::Left),
        (by_name(args.by), Side::Left),
    ])
    .gives_way(OF_GROUPS, args.wide);
    let line = |row: Row| {
        let virtual_execs = row.resident + row.folded + row.gone;
        // What is not under the graph cache has none of its numbers.
        let under = |n: u64| if virtual_execs > 0 { units::number(n) } else { String::new() };
        let line = Line::new([
            units::number(row.graphs),
            units::number(row.execs),
            if row.execs_ever > 0 { units::number(row.execs_ever) } else { String::new() },
            units::bytes(row.host_bytes_estimated),
            units::bytes(row.device_bytes_estimated),
            units::number(row.launches),
            if row.execs > 0 { age(row.last_launch_age_ns) } else { String::new() },
            units::number(row.updates),
            units::number(row.failed_updates),
            under(row.resident),
            under(row.folded),
            if virtual_execs > 0 { units::bytes(row.source_bytes) } else { String::new() },
            under(row.hits),
            under(row.retargets),
            under(row.instantiations),
            under(row.evictions),
            if row.saved_ns > 0 { units::span(row.saved_ns) } else { String::new() },
            units::span(row.oldest_age_ns),
            nodes(&row.nodes),
            nodes(&row.pinned_by),
            row.key.clone(),
        ]);
        line.below(lines::stack(&row.stack))
    };
    if !report.groups.is_empty() {
        table.print_lines(out, || report.groups.iter().map(line))?;
    }
    lines::more(out, report.groups_total - report.groups.len())
}

fn print_execs(out: &mut dyn Write, execs: &Lazy<ExecRow>, wide: bool) -> std::io::Result<()> {
    let right = Side::Right;
    let table = Table::new(&[
        ("exec", right),
        ("state", Side::Left),
        ("class", Side::Left),
        ("of graph", right),
        ("host~", right),
        ("device~", right),
        ("source", right),
        ("made in", right),
        ("launches", right),
        ("last launch", right),
        ("updates", right),
        ("failed", right),
        ("sets", right),
        ("hits", right),
        ("retargets", right),
        ("instantiated", right),
        ("evicted", right),
        ("saved", right),
        ("age", right),
        ("tag", Side::Left),
        ("nodes", Side::Left),
        ("site", Side::Left),
    ])
    .gives_way(OF_EXECS, wide);
    table.print_lines(out, || execs.iter().map(exec_line))
}

fn exec_line(exec: ExecRow) -> Line {
    let gone = if exec.graph_live { "" } else { " (gone)" };
    let state = match exec.pinned {
        Some(pinned) => format!("{}: {pinned}", exec.state),
        // Without a reason nobody looked: the process only records.
        None if exec.state == ExecState::Native.name() => String::new(),
        None => exec.state.to_owned(),
    };
    let under = |n: u64| if exec.hits.is_some() { units::number(n) } else { String::new() };
    let line = Line::new([
        format!("{:#x}", exec.handle),
        state,
        // Enough to tell classes of one process apart.
        exec.class.chars().take(8).collect(),
        if exec.graph_serial == 0 { String::new() } else { format!("#{}{gone}", exec.graph_serial) },
        units::bytes(exec.host_bytes_estimated),
        units::bytes(exec.device_bytes_estimated),
        if exec.source_bytes > 0 { units::bytes(exec.source_bytes) } else { String::new() },
        units::span(exec.instantiate_ns),
        units::number(exec.launches),
        age(exec.last_launch_age_ns),
        units::number(exec.updates),
        units::number(exec.failed_updates),
        units::number(exec.node_sets),
        exec.hits.map(units::number).unwrap_or_default(),
        under(exec.retargets),
        under(exec.instantiations),
        under(exec.evictions),
        if exec.saved_ns > 0 { units::span(exec.saved_ns) } else { String::new() },
        units::span(exec.age_ns),
        exec.tag.clone(),
        nodes(&exec.nodes),
        exec.site.clone(),
    ]);
    line.below(lines::stack(&exec.stack))
}

fn print_graphs(out: &mut dyn Write, graphs: &Lazy<GraphRow>, wide: bool) -> std::io::Result<()> {
    let right = Side::Right;
    let table = Table::new(&[
        ("graph", right),
        ("serial", right),
        ("origin", Side::Left),
        ("nodes", right),
        ("host~", right),
        ("folded", Side::Left),
        ("instantiated", right),
        ("execs", right),
        ("age", right),
        ("last used", right),
        ("tag", Side::Left),
        ("site", Side::Left),
    ])
    .gives_way(OF_GRAPHS, wide);
    let line = |graph: GraphRow| {
        let line = Line::new([
            format!("{:#x}", graph.handle),
            format!("#{}", graph.serial),
            graph.origin.to_owned(),
            units::number(graph.nodes),
            units::bytes(graph.host_bytes_estimated),
            if graph.folded_bytes > 0 { "yes".into() } else { String::new() },
            units::number(graph.instantiates),
            units::number(graph.execs_live),
            units::span(graph.age_ns),
            age(graph.last_used_age_ns),
            graph.tag.clone(),
            graph.site.clone(),
        ]);
        line.below(lines::stack(&graph.stack))
    };
    table.print_lines(out, || graphs.iter().map(line))
}
