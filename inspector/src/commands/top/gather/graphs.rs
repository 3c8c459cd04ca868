//! Graphs and execs in groups, and the work of the graph cache.

use super::super::look::{Cell, GRAPHS, Look, NUMBERS, Row, Sheet};
use super::View;
use super::allocs::bars;
use super::memory::held;
use super::overview::{counted, gathered, numbers, totals};
use crate::args::name_of;
use crate::commands::graphs::key_text;
use crate::model::graphs::{self, Filter, Group, Key};
use crate::model::history::{self, Samples, Series};
use crate::model::sites::Sites;
use crate::report;
use crate::text::{count, units};
use gpumem_wire::counters as c;

/// Most rows: the largest are shown, since no user scrolls through more.
const MOST_ROWS: usize = 5000;

/// Work of the cache, by counter.
const DID: &[(&str, usize)] = &[
    ("launches", c::LAUNCHES),
    ("retargets", c::RETARGETS),
    ("real instantiates", c::REAL_EXECS_MADE),
    ("evictions", c::EVICTIONS),
];

/// Fills the tab.
pub(super) fn fill(view: &View, look: &mut Look) {
    let sites = Sites::of_graphs(view.ledger);
    let overview = gathered(view.ledger);
    look.lines = report::cache::lines(&overview.cache);
    let is_of_graphs = |name: &str| ["graphs", "execs", "graphs' host memory ~"].contains(&name);
    let mut rows = numbers(view, totals(view.ledger, &overview), is_of_graphs);
    rows.extend(DID.iter().filter_map(|&(name, index)| counted(view, name, index)));
    look.numbers = Sheet { columns: NUMBERS, rows, ..Sheet::default() };
    look.list = sheet(view, &sites);
    look.detail = view.ask.detail.as_ref().map(|id| detail(view, &sites, id));
}

fn groups(view: &View) -> Vec<(Key, Group)> {
    graphs::group(view.ledger, &Filter::default(), view.ask.graphs_by)
}

fn id(view: &View, sites: &Sites, key: &Key) -> String {
    match key {
        Key::Stack(stack) => format!("stack {stack}"),
        _ => key_text(view.ledger, sites, key),
    }
}

fn sheet(view: &View, sites: &Sites) -> Sheet {
    let by = view.ask.graphs_by;
    let mut groups = groups(view);
    let left_out = groups.len().saturating_sub(MOST_ROWS);
    groups.truncate(MOST_ROWS);
    let samples = Samples::of(view.ledger);
    let history = history::of_graphs(view.ledger, &samples, by, sites);
    let baseline = view.memory.baseline().map(|baseline| baseline.graphs(by, sites));
    let rows = groups.iter().map(|(key, group)| {
        let before = baseline.as_ref().map(|before| before.get(key).copied().unwrap_or_default());
        let cells = row(view, group, before, history.get(key), &samples);
        let name = Cell::text(key_text(view.ledger, sites, key));
        Row::new(id(view, sites, key), cells.into_iter().chain([name]).collect())
    });
    Sheet { columns: GRAPHS, of: name_of(by), rows: rows.collect(), left_out, empty: "no graphs" }
}

fn row(view: &View, group: &Group, before: Option<[u64; 4]>, series: Option<&Series>, samples: &Samples) -> Vec<Cell> {
    let [execs, graphs, device, host] = held(group);
    let was = |at: usize| before.map(|before| before[at]);
    let ago = match group.last_launch_ns {
        0 => Cell::Empty,
        then => Cell::Age(view.ledger.age(then)),
    };
    vec![
        Cell::count(execs, was(0)),
        Cell::count(graphs, was(1)),
        Cell::bytes(device, was(2)),
        Cell::bytes(host, was(3)),
        Cell::Count(group.launches),
        series.map_or(Cell::Empty, |series| Cell::BytesRate(series.per_minute(samples))),
        ago,
        series.map_or(Cell::Empty, |series| Cell::Bars(bars(series, samples))),
    ]
}

/// Returns one group in detail: its numbers and its origin.
fn detail(view: &View, sites: &Sites, wanted: &str) -> Vec<String> {
    let groups = groups(view);
    let Some((key, group)) = groups.iter().find(|(key, _)| id(view, sites, key) == wanted) else {
        return vec![wanted.to_owned(), String::new(), "there is none of it now".into()];
    };
    let bytes = units::bytes;
    let mut lines = vec![
        key_text(view.ledger, sites, key),
        String::new(),
        format!("live       {}, {}", count(group.execs, "exec"), count(group.graphs, "graph")),
        format!("memory     ~{} of the device, ~{} of the host", bytes(group.device_bytes), bytes(group.host_bytes)),
        format!("launches   {}, {} found their exec ready", units::number(group.launches), units::number(group.hits)),
        format!("updates    {}, {} refused", units::number(group.updates), units::number(group.failed_updates)),
        format!("execs are  {} resident, {} folded, {} gone", group.resident, group.folded, group.gone),
        format!(
            "lost       {} of their execs, {} retargets",
            units::number(group.evictions),
            units::number(group.retargets)
        ),
    ];
    lines.extend(group.pinned.iter().map(|(why, execs)| format!("native     {}: {why}", count(*execs, "exec"))));
    if group.stack != 0 {
        lines.extend([String::new(), "made here, the first of them:".into()]);
        lines.extend(view.ledger.frames(group.stack).iter().map(|frame| format!("  {}", frame.text())));
    }
    lines
}
