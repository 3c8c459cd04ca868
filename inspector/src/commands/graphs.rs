//! `gpumem graphs`: graphs and execs, by call site or one by one.

use crate::args::{Target, name_of, one_of};
use crate::context::Context;
use crate::failure::Result;
use crate::model::cache::{self, Cache};
use crate::model::graphs::{self, By, Filter, Group};
use crate::model::key::GroupKey;
use crate::model::rows::SlotRow;
use crate::model::sites::Sites;
use crate::model::{Head, Ledger, execs};
use crate::report::lines;
use crate::symbols::Frame;
use crate::text::{count, if_any, units};
use crate::view::lazy::Lazy;
use crate::view::table::Table;
use gpumem_wire::counters;
use gpumem_wire::kinds::{ExecState, GraphOrigin};
use gpumem_wire::layout::{ExecSlot, GraphSlot};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;

/// Show graphs and execs: nodes, launches, updates, estimated memory, the graph cache, by call site
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// What to group by
    #[arg(long, value_enum, default_value = "site")]
    by: By,
    /// Every graph and exec on a line of its own
    #[arg(long)]
    all: bool,
    /// Only execs that are not under the graph cache, with the reason
    #[arg(long)]
    pinned: bool,
    /// Only execs in this state (repeatable)
    #[arg(long, value_name = "STATE", value_parser = one_of(ExecState::ALL, ExecState::name))]
    state: Vec<ExecState>,
    /// How many rows to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
    /// Show the call stack of each row
    #[arg(long)]
    stacks: bool,
}

#[derive(Serialize)]
pub(super) struct Report<'a> {
    process: Head,
    cache: Cache,
    total: GraphGroupRow,
    counters: BTreeMap<&'static str, u64>,
    pub(super) groups: Lazy<'a, GraphGroupRow>,
    pub(super) groups_total: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    graphs: Option<Lazy<'a, GraphRow<'a>>>,
    /// Number of graphs, shown or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    graphs_total: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execs: Option<Lazy<'a, ExecRow<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execs_total: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct GraphGroupRow {
    #[serde(skip)]
    pub(super) of: Option<GroupKey>,
    key: String,
    #[serde(flatten)]
    pub(super) group: Group,
    exec_nodes: u64,
    last_launch_age_ns: Option<u64>,
    oldest_age_ns: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct GraphRow<'a> {
    #[serde(flatten)]
    graph: SlotRow<'a, GraphSlot>,
    execs_live: u64,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct ExecRow<'a> {
    #[serde(flatten)]
    exec: SlotRow<'a, ExecSlot>,
    /// False if the graph that it was instantiated from is gone.
    graph_live: bool,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

impl Args {
    /// Returns the arguments of a plain table of this grouping.
    pub(super) fn by(by: By) -> Self {
        Self { by, ..Self::default() }
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let limit = context.rows(self.limit);
        let report = report(self, &ledger, limit);
        context.print(&report, |out, report| print(out, report, &ledger, self))
    }
}

impl Report<'_> {
    /// True if the process has made a graph or an exec.
    fn has_graphs(&self) -> bool {
        let Group { graphs, execs, .. } = self.total.group;
        [graphs, execs, self.counters["graphs_created"], self.counters["execs_created"]] != [0; 4]
    }
}

/// Returns the report.
pub(super) fn report<'a>(args: &'a Args, ledger: &'a Ledger, limit: usize) -> Report<'a> {
    let filter = Filter { pinned: args.pinned, states: args.state.clone() };
    let mut groups = graphs::group(ledger, &filter, args.by);
    let groups_total = groups.len();
    groups.truncate(limit);
    let cache = cache::of(ledger);
    let sites = if args.all || args.by == By::Stack { Sites::of_graphs(ledger) } else { Sites::default() };
    let sites = Rc::new(sites);
    let named = Rc::clone(&sites);
    let group_row = move |at: usize| {
        let (key, group) = &groups[at];
        let row = row(ledger, key.text(ledger, &named), group.clone(), args.stacks || args.by == By::Stack);
        GraphGroupRow { of: Some(key.clone()), ..row }
    };
    let counted = counters::ALL.iter().filter(|(index, ..)| is_of_graphs(*index));
    Report {
        process: Head::of(ledger),
        total: row(ledger, "total".into(), graphs::total(ledger, &cache), false),
        cache,
        counters: counted.map(|&(index, name, _)| (name, ledger.snapshot.counter(index))).collect(),
        groups_total,
        groups: Lazy::of((0..groups_total.min(limit)).collect(), group_row),
        graphs: (args.all && filter.is_open()).then(|| graph_rows(ledger, &sites, limit, args.stacks)),
        graphs_total: (args.all && filter.is_open()).then_some(ledger.snapshot.graphs.len()),
        execs_total: args.all.then(|| ledger.snapshot.execs.iter().filter(|exec| filter.fits(exec)).count()),
        execs: args.all.then(|| exec_rows(ledger, &filter, &sites, limit, args.stacks)),
    }
}

/// True for a counter of this view.
fn is_of_graphs(counter: usize) -> bool {
    (counters::GRAPHS_CREATED..=counters::CAPTURES_FAILED).contains(&counter) || counter == counters::NODES_INSTANTIATED
}

fn row(ledger: &Ledger, key: String, group: Group, stack: bool) -> GraphGroupRow {
    GraphGroupRow {
        of: None,
        key,
        exec_nodes: group.nodes.iter().sum(),
        last_launch_age_ns: ledger.age_of(group.last_launch_ns),
        oldest_age_ns: if group.graphs + group.execs == 0 { 0 } else { ledger.age(group.oldest_ns) },
        stack: if stack { ledger.frames(group.stack) } else { Vec::new() },
        group,
    }
}

fn graph_rows<'a>(ledger: &'a Ledger, sites: &Rc<Sites>, limit: usize, stacks: bool) -> Lazy<'a, GraphRow<'a>> {
    let execs = graphs::execs_by_graph(ledger);
    let mut chosen: Vec<&'a GraphSlot> = ledger.snapshot.graphs.iter().collect();
    chosen.sort_unstable_by_key(|graph| (std::cmp::Reverse(graph.held_bytes()), graph.serial));
    chosen.truncate(limit);
    let sites = Rc::clone(sites);
    let row = move |graph: &'a GraphSlot| GraphRow {
        graph: SlotRow { ledger, slot: graph },
        execs_live: execs.get(&graph.serial).map_or(0, Vec::len) as u64,
        site: sites.name(graph.stack).to_string(),
        stack: if stacks { ledger.frames(graph.stack) } else { Vec::new() },
    };
    Lazy::of(chosen, row)
}

fn exec_rows<'a>(
    ledger: &'a Ledger,
    filter: &Filter,
    sites: &Rc<Sites>,
    limit: usize,
    stacks: bool,
) -> Lazy<'a, ExecRow<'a>> {
    let live: std::collections::HashSet<u64> = ledger.snapshot.graphs.iter().map(|graph| graph.serial).collect();
    let mut chosen: Vec<&'a ExecSlot> = ledger.snapshot.execs.iter().filter(|exec| filter.fits(exec)).collect();
    chosen.sort_unstable_by_key(|exec| (std::cmp::Reverse(execs::held(exec).all()), exec.serial));
    chosen.truncate(limit);
    let sites = Rc::clone(sites);
    let row = move |exec: &'a ExecSlot| ExecRow {
        exec: SlotRow { ledger, slot: exec },
        graph_live: live.contains(&exec.graph_serial),
        site: sites.name(exec.stack).to_string(),
        stack: if stacks { ledger.frames(exec.stack) } else { Vec::new() },
    };
    Lazy::of(chosen, row)
}

/// Prints the lines above the rows.
pub(super) fn print_head(out: &mut dyn Write, report: &Report, ledger: &Ledger) -> std::io::Result<()> {
    lines::head(out, &report.process, ledger)?;
    let total = &report.total;
    if !report.has_graphs() {
        return writeln!(out, "no graph was made so far");
    }
    writeln!(
        out,
        "{} and {} live, about {} of host and {} of device memory; instantiated so far: {} in {}",
        count(total.group.graphs, "graph"),
        count(total.group.execs, "exec"),
        units::bytes(total.group.host_bytes),
        units::bytes(total.group.device_bytes),
        units::number(report.counters["execs_created"]),
        units::span(report.counters["instantiate_ns"]),
    )?;
    writeln!(
        out,
        "{}, {} ({} failed), {} ({} failed)",
        count(report.counters["launches"], "launch"),
        count(report.counters["updates"], "update"),
        units::number(report.counters["update_failures"]),
        count(report.counters["captures_begun"], "capture"),
        units::number(report.counters["captures_failed"]),
    )?;
    crate::report::cache::print_head(out, &report.cache)
}

/// Prints a report.
fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    print_head(out, report, ledger)?;
    if report.groups_total == 0 {
        return match report.has_graphs() && (args.pinned || !args.state.is_empty()) {
            true => writeln!(out, "none of them matches the filters"),
            false => Ok(()),
        };
    }
    writeln!(out)?;
    print_groups(out, report, args)?;
    if let Some(execs) = report.execs.as_ref().filter(|execs| !execs.is_empty()) {
        writeln!(out)?;
        print_execs(out, execs)?;
        lines::more(out, report.execs_total.unwrap_or(0).saturating_sub(execs.len()))?;
    }
    if let Some(graphs) = report.graphs.as_ref().filter(|graphs| !graphs.is_empty()) {
        writeln!(out)?;
        print_graphs(out, graphs)?;
        lines::more(out, report.graphs_total.unwrap_or(0).saturating_sub(graphs.len()))?;
    }
    Ok(())
}

fn age(ns: Option<u64>) -> (f64, String) {
    ns.map_or((-1.0, "never".into()), |ns| (ns as f64, format!("{} ago", units::span(ns))))
}

fn nodes(nodes: &BTreeMap<&'static str, u64>) -> String {
    let mut nodes: Vec<_> = nodes.iter().collect();
    nodes.sort_by_key(|&(_, &n)| std::cmp::Reverse(n));
    nodes.iter().map(|(name, n)| format!("{} {name}", units::number(**n))).collect::<Vec<_>>().join(", ")
}

fn print_groups(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    if !report.groups.is_empty() {
        let table = group_table(&name_of(args.by));
        table.below(|row| lines::stack(&row.stack)).print(out, || report.groups.iter())?;
    }
    lines::more(out, report.groups_total - report.groups.len())
}

/// Returns the table of groups.
pub(super) fn group_table(by: &str) -> Table<'static, GraphGroupRow> {
    // An exec that is not under the graph cache has none of its numbers.
    let under =
        |row: &GraphGroupRow, n: u64| Some(n).filter(|_| row.group.resident + row.group.folded + row.group.gone > 0);
    let some = |n: u64| Some(n).filter(|&n| n > 0);
    let last = |row: &GraphGroupRow| Some(age(row.last_launch_age_ns)).filter(|_| row.group.execs > 0);
    Table::<GraphGroupRow>::new()
        .number("graphs", 16, |row| row.group.graphs)
        .number("execs", 0, |row| row.group.execs)
        .some("ever", 6, move |row| some(row.group.execs_total), units::number)
        .bytes("host~", 0, |row| row.group.host_bytes)
        .bytes("device~", 15, |row| row.group.device_bytes)
        .number("launches", 18, |row| row.group.launches)
        .right("last launch", 13, last)
        .number("updates", 11, |row| row.group.updates)
        .number("failed", 8, |row| row.group.failed_updates)
        .some("resident", 14, move |row| under(row, row.group.resident), units::number)
        .some("folded", 4, move |row| under(row, row.group.folded), units::number)
        .some("sources", 1, move |row| under(row, row.group.source_bytes), units::bytes)
        .some("hits", 7, move |row| under(row, row.group.hits), units::number)
        .some("retargets", 9, move |row| under(row, row.group.retargets), units::number)
        .some("instantiated", 10, move |row| under(row, row.group.instantiations), units::number)
        .some("lost", 5, move |row| under(row, row.group.evictions), units::number)
        .some("saved", 2, move |row| some(row.group.saved_ns), units::span)
        .span("oldest", 3, |row| row.oldest_age_ns)
        .left("nodes of execs", 12, |row| nodes(&graphs::by_name(&row.group.nodes)))
        .left("pinned", 17, |row| nodes(&row.group.pinned))
        .text(by, 0, |row| &row.key)
}

fn print_execs<'a>(out: &mut dyn Write, execs: &Lazy<'a, ExecRow<'a>>) -> std::io::Result<()> {
    let state = |row: &ExecRow| match (execs::why_pinned(row.exec.slot), execs::state(row.exec.slot)) {
        (Some(pinned), _) => format!("{}: {pinned}", execs::state_name(row.exec.slot)),
        // No reason means that the cache did not look: the process only records.
        (None, Some(ExecState::Native)) => String::new(),
        (None, _) => execs::state_name(row.exec.slot).to_owned(),
    };
    let gone = |row: &ExecRow| if row.graph_live { "" } else { " (gone)" };
    let graph = |row: &ExecRow| Some(row.exec.slot.graph_serial).filter(|&serial| serial > 0);
    let hits = |row: &ExecRow| execs::hits(row.exec.slot);
    let under = move |row: &ExecRow, n| if hits(row).is_some() { units::number(n) } else { String::new() };
    let table = Table::<ExecRow>::new()
        .right("exec", 0, |row| format!("{:#x}", row.exec.slot.handle))
        .left("state", 0, state)
        // Enough digits to distinguish the classes of one process.
        .left("class", 12, |row| execs::class_name(row.exec.slot).chars().take(8).collect::<String>())
        .right("of graph", 16, |row| graph(row).map_or(String::new(), |of| format!("#{of}{}", gone(row))))
        .bytes("host~", 0, |row| execs::held(row.exec.slot).host_all())
        .bytes("device~", 17, |row| execs::held(row.exec.slot).device)
        .some_bytes("source", 9, |row| row.exec.slot.source_bytes)
        .span("made in", 8, |row| row.exec.slot.instantiate_ns)
        .number("launches", 18, |row| row.exec.slot.launches)
        .right("last launch", 15, |row| Some(age(row.exec.ledger.age_of(row.exec.slot.last_launch_ns))))
        .number("updates", 11, |row| row.exec.slot.updates)
        .number("failed", 2, |row| row.exec.slot.failed_updates)
        .number("sets", 1, |row| row.exec.slot.node_sets)
        .right("hits", 7, move |row| hits(row).map(units::number).unwrap_or_default())
        .right("retargets", 5, move |row| under(row, row.exec.slot.retargets))
        .right("instantiated", 6, move |row| under(row, row.exec.slot.instantiations))
        .right("lost", 4, move |row| under(row, row.exec.slot.evictions))
        .right("saved", 3, |row| if_any(row.exec.slot.saved_ns, units::span))
        .span("age", 13, |row| row.exec.ledger.age(row.exec.slot.time_ns))
        .left("tag", 14, |row| row.exec.ledger.snapshot.text(row.exec.slot.tag).into_owned())
        .left("nodes", 10, |row| nodes(&graphs::by_name(&row.exec.slot.nodes.map(u64::from))))
        .text("site", 0, |row| &row.site);
    table.below(|row| lines::stack(&row.stack)).print(out, || execs.iter())
}

fn print_graphs<'a>(out: &mut dyn Write, rows: &Lazy<'a, GraphRow<'a>>) -> std::io::Result<()> {
    let last = |row: &GraphRow| Some(age(row.graph.ledger.age_of(row.graph.slot.last_used_ns)));
    let table = Table::<GraphRow>::new()
        .right("graph", 0, |row| format!("{:#x}", row.graph.slot.handle))
        .right("serial", 8, |row| format!("#{}", row.graph.slot.serial))
        .left("origin", 6, |row| GraphOrigin::name_of(row.graph.slot.origin))
        .number("nodes", 0, |row| row.graph.slot.nodes)
        .bytes("host~", 0, |row| row.graph.slot.held_bytes())
        .left("folded", 1, |row| if row.graph.slot.folded_bytes > 0 { "yes" } else { "" })
        .number("instantiated", 2, |row| row.graph.slot.instantiates)
        .number("execs", 7, |row| row.execs_live)
        .span("age", 5, |row| row.graph.ledger.age(row.graph.slot.time_ns))
        .right("last used", 3, last)
        .left("tag", 4, |row| row.graph.ledger.snapshot.text(row.graph.slot.tag).into_owned())
        .text("site", 0, |row| &row.site);
    table.below(|row| lines::stack(&row.stack)).print(out, || rows.iter())
}
