//! Graphs and execs in groups, and the work of the graph cache.

use super::super::look::{Cell, GRAPHS, Look, Sheet};
use super::allocs::over_time;
use super::memory::gathered;
use super::memory::held;
use super::overview::numbers;
use super::{View, cut, frames};
use crate::args::name_of;
use crate::model::graphs::{self, Filter, Group};
use crate::model::history::{self, Samples};
use crate::model::key::GroupKey;
use crate::model::sites::Sites;
use crate::report;
use crate::text::{count, units};
use gpumem_wire::counters as c;

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
    look.numbers = numbers(view, &overview, is_of_graphs, DID);
    look.list = sheet(view, &sites);
    look.detail = view.ask.detail.as_ref().map(|id| detail(view, &sites, id));
}

fn groups(view: &View) -> Vec<(GroupKey, Group)> {
    graphs::group(view.ledger, &Filter::default(), view.ask.graphs_by)
}

fn sheet(view: &View, sites: &Sites) -> Sheet {
    let by = view.ask.graphs_by;
    let mut groups = groups(view);
    let left_out = cut(&mut groups);
    let samples = Samples::of(view.ledger);
    let history = history::of_graphs(view.ledger, &samples, by, sites);
    let baseline = view.memory.baseline().map(|baseline| baseline.graphs(by, sites));
    let rows = groups.iter().map(|(key, group)| {
        let before = baseline.as_ref().map(|before| before.get(key).copied().unwrap_or_default());
        let was = [0, 1, 2, 3].map(|at| before.map(|before| before[at]));
        view.row(sites, key, cells(view, group, was, over_time(history.get(key), &samples)))
    });
    Sheet { columns: GRAPHS, of: name_of(by), rows: rows.collect(), left_out, empty: "no graphs" }
}

fn cells(view: &View, group: &Group, was: [Option<u64>; 4], [rate, bars]: [Cell; 2]) -> Vec<Cell> {
    let [execs, graphs, device, host] = held(group);
    vec![
        Cell::count(execs, was[0]),
        Cell::count(graphs, was[1]),
        Cell::bytes(device, was[2]),
        Cell::bytes(host, was[3]),
        Cell::Count(group.launches),
        rate,
        view.ledger.age_of(group.last_launch_ns).map_or(Cell::Empty, Cell::Age),
        bars,
    ]
}

/// Returns one group in detail: its numbers and its origin.
fn detail(view: &View, sites: &Sites, wanted: &str) -> Vec<String> {
    let groups = groups(view);
    let Some((key, group)) = groups.iter().find(|(key, _)| view.id(sites, key) == wanted) else {
        return vec![wanted.to_owned(), String::new(), "there is none of it now".into()];
    };
    let bytes = units::bytes;
    let mut lines = vec![
        key.text(view.ledger, sites),
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
        lines.extend(frames(view.ledger, group.stack));
    }
    lines
}
