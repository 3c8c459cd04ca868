//! `gpumem ps`: processes with the shim, and ledgers of dead ones.

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::totals::{self, Live};
use crate::source::find::{self, FoundProcess, LedgerFile};
use crate::source::liveness::Life;
use crate::source::world::{START, World};
use crate::text::{self, units};
use crate::view::table::{BAD, DIM, GOOD, Table, WARN};
use gpumem_wire::counters;
use gpumem_wire::kinds::{Interception, Mode};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// List processes with libgpumem.so, and the ledgers of those that have ended
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only list running processes
    #[arg(long)]
    live: bool,
    /// Show all columns, even on a narrow terminal, and each process that made no GPU call
    #[arg(long)]
    wide: bool,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<Row>,
    warnings: Vec<String>,
}

#[derive(Default, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    name: String,
    uid: Option<u32>,
    status: ShownStatus,
    status_text: String,
    /// The status for a column.
    #[serde(skip)]
    status_short: String,
    ago_ns: u64,
    interception: &'static str,
    mode: &'static str,
    live: Live,
    graphs: u64,
    execs: u64,
    rss_bytes: Option<u64>,
    #[serde(serialize_with = "crate::text::serialize_maybe_path")]
    pub(super) ledger: Option<PathBuf>,
    /// In `top`: the growth of all memory that it holds, per minute, and its history.
    #[serde(skip)]
    pub(super) growing: Option<(f64, String)>,
    /// True for a dead process whose ledger needs another version of gpumem.
    #[serde(skip)]
    of_other_version: bool,
}

/// Status of a process, as JSON names it.
#[derive(Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ShownStatus {
    /// The shim is mapped, the driver is not.
    NoGpuCall,
    /// The driver is mapped too, and nothing was recorded.
    Unseen,
    #[default]
    Unreadable,
    #[serde(untagged)]
    Of(Life),
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// `Code::Nothing` if there is nothing to list.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let survey = find::survey(&context.world);
        let is_over = |found: &FoundProcess| found.status().is_some_and(|status| status.life.is_over());
        let is_shown = |found: &&FoundProcess| !self.live || !found.is_unreadable_and_dead() && !is_over(found);
        let processes = survey.found.iter().filter(is_shown).map(|found| row(&context.world, found)).collect();
        let left_out = !survey.found.is_empty();
        let report = Report { processes, warnings: survey.warnings };
        let none = report.processes.is_empty();
        if let Some(failure) = context.world.without_proc().filter(|_| none && !context.global.json) {
            return Err(failure);
        }
        for warning in &report.warnings {
            tracing::warn!("{warning}");
        }
        if !none || context.global.json {
            context.print(&report, |out, report| print(out, report, self.wide))?;
        }
        match (none, left_out) {
            (false, _) => Ok(()),
            (true, true) => Err(Failure::nothing("no process with libgpumem.so is running").fix(START)),
            (true, false) => Err(context.world.nothing_found()),
        }
    }
}

/// Returns the row of a process.
pub(super) fn row(world: &World, found: &FoundProcess) -> Row {
    let resident = found.running().and_then(|process| process.resident(world));
    let mut row = Row {
        pid: found.pid,
        name: found.name(),
        uid: found.running().map(|process| process.uid),
        rss_bytes: resident.map(|resident| resident.rss),
        ledger: found.path().map(Into::into),
        of_other_version: found.is_dead_of_other_version(),
        ..Row::default()
    };
    match &found.what {
        LedgerFile::Unreadable { why, .. } => row.status_text = why.what.clone(),
        LedgerFile::NoLedger { mapped, .. } if mapped.driver => {
            row.status = ShownStatus::Unseen;
            row.status_text = "the driver is loaded, no call was recorded".into();
            row.interception = Interception::None.name();
        }
        LedgerFile::NoLedger { .. } => {
            row.status = ShownStatus::NoGpuCall;
            row.status_text = "no GPU call yet".into();
        }
        LedgerFile::Ledger { summary, status, .. } => {
            let header = &summary.header;
            let balance = |made, gone| summary.counter(made).saturating_sub(summary.counter(gone));
            row.status = ShownStatus::Of(status.life);
            let cut = if summary.cut.is_some() { ", cut short" } else { "" };
            row.status_text = format!("{}{cut}", status.text());
            row.status_short = format!("{}{cut}", status.short());
            row.ago_ns = status.ago_ns;
            row.uid = Some(header.uid);
            row.interception = Interception::name_of(header.interception);
            row.mode = Mode::name_of(header.mode);
            row.live = totals::live(summary, status);
            row.graphs = balance(counters::GRAPHS_CREATED, counters::GRAPHS_DESTROYED);
            row.execs = balance(counters::EXECS_CREATED, counters::EXECS_DESTROYED);
            row.rss_bytes = row.rss_bytes.or(summary.samples.last().map(|sample| sample.rss));
        }
    }
    row
}

/// Returns the state of a process, for a column. The reason why one cannot be read is below the table.
fn status(row: &Row) -> String {
    match row {
        Row { status: ShownStatus::Unreadable, .. } => "unreadable".into(),
        Row { status_short, .. } if status_short.is_empty() => row.status_text.clone(),
        Row { status_short, .. } => status_short.clone(),
    }
}

/// Returns the table of processes.
pub(super) fn table<'a>() -> Table<'a, Row> {
    let known = |row: &Row, n: u64| Some(n).filter(|_| row.ledger.is_some() && row.status != ShownStatus::Unreadable);
    let style = |row: &Row| match row.status {
        ShownStatus::Of(Life::Running | Life::BeingParked | Life::Elsewhere) => GOOD,
        ShownStatus::Unreadable => BAD,
        ShownStatus::NoGpuCall => DIM,
        _ => WARN,
    };
    let complete = |row: &Row| if row.interception == Interception::Complete.name() { GOOD } else { WARN };
    Table::<Row>::new()
        .some("pid", 0, |row| Some(row.pid.into()), |pid| pid.to_string())
        .text("name", 0, |row| &row.name)
        .left("status", 0, move |row| (status(row), style(row)))
        .kept()
        .left("intercepted", 5, move |row| (row.interception.to_owned(), complete(row)))
        .left("mode", 2, |row| row.mode)
        .some("device", 0, move |row| known(row, row.live.device), units::bytes)
        .some("managed", 1, move |row| known(row, row.live.managed), units::bytes)
        .some("host", 4, move |row| known(row, row.live.host), units::bytes)
        .some("allocs", 0, move |row| known(row, row.live.count), units::number)
        .some("graphs", 6, move |row| known(row, row.graphs), units::number)
        .some("execs", 7, move |row| known(row, row.execs), units::number)
        .some("rss", 3, |row| row.rss_bytes, units::bytes)
}

fn print(out: &mut dyn Write, report: &Report, wide: bool) -> std::io::Result<()> {
    // Each update of gpumem leaves some behind: one line covers all of them.
    let (others, mut shown): (Vec<_>, Vec<_>) =
        report.processes.iter().partition(|row| row.status == ShownStatus::Unreadable && row.of_other_version);
    let helpers = if wide { BTreeMap::new() } else { fold(&mut shown) };
    if !shown.is_empty() {
        table().wide(wide).print(out, || shown.iter().copied())?;
    }
    for (name, count) in helpers {
        writeln!(out, "{} {} made no GPU call: --wide lists them", units::number(count), text::clean(name))?;
    }
    for row in shown.iter().filter(|row| row.status == ShownStatus::Of(Life::Parked)) {
        let (pid, bytes) = (row.pid, units::bytes(row.live.parked));
        writeln!(out, "pid {pid}: {bytes} of its device memory are on the host; gpumem resume {pid}")?;
    }
    for row in shown.iter().filter(|row| row.status == ShownStatus::Unreadable) {
        writeln!(out, "pid {}: {}", row.pid, text::clean(&row.status_text))?;
    }
    match others.len() as u64 {
        0 => Ok(()),
        n => writeln!(
            out,
            "{} of ended processes, written by other versions of gpumem: gpumem clean removes them after a day",
            text::count(n, "ledger")
        ),
    }
}

/// From this number on, processes of one name without a GPU call share a line: workers of torch.compile, for instance.
const HELPERS: u64 = 3;

/// Takes such processes out. Returns their names with their number.
fn fold<'a>(rows: &mut Vec<&'a Row>) -> BTreeMap<&'a str, u64> {
    let made_none = |row: &Row| matches!(row.status, ShownStatus::NoGpuCall | ShownStatus::Unseen);
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    rows.iter().filter(|row| made_none(row)).for_each(|row| *names.entry(&row.name).or_default() += 1);
    names.retain(|_, count| *count >= HELPERS);
    rows.retain(|row| !made_none(row) || !names.contains_key(&*row.name));
    names
}
