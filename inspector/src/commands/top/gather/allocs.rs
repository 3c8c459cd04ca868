//! Live allocations in groups, and one group in detail.

use super::super::look::{ALLOCATIONS, Cell, PLAIN, Row, Sheet, WARN};
use super::{View, cut, frames};
use crate::args::name_of;
use crate::model::Ledger;
use crate::model::allocs::{self, By, Filter, Group, Sort};
use crate::model::history::{self, Samples, Series};
use crate::model::key::GroupKey;
use crate::model::sites::Sites;
use crate::model::verdict::Verdict;
use crate::text::{count, units};
use rustc_hash::FxHashSet;
use std::cmp::Ordering;

/// Call stacks of one group that are shown, and frames of each.
const MOST_STACKS: usize = 20;
/// Number of rows whose names are wanted first.
const FIRST: usize = 60;
/// Time that a line of bars covers.
pub(super) const HISTORY_NS: u64 = 15 * 60_000_000_000;
pub(super) const MOMENTS: u64 = 60;

/// Returns the names of call sites. If names are put off, the largest sites are wanted first.
pub(super) fn sites(ledger: &Ledger) -> Sites {
    let mut stacks = allocs::group_named(ledger, &Sites::default(), &Filter::default(), By::Stack, false);
    allocs::sort(&mut stacks, Sort::Bytes);
    for group in stacks.iter().take(FIRST) {
        let _ = ledger.step(group.stack, 0);
    }
    Sites::of_allocs(ledger)
}

fn filter(by: By) -> Filter {
    Filter { all_kinds: by == By::Kind, ..Filter::default() }
}

/// Returns the table of groups.
pub(super) fn sheet(view: &View, by: By) -> Sheet {
    let mut groups = allocs::group_named(view.ledger, &view.sites, &filter(by), by, false);
    let baseline = view.memory.baseline().map(|baseline| baseline.allocs(by, &view.sites));
    let change = |group: &Group| {
        let before = baseline.as_ref().map(|before| before.get(&group.key).copied().unwrap_or_default());
        let [bytes, live] = [0, 1].map(|at| before.map(|before| before[at]));
        (Cell::bytes(group.bytes, bytes), Cell::count(group.live, live))
    };
    if let Some(baseline) = &baseline {
        // Groups of the baseline that have no live memory any more.
        let there: FxHashSet<GroupKey> = groups.iter().map(|group| group.key.clone()).collect();
        let gone = baseline.keys().filter(|key| !there.contains(key));
        groups.extend(gone.map(|key| Group { key: key.clone(), ..Group::empty(0) }));
        let weight = |group: &Group| change(group).0.weight();
        groups.sort_by(|a, b| weight(b).partial_cmp(&weight(a)).unwrap_or(Ordering::Equal));
    } else {
        allocs::sort(&mut groups, Sort::Bytes);
    }
    let left_out = cut(&mut groups);
    let samples = Samples::of(view.ledger);
    let held = history::of_groups(view.ledger, &samples, by, &view.sites);
    let rows = groups.iter().map(|group| row(view, group, change(group), over_time(held.get(&group.key), &samples)));
    Sheet { columns: ALLOCATIONS, of: name_of(by), rows: rows.collect(), left_out, empty: "nothing is live" }
}

fn row(view: &View, group: &Group, (bytes, live): (Cell, Cell), [rate, bars]: [Cell; 2]) -> Row {
    let verdict = verdict(view, &group.key);
    let grows = verdict == Some(Verdict::GrowsSteadily);
    let cells = vec![
        Cell::text(if grows { "▲" } else { "" }),
        bytes,
        live,
        if group.live == 0 { Cell::Empty } else { Cell::Age(view.ledger.age(group.oldest_ns)) },
        rate,
        verdict.map_or(Cell::Empty, |verdict| Cell::text(verdict.short())),
        bars,
    ];
    view.row(&view.sites, &group.key, cells).style(if grows { WARN } else { PLAIN })
}

fn verdict(view: &View, key: &GroupKey) -> Option<Verdict> {
    if let GroupKey::Site(site) = key { view.memory.verdict(site) } else { None }
}

/// Returns the rate of a series, and its bars.
pub(super) fn over_time(held: Option<&Series>, samples: &Samples) -> [Cell; 2] {
    held.map_or([Cell::Empty, Cell::Empty], |held| {
        [Cell::BytesRate(held.per_minute(samples)), Cell::Bars(bars(held, samples))]
    })
}

/// Returns the memory held over time.
pub(super) fn bars(held: &Series, samples: &Samples) -> Vec<u64> {
    let Some(last) = samples.points.last() else { return Vec::new() };
    let from = samples.points.first().map_or(0, |first| first.time_ns.max(last.time_ns.saturating_sub(HISTORY_NS)));
    held.at_moments(from, last.time_ns, MOMENTS)
}

/// Returns one group in detail: its numbers and its call stacks.
pub(super) fn detail(view: &View, id: &str) -> Vec<String> {
    let by = if view.ask.tab == super::Tab::Overview { By::Site } else { view.ask.by };
    let groups = allocs::group_named(view.ledger, &view.sites, &filter(by), by, false);
    let Some(group) = groups.iter().find(|group| view.id(&view.sites, &group.key) == id) else {
        return vec![id.to_owned(), String::new(), "nothing is live here now".into()];
    };
    let stacks = allocs::stacks_of(view.ledger, &view.sites, &filter(by), by, &group.key);
    let mut lines = vec![group.key.text(view.ledger, &view.sites), String::new()];
    lines.extend(numbers(view, group, by));
    for stack in stacks.iter().take(MOST_STACKS) {
        let held = format!("{} in {}", units::bytes(stack.bytes), count(stack.live, "allocation"));
        lines.extend([String::new(), held]);
        let frames = frames(view.ledger, stack.stack);
        if frames.is_empty() {
            lines.push("  no call stack was recorded".into());
        }
        lines.extend(frames);
    }
    if let Some(more) = stacks.len().checked_sub(MOST_STACKS).filter(|&more| more > 0) {
        lines.extend([String::new(), format!("{} hold less", count(more as u64, "more call stack"))]);
    }
    lines
}

fn numbers(view: &View, group: &Group, by: By) -> Vec<String> {
    let age = |ns| units::span(view.ledger.age(ns));
    let mut lines = vec![
        format!("live     {} in {}", units::bytes(group.bytes), count(group.live, "allocation")),
        format!("age      {} to {}", age(group.newest_ns), age(group.oldest_ns)),
    ];
    if let Some((times, bytes)) = group.total {
        lines.push(format!("ever     {} in {}", units::bytes(bytes), count(times, "allocation")));
    }
    if group.spilled_bytes > 0 {
        lines.push(format!("spilled  {} lie outside of the device's memory", units::bytes(group.spilled_bytes)));
    }
    let samples = Samples::of(view.ledger);
    if let Some(held) = history::of_groups(view.ledger, &samples, by, &view.sites).get(&group.key) {
        let rate = crate::report::growth::rate(held.per_minute(&samples));
        let verdict = verdict(view, &group.key).map(|verdict| format!(": {}", verdict.words()));
        lines.push(format!("grows by {rate}{}", verdict.unwrap_or_default()));
        lines.push(format!("history  {}", crate::view::spark::line(&bars(held, &samples), MOMENTS as usize)));
    }
    lines
}
