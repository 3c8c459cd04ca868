//! All processes with the shim, and ledgers of dead ones.

use super::super::look::{Ask, BAD, Cell, DIM, Head, Look, PLAIN, PROCESSES, Row, Sheet};
use super::allocs::over_time;
use crate::model::growth;
use crate::model::history::{Samples, parked_times};
use crate::model::totals;
use crate::source::find::{self, FoundProcess, LedgerFile};
use crate::source::liveness::{Life, Status};
use crate::source::world::World;
use crate::text::{self, count};
use gpumem_wire::counters;
use gpumem_wire::read::Snapshot;

/// Longest name of a process in the table.
const NAME: usize = 20;

/// Looks at all processes.
pub(in super::super) fn processes(world: &World, ask: &Ask) -> Look {
    let survey = find::survey(world);
    let rows: Vec<Row> = survey.found.iter().filter(|found| !found.is_unreadable_and_dead()).map(row).collect();
    let running = survey.found.iter().filter(|found| found.is_live()).count() as u64;
    let head = Head { status: format!("{} with libgpumem.so", count(running, "process")), ..Head::default() };
    let empty = "no process with libgpumem.so; start one with: gpumem run -- COMMAND";
    let list = Sheet { columns: PROCESSES, rows, empty, ..Sheet::default() };
    Look { list, ..Look::new(ask, head, survey.warnings) }
}

fn row(found: &FoundProcess) -> Row {
    let name = text::shorten(&found.name(), NAME).into_owned();
    let id = found.path().map_or_else(|| found.pid.to_string(), |path| path.display().to_string());
    let pid = Cell::text(found.pid.to_string());
    let row = match &found.what {
        LedgerFile::Ledger { summary, status, .. } => {
            let word = if status.life == Life::Elsewhere { "running".into() } else { status.short() };
            let style = if status.running() { PLAIN } else { DIM };
            let mut cells = vec![pid, Cell::text(name), Cell::text(word)];
            cells.extend(numbers(summary, status));
            Row::new(id, cells).style(style)
        }
        LedgerFile::Unreadable { .. } => Row::new(id, vec![pid, Cell::text(name), Cell::text("unreadable")]).style(BAD),
        LedgerFile::NoLedger { .. } => Row::new(id, vec![pid, Cell::text(name), Cell::text("no GPU call")]).style(DIM),
    };
    Row { ledger: found.status().and(found.path()).map(Into::into), ..row }
}

fn numbers(summary: &Snapshot, status: &Status) -> Vec<Cell> {
    let live = totals::live(summary, status);
    let graphs = summary.counter(counters::GRAPHS_CREATED).saturating_sub(summary.counter(counters::GRAPHS_DESTROYED));
    let series = growth::series(&summary.samples, |sample| sample.device_live, false);
    let samples = Samples::without_gaps(&series.points, parked_times(summary, status));
    let [rate, bars] = over_time(Some(&series), &samples);
    let rss = summary.samples.last().map_or(Cell::Empty, |sample| Cell::Bytes(sample.rss));
    vec![
        Cell::Bytes(live.device),
        Cell::Bytes(live.managed),
        Cell::Bytes(live.host),
        Cell::Count(live.count),
        Cell::Count(graphs),
        rss,
        rate,
        bars,
    ]
}
