//! Live allocations in groups, and one group in detail.

use super::super::look::{ALLOCATIONS, Cell, Row, Sheet, Tone};
use super::View;
use crate::args::name_of;
use crate::commands::allocs::key_text;
use crate::model::Ledger;
use crate::model::allocs::{self, By, Filter, Group, Key, Sort};
use crate::model::history::{self, Samples, Series};
use crate::model::sites::Sites;
use crate::model::verdict::Verdict;
use crate::text::{count, units};
use rustc_hash::FxHashMap;

/// Most rows: the largest are shown, since no user scrolls through more.
const MOST_ROWS: usize = 5000;
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
    let baseline = view.memory.baseline().map(|baseline| baseline.groups(by, &view.sites));
    let change = |group: &Group| {
        let before = baseline.as_ref().map(|before| before.get(&group.key).copied().unwrap_or_default());
        (
            Cell::bytes(group.bytes, before.map(|before| before.0)),
            Cell::count(group.live, before.map(|before| before.1)),
        )
    };
    if let Some(baseline) = &baseline {
        gone(baseline, &mut groups);
        groups.sort_by(|a, b| {
            change(b).0.weight().partial_cmp(&change(a).0.weight()).unwrap_or(std::cmp::Ordering::Equal)
        });
    } else {
        allocs::sort(&mut groups, Sort::Bytes);
    }
    let left_out = groups.len().saturating_sub(MOST_ROWS);
    groups.truncate(MOST_ROWS);
    let samples = Samples::of(view.ledger);
    let held = history::of_groups(view.ledger, &samples, by, &view.sites);
    let rows = groups.iter().map(|group| row(view, group, change(group), &samples, held.get(&group.key)));
    Sheet { columns: ALLOCATIONS, of: name_of(by), rows: rows.collect(), left_out, empty: "nothing is live" }
}

/// Adds groups of the baseline that have no live memory any more.
fn gone(baseline: &FxHashMap<Key, (u64, u64)>, groups: &mut Vec<Group>) {
    let there: rustc_hash::FxHashSet<Key> = groups.iter().map(|group| group.key.clone()).collect();
    let gone = baseline.keys().filter(|key| !there.contains(key));
    groups.extend(gone.map(|key| Group { key: key.clone(), ..Group::empty(0) }));
}

fn row(view: &View, group: &Group, (bytes, live): (Cell, Cell), samples: &Samples, held: Option<&Series>) -> Row {
    let name = key_text(view.ledger, &view.sites, &group.key);
    let verdict = match &group.key {
        Key::Site(site) => view.memory.verdict(site),
        _ => None,
    };
    let grows = verdict == Some(Verdict::GrowsSteadily);
    let cells = vec![
        Cell::text(if grows { "▲" } else { "" }),
        bytes,
        live,
        if group.live == 0 { Cell::Empty } else { Cell::Age(view.ledger.age(group.oldest_ns)) },
        held.map_or(Cell::Empty, |held| Cell::BytesRate(held.per_minute(samples))),
        verdict.map_or(Cell::Empty, |verdict| Cell::text(verdict.short())),
        held.map_or(Cell::Empty, |held| Cell::Bars(bars(held, samples))),
        Cell::text(name.clone()),
    ];
    let id = match group.key {
        Key::Stack(stack) => format!("stack {stack}"),
        _ => name,
    };
    Row::new(id, cells).tone(if grows { Tone::Warn } else { Tone::Plain })
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
    let is_it = |group: &&Group| match group.key {
        Key::Stack(stack) => format!("stack {stack}") == id,
        _ => key_text(view.ledger, &view.sites, &group.key) == id,
    };
    let Some(group) = groups.iter().find(is_it) else {
        return vec![id.to_owned(), String::new(), "nothing is live here now".into()];
    };
    let stacks = allocs::stacks_of(view.ledger, &view.sites, &filter(by), by, &group.key);
    let mut lines = vec![key_text(view.ledger, &view.sites, &group.key), String::new()];
    lines.extend(numbers(view, group, by));
    for stack in stacks.iter().take(MOST_STACKS) {
        let held = format!("{} in {}", units::bytes(stack.bytes), count(stack.live, "allocation"));
        lines.extend([String::new(), held]);
        let frames = view.ledger.frames(stack.stack);
        if frames.is_empty() {
            lines.push("  no call stack was recorded".into());
        }
        lines.extend(frames.iter().map(|frame| format!("  {}", frame.text())));
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
        let verdict = match &group.key {
            Key::Site(site) => view.memory.verdict(site).map(|verdict| format!(": {}", verdict.words())),
            _ => None,
        };
        lines.push(format!("grows by {rate}{}", verdict.unwrap_or_default()));
        lines.push(format!("history  {}", crate::view::spark::line(&bars(held, &samples), MOMENTS as usize)));
    }
    lines
}
