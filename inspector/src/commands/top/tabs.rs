//! The tabs: each shows what the command of that name prints of a ledger, with that command's own table.

use super::look::{Ask, List, Look, RowKey, Tab};
use crate::args::name_of;
use crate::commands::stats::whole::growth_table;
use crate::commands::{allocs, events, graphs, leaks, ps};
use crate::model::allocs::{self as groups, Filter, Group, Sort};
use crate::model::growth::{self, Growth};
use crate::model::history::{Samples, Series, parked_times};
use crate::model::sites::Sites;
use crate::model::suspects::{self, Suspect};
use crate::model::{Ledger, pool, totals};
use crate::report::growth::rate_of;
use crate::report::{self, lines};
use crate::source::find::{self, LedgerFile};
use crate::source::liveness::Status;
use crate::source::world::World;
use crate::text::{count, units};
use crate::view::table::{DIM, Table, WARN, paint};
use crate::view::{painted, spark};
use gpumem_wire::counters as c;
use gpumem_wire::location::Tally;
use gpumem_wire::read::Snapshot;

/// Most rows of a list: no user scrolls through more.
const MOST_ROWS: usize = 5000;
/// Most call stacks in the detail of a group.
const MOST_STACKS: usize = 20;
/// Number of rows whose names are wanted first.
const FIRST: usize = 60;
/// Time that a history covers, and its bars in a row and in a row's detail.
const HISTORY_NS: u64 = 15 * 60_000_000_000;
const BARS: u64 = 15;
const MORE_BARS: u64 = 60;

/// Data kept from one look to the next.
#[derive(Default)]
pub(super) struct Memory {
    /// Counters of the last two looks.
    counts: Option<Counts>,
    before: Option<Counts>,
}

struct Counts {
    at_ns: u64,
    by_index: Vec<u64>,
}

impl Memory {
    fn remember(&mut self, ledger: &Ledger) {
        let at_ns = ledger.status.now_ns;
        if self.counts.as_ref().is_none_or(|counts| counts.at_ns != at_ns) {
            self.before = self.counts.replace(Counts { at_ns, by_index: ledger.snapshot.counters.clone() });
        }
    }

    /// Returns the increase of these counters per second between the last two looks.
    fn per_second(&self, indices: impl Iterator<Item = usize>) -> Option<f64> {
        let (before, now) = (self.before.as_ref()?, self.counts.as_ref()?);
        let seconds = now.at_ns.checked_sub(before.at_ns).filter(|&ns| ns > 0)? as f64 / 1e9;
        let of = |counts: &Counts, index: usize| counts.by_index.get(index).copied().unwrap_or(0);
        let grown = indices.map(|index| of(now, index).saturating_sub(of(before, index)));
        Some(grown.fold(0, u64::saturating_add) as f64 / seconds)
    }

    fn rates(&self) -> Option<String> {
        let allocs = self.per_second(Tally::all_of_memory().map(Tally::allocs))?;
        let frees = self.per_second(Tally::all_of_memory().map(Tally::frees))?;
        let mut line = format!("each second: {allocs:.0} allocations, {frees:.0} frees");
        for (index, what) in [(c::LAUNCHES, "launches"), (c::EXECS_CREATED, "instantiates"), (c::UPDATES, "updates")] {
            let ever = self.counts.as_ref()?.by_index.get(index).is_some_and(|&n| n > 0);
            if let Some(rate) = self.per_second(std::iter::once(index)).filter(|_| ever) {
                line.push_str(&format!(", {rate:.0} {what}"));
            }
        }
        Some(line)
    }
}

/// Returns the list of a table's rows.
fn list<T>(table: Table<T>, rows: impl Iterator<Item = T>, key: impl Fn(&T) -> RowKey, empty: &'static str) -> List {
    let mut keys = Vec::new();
    let rows = rows.take(MOST_ROWS).inspect(|row| keys.push(key(row)));
    let sheet = table.sheet(rows);
    List { sheet, keys, empty, ..List::default() }
}

/// Looks at a ledger.
pub(super) fn look(ledger: &Ledger, ask: &Ask, memory: &mut Memory) -> Look {
    memory.remember(ledger);
    want_largest(ledger);
    let mut look = Look { ask: ask.clone(), ..Look::default() };
    match ask.tab {
        Tab::Overview => overview(ledger, memory, &mut look),
        Tab::Allocations => allocations(ledger, &mut look),
        Tab::Graphs => of_graphs(ledger, &mut look),
        Tab::Events => of_events(ledger, &mut look),
    }
    look.lines.extend(ledger.cut_short().map(|cut| paint(WARN, cut)));
    look.unnamed = ledger.symbols.wanted().len();
    look
}

/// Has the largest call sites named first, if names are put off.
fn want_largest(ledger: &Ledger) {
    let mut stacks = groups::group(ledger, &Filter::default(), groups::By::Stack, false);
    groups::sort(&mut stacks, Sort::Bytes);
    for group in stacks.iter().take(FIRST) {
        let _ = ledger.step(group.stack, 0);
    }
}

/// Growth as `stats` tells it, and below it the call sites as `leaks` judges them.
fn overview(ledger: &Ledger, memory: &Memory, look: &mut Look) {
    let head = crate::model::Head::of(ledger);
    look.lines = painted::lines(|out| {
        lines::head(out, &head, ledger)?;
        allocs::print_live(out, &totals::live(&ledger.snapshot, &ledger.status))?;
        report::pool::print_head(out, &pool::of(ledger))
    });
    look.lines.extend(memory.rates());
    let now_ns = ledger.status.now_ns;
    let grown = growth::growth(ledger).map(|growth| growth.rows).unwrap_or_default();
    let history = move |row: &Growth| bars(&row.series, now_ns, BARS);
    let table = growth_table().left("history", 4, history).kept();
    look.totals = table.sheet(grown.into_iter().filter(|row| row.peak > 0));
    let mut all = suspects::find(ledger, None).all;
    leaks::Summed::take_from(&mut all);
    look.detail = look.ask.detail.as_ref().map(|id| {
        let suspect = all.iter().find(|suspect| suspect_key(suspect).id == *id);
        suspect.map_or_else(gone, |suspect| in_full(ledger, suspect))
    });
    let history = move |suspect: &Suspect| bars(&suspect.series, now_ns, BARS);
    let rate = |suspect: &Suspect| match suspect.count_per_minute.unwrap_or(suspect.bytes_per_minute) {
        0.0 => None,
        rate => Some((rate, rate_of(suspect))),
    };
    let table = leaks::text::table(false).right("per minute", 0, rate).before_last();
    let table = table.left("history", 2, history).kept().before_last();
    look.list = list(table, all.into_iter(), suspect_key, "nothing is live");
}

fn suspect_key(suspect: &Suspect) -> RowKey {
    RowKey { id: format!("{} {}", suspect.kind, suspect.key), ..RowKey::default() }
}

/// Returns all that `gpumem leaks` knows of a suspect, and its history.
fn in_full(ledger: &Ledger, suspect: &Suspect) -> Vec<String> {
    let row = leaks::rows(ledger, true)(suspect.clone());
    let history = bars(&suspect.series, ledger.status.now_ns, MORE_BARS);
    let mut said = vec![format!("history {history}")];
    said.extend(painted::lines(|out| leaks::text::in_full(out, &row, &ledger.status)));
    said
}

fn gone() -> Vec<String> {
    vec!["there is none of it now".into()]
}

/// Returns the last minutes, or the time since the first sample, as bars.
fn bars(series: &Series, now_ns: u64, bars: u64) -> String {
    let from_ns = now_ns.saturating_sub(HISTORY_NS);
    spark::line(&series.at_moments(from_ns, now_ns, bars), bars as usize)
}

fn allocations(ledger: &Ledger, look: &mut Look) {
    let (by, args) = (look.ask.by, allocs::Args::by(look.ask.by));
    let filter = args.selection(None);
    let mut found = groups::group(ledger, &filter, by, false);
    // Not every grouping has a history.
    let _ = suspects::add_growth(ledger, by, None, &mut found);
    let id = look.ask.detail.as_ref();
    let opened = id.and_then(|id| found.iter().find(|group| format!("{:?}", group.key) == *id));
    let stacks = opened.map(|group| stacks(ledger, &filter, by, group)).unwrap_or_default();
    let report = allocs::group_rows(ledger, &filter, &args, found, MOST_ROWS);
    look.lines = painted::lines(|out| allocs::print_head(out, &report, ledger));
    let key = |row: &allocs::GroupRow| RowKey { id: format!("{:?}", row.of), ..RowKey::default() };
    let rows = list(allocs::group_table(&report), report.rows.iter(), key, "nothing is live");
    look.list = List { by: report.by.clone(), left_out: report.rows_total - report.rows.len(), ..rows };
    look.detail = detail(ledger, look).map(|said| [said, stacks].concat());
}

/// Returns the call stacks of a group, as `gpumem allocs --by stack` prints them.
fn stacks(ledger: &Ledger, filter: &Filter, by: groups::By, group: &Group) -> Vec<String> {
    let sites = Sites::of_allocs(ledger);
    let stacks = groups::stacks_of(ledger, &sites, filter, by, &group.key);
    let args = allocs::Args::by(groups::By::Stack);
    let report = allocs::group_rows(ledger, filter, &args, stacks, MOST_STACKS);
    let mut said = vec![String::new()];
    said.extend(painted::lines(|out| allocs::print_groups(out, &report, &args)));
    if let Some(more) = report.rows_total.checked_sub(MOST_STACKS).filter(|&more| more > 0) {
        said.push(format!("{} hold less", count(more as u64, "more call stack")));
    }
    said
}

fn of_graphs(ledger: &Ledger, look: &mut Look) {
    let (by, args) = (name_of(look.ask.graphs_by), graphs::Args::by(look.ask.graphs_by));
    let report = graphs::report(&args, ledger, MOST_ROWS);
    look.lines = painted::lines(|out| graphs::print_head(out, &report, ledger));
    let key = |row: &graphs::GraphGroupRow| RowKey {
        id: format!("{:?}", row.of),
        stack: row.group.stack,
        ..RowKey::default()
    };
    let rows = list(graphs::group_table(&by), report.groups.iter(), key, "no graphs");
    look.list = List { by, left_out: report.groups_total - report.groups.len(), ..rows };
    look.detail = detail(ledger, look);
}

/// Returns the row shown in detail: all its columns, and its call stack.
fn detail(ledger: &Ledger, look: &Look) -> Option<Vec<String>> {
    let id = look.ask.detail.as_ref()?;
    let Some(row) = look.list.keys.iter().position(|key| key.id == *id) else { return Some(gone()) };
    let mut said = look.list.sheet.values(row);
    said.extend(lines::stack(&ledger.frames(look.list.keys[row].stack)));
    Some(said)
}

fn of_events(ledger: &Ledger, look: &mut Look) {
    let report = events::Args::default().report(ledger, MOST_ROWS, true);
    look.lines = painted::lines(|out| lines::head(out, &crate::model::Head::of(ledger), ledger));
    if report.events_lost > 0 {
        let lost = units::number(report.events_lost);
        look.lines.push(paint(DIM, format!("{lost} older events are no longer kept: GPUMEM_EVENTS")));
    }
    let mut rows: Vec<_> = report.events.iter().collect();
    rows.reverse();
    let key = |row: &events::EventRow| RowKey { id: row.seq.to_string(), stack: row.stack, ..RowKey::default() };
    let opened = look.ask.detail.as_ref().and_then(|id| rows.iter().find(|event| event.seq.to_string() == *id));
    let context = opened.map(|event| event.context).filter(|&context| context > 0);
    let context = context.map(|context| format!("context {context} on {}", ledger.device(context)));
    look.list = list(events::event_table(ledger), rows.into_iter(), key, "no events");
    look.detail = detail(ledger, look).map(|said| context.into_iter().chain(said).collect());
}

/// Looks at all processes, as `gpumem ps` lists them.
pub(super) fn processes(world: &World, ask: &Ask) -> Look {
    let survey = find::survey(world);
    let running = survey.found.iter().filter(|found| found.is_live()).count() as u64;
    let mut lines = vec![format!("{} with libgpumem.so", count(running, "process"))];
    lines.extend(survey.warnings.iter().map(|warning| paint(WARN, crate::text::clean(warning))));
    let found = survey.found.iter().filter(|found| !found.is_unreadable_and_dead());
    let rows = found.map(|found| {
        let mut row = ps::row(world, found);
        if let LedgerFile::Ledger { summary, status, .. } = &found.what {
            row.growing = Some(growing(summary, status));
        }
        row
    });
    let key = |row: &ps::Row| {
        let id = row.ledger.as_ref().map_or_else(|| row.pid.to_string(), |path| path.display().to_string());
        RowKey { id, ledger: row.ledger.clone(), ..RowKey::default() }
    };
    let rate = |row: &ps::Row| {
        let rate = row.growing.as_ref().map(|growing| growing.0).filter(|rate| *rate != 0.0)?;
        Some((rate, report::growth::rate(rate)))
    };
    let history = |row: &ps::Row| row.growing.as_ref().map(|growing| growing.1.clone()).unwrap_or_default();
    let table = ps::table().right("per minute", 0, rate).left("history", 8, history).kept();
    let empty = "no process with libgpumem.so; start one with: gpumem run -- COMMAND";
    Look { ask: ask.clone(), lines, list: list(table, rows, key, empty), ..Look::default() }
}

/// Returns the growth of all memory that a process holds, per minute, and its history.
pub(super) fn growing(summary: &Snapshot, status: &Status) -> (f64, String) {
    let series = growth::series(&summary.samples, growth::held_bytes, false);
    let samples = Samples::without_gaps(&series.points, parked_times(summary, status));
    (series.per_minute(&samples), bars(&series, status.now_ns, BARS))
}
