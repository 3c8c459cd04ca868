//! Totals and their growth; below them the largest call sites.

use super::super::look::{Cell, Look, NUMBERS, Row, Sheet};
use super::View;
use super::allocs::{bars, sheet};
use super::memory::{DEVICE_LIVE, TOTALS, Total, gathered, totals};
use crate::model::allocs::By;
use crate::model::growth;
use crate::model::history::Samples;
use crate::model::overview::Overview;
use gpumem_wire::counters as c;
use gpumem_wire::location::Tally;
use gpumem_wire::read::Snapshot;

/// Fills the tab.
pub(super) fn fill(view: &View, look: &mut Look) {
    look.lines = rates(view).into_iter().collect();
    look.numbers = numbers(view, &gathered(view.ledger), |_| true, &[]);
    look.list = sheet(view, By::Site);
}

/// Returns the wanted totals that samples have, and the counters that are not 0.
pub(super) fn numbers(
    view: &View,
    overview: &Overview,
    wanted: impl Fn(&str) -> bool,
    counters: &[(&'static str, usize)],
) -> Sheet {
    let snapshot = &view.ledger.snapshot;
    let mut now = totals(view.ledger, overview);
    let running = view.ledger.process.as_ref().filter(|_| view.ledger.status.running());
    if let Some(resident) = running.and_then(|process| process.resident(view.world)) {
        now.insert("resident memory", resident.rss);
    }
    let row = |&Total(name, is_bytes, sampled, ..): &Total| {
        let (taken, parked) = growth::taken_running(view.ledger);
        let series = growth::series(&taken, sampled, true);
        let value = now.get(name).copied().unwrap_or(0);
        let sampled = series.points.iter().map(|point| point.bytes).max().unwrap_or(0);
        let peak = sampled.max(value).max(if name == DEVICE_LIVE { peak_of_a_context(snapshot) } else { 0 });
        let samples = Samples::without_gaps(&series.points, parked);
        let before = view.memory.baseline().map(|baseline| baseline.numbers.get(name).copied().unwrap_or(0));
        let rate = series.per_minute(&samples);
        let [value, peak, rate] = match is_bytes {
            true => [Cell::bytes(value, before), Cell::Bytes(peak), Cell::BytesRate(rate)],
            false => [Cell::count(value, before), Cell::Count(peak), Cell::CountRate(rate)],
        };
        Row::new(name, vec![Cell::text(name), value, peak, rate, Cell::Bars(bars(&series, &samples))])
    };
    let says = |row: &Row| row.id == DEVICE_LIVE || row.cells[2].weight() != Some(0.0);
    let totals = TOTALS.iter().filter(|total| wanted(total.0)).map(row).filter(says);
    let counted = counters.iter().filter_map(|&(name, index)| counted(view, name, index));
    Sheet { columns: NUMBERS, rows: totals.chain(counted).collect(), ..Sheet::default() }
}

/// Returns the highest peak of live memory in one context, which usually lies between samples. Several contexts had
/// their peaks at different times.
fn peak_of_a_context(snapshot: &Snapshot) -> u64 {
    snapshot.contexts.values().map(|context| context.peak_bytes).max().unwrap_or(0)
}

/// Returns the rates per second.
fn rates(view: &View) -> Option<String> {
    let per_second = |indices: &[usize]| view.memory.per_second(indices);
    let allocs = per_second(&of_rows(Tally::allocs))?;
    let frees = per_second(&of_rows(Tally::frees))?;
    let mut line = format!("each second: {allocs:.0} allocations, {frees:.0} frees");
    for (index, what) in [(c::LAUNCHES, "launches"), (c::EXECS_CREATED, "instantiates"), (c::UPDATES, "updates")] {
        let rate = per_second(&[index])?;
        if view.ledger.snapshot.counter(index) > 0 {
            line.push_str(&format!(", {rate:.0} {what}"));
        }
    }
    Some(line)
}

/// Returns the counters of all kinds that take memory.
fn of_rows(of: fn(Tally) -> usize) -> Vec<usize> {
    Tally::all_of_memory().map(of).collect()
}

/// Returns a counter's value and rate; `None` if it is 0.
fn counted(view: &View, name: &'static str, index: usize) -> Option<Row> {
    let now = Some(view.ledger.snapshot.counter(index)).filter(|&now| now > 0)?;
    let before = view.memory.baseline().map(|baseline| baseline.counter(index));
    let rate = view.memory.per_second(&[index]).map_or(Cell::Empty, |rate| Cell::CountRate(rate * 60.0));
    Some(Row::new(name, vec![Cell::text(name), Cell::count(now, before), Cell::Empty, rate, Cell::Empty]))
}
