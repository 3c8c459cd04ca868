//! `gpumem graphs`: graphs and execs, by call site or one by one.

use super::{Context, print_head};
use crate::args::Target;
use crate::commands::allocs::stack_lines;
use crate::failure::Result;
use crate::model::graphs::{self, By, Group, Key};
use crate::model::{Head, Ledger};
use crate::symbols::Frame;
use crate::view::table::{DIM, Side, Table, paint};
use crate::view::{text, units};
use gpumem_wire::counters;
use gpumem_wire::kinds::GraphOrigin;
use gpumem_wire::layout::{ExecSlot, GraphSlot};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Show graphs and execs: nodes, launches, updates, estimated memory, by call site
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// What to group by
    #[arg(long, value_enum, default_value = "site")]
    by: By,
    /// Every graph and exec on a line of its own
    #[arg(long)]
    all: bool,
    /// Rows to show; 0: all. 40 by default, in JSON all
    #[arg(short = 'n', long, value_name = "ROWS")]
    limit: Option<usize>,
    /// Show the call stack of each row
    #[arg(long)]
    stacks: bool,
}

#[derive(Serialize)]
struct Report {
    process: Head,
    total: Row,
    counters: BTreeMap<&'static str, u64>,
    groups: Vec<Row>,
    groups_total: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    graphs: Option<Vec<GraphRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execs: Option<Vec<ExecRow>>,
}

#[derive(Serialize)]
struct Row {
    key: String,
    graphs: u64,
    execs: u64,
    graphs_ever: u64,
    execs_ever: u64,
    exec_nodes: u64,
    nodes: BTreeMap<&'static str, u64>,
    graph_nodes: u64,
    launches: u64,
    last_launch_age_ns: Option<u64>,
    updates: u64,
    failed_updates: u64,
    node_sets: u64,
    instantiate_ns: u64,
    host_bytes_estimated: u64,
    device_bytes_estimated: u64,
    oldest_age_ns: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct GraphRow {
    handle: u64,
    serial: u64,
    origin: &'static str,
    nodes: u64,
    host_bytes_estimated: u64,
    instantiates: u64,
    execs_live: u64,
    age_ns: u64,
    last_used_age_ns: Option<u64>,
    tid: u32,
    tag: String,
    context: u16,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct ExecRow {
    handle: u64,
    serial: u64,
    graph_serial: u64,
    /// False: the graph that it was instantiated from is gone.
    graph_live: bool,
    flags: u64,
    nodes_total: u64,
    nodes: BTreeMap<&'static str, u64>,
    launches: u64,
    last_launch_age_ns: Option<u64>,
    updates: u64,
    failed_updates: u64,
    node_sets: u64,
    instantiate_ns: u64,
    host_bytes_estimated: u64,
    device_bytes_estimated: u64,
    age_ns: u64,
    tid: u32,
    tag: String,
    context: u16,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

/// Runs the command.
///
/// # Errors
/// Those of choosing and reading the ledger.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let ledger = context.ledger(&args.target)?;
    let limit = super::rows(args.limit, context);
    let report = report(args, &ledger, limit);
    context.print(&report, |out, report| print(out, report, &ledger, args))
}

fn report(args: &Args, ledger: &Ledger, limit: usize) -> Report {
    let groups = graphs::group(ledger, args.by);
    let counted = counters::ALL.iter().filter(|(index, ..)| GRAPH_COUNTERS.contains(index));
    Report {
        process: ledger.head(),
        total: row(ledger, "total".into(), &graphs::total(ledger), false),
        counters: counted.map(|&(index, name, _)| (name, ledger.snapshot.counter(index))).collect(),
        groups_total: groups.len(),
        groups: groups
            .iter()
            .take(limit)
            .map(|(key, group)| row(ledger, key_text(ledger, key), group, args.stacks || args.by == By::Stack))
            .collect(),
        graphs: args.all.then(|| graph_rows(ledger, limit, args.stacks)),
        execs: args.all.then(|| exec_rows(ledger, limit, args.stacks)),
    }
}

/// Counters that belong to this view.
const GRAPH_COUNTERS: &[usize] = &[
    counters::GRAPHS_CREATED,
    counters::GRAPHS_DESTROYED,
    counters::EXECS_CREATED,
    counters::EXECS_DESTROYED,
    counters::INSTANTIATE_FAILURES,
    counters::INSTANTIATE_NS,
    counters::LAUNCHES,
    counters::LAUNCH_FAILURES,
    counters::UPDATES,
    counters::UPDATE_FAILURES,
    counters::NODE_SETS,
    counters::CAPTURES_BEGUN,
    counters::CAPTURES_ENDED,
    counters::CAPTURES_FAILED,
    counters::NODES_INSTANTIATED,
];

fn row(ledger: &Ledger, key: String, group: &Group, stack: bool) -> Row {
    Row {
        key,
        graphs: group.graphs,
        execs: group.execs,
        graphs_ever: group.graphs_total,
        execs_ever: group.execs_total,
        exec_nodes: group.nodes.iter().sum(),
        nodes: graphs::by_name(&group.nodes),
        graph_nodes: group.graph_nodes,
        launches: group.launches,
        last_launch_age_ns: since(ledger, group.last_launch_ns),
        updates: group.updates,
        failed_updates: group.failed_updates,
        node_sets: group.node_sets,
        instantiate_ns: group.instantiate_ns,
        host_bytes_estimated: group.host_bytes,
        device_bytes_estimated: group.device_bytes,
        oldest_age_ns: if group.graphs + group.execs == 0 { 0 } else { ledger.age(group.oldest_ns) },
        stack: if stack { ledger.frames(group.stack) } else { Vec::new() },
    }
}

fn since(ledger: &Ledger, then_ns: u64) -> Option<u64> {
    (then_ns != 0).then(|| ledger.age(then_ns))
}

fn key_text(ledger: &Ledger, key: &Key) -> String {
    match key {
        Key::Site(site) => ledger.site_text(*site),
        Key::Stack(stack) => ledger.site_text(ledger.site(*stack)),
        Key::Thread(tid) => format!("{tid} {}", ledger.thread(*tid)).trim_end().into(),
        Key::Tag(tag) if tag.is_empty() => "(no tag)".into(),
        Key::Tag(tag) => tag.clone(),
        Key::Context(0) => "(no context)".into(),
        Key::Context(context) => format!("context {context} on device {}", ledger.device(*context)),
    }
}

fn graph_rows(ledger: &Ledger, limit: usize, stacks: bool) -> Vec<GraphRow> {
    let execs = graphs::execs_by_graph(ledger);
    let mut chosen: Vec<&GraphSlot> = ledger.snapshot.graphs.iter().collect();
    chosen.sort_unstable_by_key(|graph| (std::cmp::Reverse(graph.host_bytes), graph.serial));
    let row = |graph: &GraphSlot| GraphRow {
        handle: graph.handle,
        serial: graph.serial,
        origin: GraphOrigin::from_u8(graph.origin).map_or("unknown", GraphOrigin::name),
        nodes: graph.nodes,
        host_bytes_estimated: graph.host_bytes,
        instantiates: graph.instantiates,
        execs_live: execs.get(&graph.serial).map_or(0, Vec::len) as u64,
        age_ns: ledger.age(graph.time_ns),
        last_used_age_ns: since(ledger, graph.last_used_ns),
        tid: graph.tid,
        tag: ledger.snapshot.text(graph.tag).into_owned(),
        context: graph.context,
        site: ledger.site_text(ledger.site(graph.stack)),
        stack: if stacks { ledger.frames(graph.stack) } else { Vec::new() },
    };
    chosen.into_iter().take(limit).map(row).collect()
}

fn exec_rows(ledger: &Ledger, limit: usize, stacks: bool) -> Vec<ExecRow> {
    let live: std::collections::HashSet<u64> = ledger.snapshot.graphs.iter().map(|graph| graph.serial).collect();
    let mut chosen: Vec<&ExecSlot> = ledger.snapshot.execs.iter().collect();
    let bytes = |exec: &ExecSlot| exec.host_bytes.saturating_add(exec.device_bytes);
    chosen.sort_unstable_by_key(|exec| (std::cmp::Reverse(bytes(exec)), exec.serial));
    let row = |exec: &ExecSlot| ExecRow {
        handle: exec.handle,
        serial: exec.serial,
        graph_serial: exec.graph_serial,
        graph_live: live.contains(&exec.graph_serial),
        flags: exec.flags,
        nodes_total: u64::from(exec.nodes_total),
        nodes: graphs::by_name(&exec.nodes.map(u64::from)),
        launches: exec.launches,
        last_launch_age_ns: since(ledger, exec.last_launch_ns),
        updates: exec.updates,
        failed_updates: exec.failed_updates,
        node_sets: exec.node_sets,
        instantiate_ns: exec.instantiate_ns,
        host_bytes_estimated: exec.host_bytes,
        device_bytes_estimated: exec.device_bytes,
        age_ns: ledger.age(exec.time_ns),
        tid: exec.tid,
        tag: ledger.snapshot.text(exec.tag).into_owned(),
        context: exec.context,
        site: ledger.site_text(ledger.site(exec.stack)),
        stack: if stacks { ledger.frames(exec.stack) } else { Vec::new() },
    };
    chosen.into_iter().take(limit).map(row).collect()
}

fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    print_head(out, &report.process, ledger)?;
    let total = &report.total;
    writeln!(
        out,
        "{} and {} live, estimated {} host and {} device; ever instantiated: {} in {}",
        text::count(total.graphs, "graph"),
        text::count(total.execs, "exec"),
        units::bytes(total.host_bytes_estimated),
        units::bytes(total.device_bytes_estimated),
        units::number(report.counters["execs_created"]),
        units::span(report.counters["instantiate_ns"]),
    )?;
    writeln!(
        out,
        "{}, {} ({} failed), {} ({} failed)\n",
        text::count(report.counters["launches"], "launch"),
        text::count(report.counters["updates"], "update"),
        units::number(report.counters["update_failures"]),
        text::count(report.counters["captures_begun"], "capture"),
        units::number(report.counters["captures_failed"]),
    )?;
    print_groups(out, report, args)?;
    if let Some(execs) = &report.execs {
        writeln!(out)?;
        print_execs(out, execs)?;
    }
    if let Some(graphs) = &report.graphs {
        writeln!(out)?;
        print_graphs(out, graphs)?;
    }
    Ok(())
}

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
    let mut table = Table::new(&[
        ("graphs", right),
        ("execs", right),
        ("ever", right),
        ("host~", right),
        ("device~", right),
        ("launches", right),
        ("last launch", right),
        ("updates", right),
        ("failed", right),
        ("oldest", right),
        ("nodes of execs", Side::Left),
        ("where", Side::Left),
    ]);
    for row in &report.groups {
        table.row([
            units::number(row.graphs),
            units::number(row.execs),
            if row.execs_ever > 0 { units::number(row.execs_ever) } else { String::new() },
            units::bytes(row.host_bytes_estimated),
            units::bytes(row.device_bytes_estimated),
            units::number(row.launches),
            if row.execs > 0 { age(row.last_launch_age_ns) } else { String::new() },
            units::number(row.updates),
            units::number(row.failed_updates),
            units::span(row.oldest_age_ns),
            nodes(&row.nodes),
            row.key.clone(),
        ]);
        if !row.stack.is_empty() && (args.stacks || args.by == By::Stack) {
            table.below(stack_lines(&row.stack));
        }
    }
    if !table.is_empty() {
        table.print(out)?;
    }
    let hidden = report.groups_total - report.groups.len();
    if hidden > 0 {
        writeln!(out, "{}", paint(DIM, format!("… {} more: -n 0 shows all", units::number(hidden as u64))))?;
    }
    Ok(())
}

fn print_execs(out: &mut dyn Write, execs: &[ExecRow]) -> std::io::Result<()> {
    let right = Side::Right;
    let mut table = Table::new(&[
        ("exec", right),
        ("of graph", right),
        ("host~", right),
        ("device~", right),
        ("made in", right),
        ("launches", right),
        ("last launch", right),
        ("updates", right),
        ("failed", right),
        ("sets", right),
        ("age", right),
        ("tag", Side::Left),
        ("nodes", Side::Left),
        ("site", Side::Left),
    ]);
    for exec in execs {
        let gone = if exec.graph_live { "" } else { " (gone)" };
        table.row([
            format!("{:#x}", exec.handle),
            if exec.graph_serial == 0 { String::new() } else { format!("#{}{gone}", exec.graph_serial) },
            units::bytes(exec.host_bytes_estimated),
            units::bytes(exec.device_bytes_estimated),
            units::span(exec.instantiate_ns),
            units::number(exec.launches),
            age(exec.last_launch_age_ns),
            units::number(exec.updates),
            units::number(exec.failed_updates),
            units::number(exec.node_sets),
            units::span(exec.age_ns),
            exec.tag.clone(),
            nodes(&exec.nodes),
            exec.site.clone(),
        ]);
        table.below(stack_lines(&exec.stack));
    }
    table.print(out)
}

fn print_graphs(out: &mut dyn Write, graphs: &[GraphRow]) -> std::io::Result<()> {
    let right = Side::Right;
    let mut table = Table::new(&[
        ("graph", right),
        ("serial", right),
        ("origin", Side::Left),
        ("nodes", right),
        ("host~", right),
        ("instantiated", right),
        ("execs", right),
        ("age", right),
        ("last used", right),
        ("tag", Side::Left),
        ("site", Side::Left),
    ]);
    for graph in graphs {
        table.row([
            format!("{:#x}", graph.handle),
            format!("#{}", graph.serial),
            graph.origin.to_owned(),
            units::number(graph.nodes),
            units::bytes(graph.host_bytes_estimated),
            units::number(graph.instantiates),
            units::number(graph.execs_live),
            units::span(graph.age_ns),
            age(graph.last_used_age_ns),
            graph.tag.clone(),
            graph.site.clone(),
        ]);
        table.below(stack_lines(&graph.stack));
    }
    table.print(out)
}
