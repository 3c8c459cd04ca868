//! `gpumem graphs`: graphs and execs, by call site or one by one. [`text`] prints them.

mod text;

use crate::args::{Target, one_of};
use crate::context::Context;
use crate::failure::Result;
use crate::model::cache::{self, Cache};
use crate::model::execs;
use crate::model::graphs::{self, By, Filter, Group};
use crate::model::rows::{Exec, Graph};
use crate::model::sites::Sites;
use crate::model::{Head, Ledger};
use crate::symbols::Frame;
use crate::view::lazy::Lazy;
use gpumem_wire::counters;
use gpumem_wire::kinds::ExecState;
use gpumem_wire::layout::{ExecSlot, GraphSlot};
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Show graphs and execs: nodes, launches, updates, estimated memory, the graph cache, by call site
#[derive(Clone, Debug, clap::Args)]
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
    /// Show all columns, even on a narrow terminal
    #[arg(long)]
    wide: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    process: Head,
    cache: Cache,
    total: GraphGroupRow,
    counters: BTreeMap<&'static str, u64>,
    groups: Lazy<'a, GraphGroupRow>,
    groups_total: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    graphs: Option<Lazy<'a, GraphRow>>,
    /// Number of graphs, shown or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    graphs_total: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execs: Option<Lazy<'a, ExecRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execs_total: Option<usize>,
}

#[derive(Serialize)]
struct GraphGroupRow {
    key: String,
    #[serde(flatten)]
    group: Group,
    exec_nodes: u64,
    last_launch_age_ns: Option<u64>,
    oldest_age_ns: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct GraphRow {
    #[serde(flatten)]
    graph: Graph,
    execs_live: u64,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

#[derive(Serialize)]
struct ExecRow {
    #[serde(flatten)]
    exec: Exec,
    /// False if the graph that it was instantiated from is gone.
    graph_live: bool,
    site: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let limit = context.rows(self.limit);
        let report = report(self, &ledger, limit);
        context.print(&report, |out, report| text::print(out, report, &ledger, self))
    }
}

fn report<'a>(args: &'a Args, ledger: &'a Ledger, limit: usize) -> Report<'a> {
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
        row(ledger, key.text(ledger, &named), group.clone(), args.stacks || args.by == By::Stack)
    };
    let counted = counters::ALL.iter().filter(|(index, ..)| GRAPH_COUNTERS.contains(index));
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

/// Counters of this view.
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

fn row(ledger: &Ledger, key: String, group: Group, stack: bool) -> GraphGroupRow {
    GraphGroupRow {
        key,
        exec_nodes: group.nodes.iter().sum(),
        last_launch_age_ns: ledger.age_of(group.last_launch_ns),
        oldest_age_ns: if group.graphs + group.execs == 0 { 0 } else { ledger.age(group.oldest_ns) },
        stack: if stack { ledger.frames(group.stack) } else { Vec::new() },
        group,
    }
}

fn graph_rows<'a>(ledger: &'a Ledger, sites: &Rc<Sites>, limit: usize, stacks: bool) -> Lazy<'a, GraphRow> {
    let execs = graphs::execs_by_graph(ledger);
    let mut chosen: Vec<&'a GraphSlot> = ledger.snapshot.graphs.iter().collect();
    chosen.sort_unstable_by_key(|graph| (std::cmp::Reverse(graph.held_bytes()), graph.serial));
    chosen.truncate(limit);
    let sites = Rc::clone(sites);
    let row = move |graph: &GraphSlot| GraphRow {
        graph: Graph::of(ledger, graph),
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
) -> Lazy<'a, ExecRow> {
    let live: std::collections::HashSet<u64> = ledger.snapshot.graphs.iter().map(|graph| graph.serial).collect();
    let mut chosen: Vec<&'a ExecSlot> = ledger.snapshot.execs.iter().filter(|exec| filter.fits(exec)).collect();
    chosen.sort_unstable_by_key(|exec| (std::cmp::Reverse(execs::held(exec).all()), exec.serial));
    chosen.truncate(limit);
    let sites = Rc::clone(sites);
    let row = move |exec: &ExecSlot| ExecRow {
        exec: Exec::of(ledger, exec),
        graph_live: live.contains(&exec.graph_serial),
        site: sites.name(exec.stack).to_string(),
        stack: if stacks { ledger.frames(exec.stack) } else { Vec::new() },
    };
    Lazy::of(chosen, row)
}
