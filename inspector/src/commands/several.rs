//! Several processes in one table, growing ones first: the answer of `leaks` and `stats` if no process is named and
//! more than one runs.

use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::model::Ledger;
use crate::model::overview::Overview;
use crate::model::shared::Shared;
use crate::model::suspects::{self, Suspect, is_site};
use crate::model::totals::Live;
use crate::report::{growth, shared};
use crate::source::find::FoundProcess;
use crate::source::nvml::Books;
use crate::text::{self, clean, units};
use crate::view::table::{BAD, Table, WARN, paint};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// Time limit for reading processes. Those left out are named.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Report {
    /// The fastest growing one first.
    processes: Vec<ProcessRow>,
    /// Processes that could not be read, and why.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct ProcessRow {
    pid: u32,
    name: String,
    live: Live,
    /// The driver's count on all devices. `None` if unknown.
    counted_bytes: Option<u64>,
    idle_bytes: u64,
    /// Call sites that grow steadily, and their growth together.
    growing: usize,
    growing_bytes_per_minute: f64,
    /// Bytes by which the process's own heap grows. `None` if it does not grow steadily.
    #[serde(skip_serializing_if = "Option::is_none")]
    heap_bytes_per_minute: Option<f64>,
    /// The call site to look at first, and its verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    /// Memory that it shares with other processes.
    #[serde(skip_serializing_if = "Shared::is_empty")]
    sharing: Shared,
    /// Its growth.
    #[serde(skip)]
    grows: String,
}

impl ProcessRow {
    fn of(ledger: &Ledger, books: &Books, sharing: Shared) -> Self {
        let Overview { live, devices, pool, .. } = Overview::of(ledger, books);
        let found = suspects::find(ledger, None);
        let first = found.all.iter().find(|suspect| is_site(suspect) && (suspect.bytes > 0 || suspect.grows()));
        let growing_bytes_per_minute = growth::per_minute(suspects::growing(&found.all));
        let grows = match first.filter(|first| first.grows()) {
            None => String::new(),
            // The graph cache keeps the bytes of more and more execs flat.
            Some(Suspect { balance: Some(of), .. }) if growing_bytes_per_minute < 1.0 => {
                format!("+{}", text::count(of.made.saturating_sub(of.destroyed), of.what))
            }
            Some(first) if growing_bytes_per_minute == 0.0 => growth::rate_of(first),
            Some(_) => growth::rate(growing_bytes_per_minute),
        };
        Self {
            pid: ledger.pid(),
            name: ledger.name(),
            live,
            counted_bytes: crate::model::devices::process_used(ledger, &devices),
            idle_bytes: pool.idle_bytes,
            growing: suspects::growing(&found.all).count(),
            growing_bytes_per_minute,
            heap_bytes_per_minute: found.heap.filter(Suspect::grows).map(|heap| heap.bytes_per_minute),
            site: first.map(growth::who),
            verdict: first.map(|suspect| suspect.verdict.words()),
            sharing,
            grows,
        }
    }
}

/// Returns the ledger that the user means. If no process is named and several run, answers for all of them and returns
/// `None`. `for_one`: the command is about one process, even if several run.
///
/// # Errors
/// Those of choosing and reading the ledger, and of writing the answer.
pub(super) fn one_or_answer(context: &Context, target: &Target, for_one: bool) -> Result<Option<Ledger>> {
    let found = if for_one { Vec::new() } else { context.running(target) };
    match found.as_slice() {
        [] => context.ledger(target).map(Some),
        [one] => context.read(one, target).map(Some),
        several => answer(context, target, several).map(|()| None),
    }
}

/// Prints the answer for all of them.
fn answer(context: &Context, target: &Target, several: &[FoundProcess]) -> Result<()> {
    let (begin, books) = (Instant::now(), Books::default());
    let mut report = Report { processes: Vec::new(), left_out: Vec::new() };
    for found in several {
        if begin.elapsed() > PATIENCE {
            report.left_out.push(format!("pid {} ({}): {PATIENCE:?} were over", found.pid, found.name()));
            continue;
        }
        match context.read(found, target) {
            Ok(ledger) => report.processes.push(ProcessRow::of(&ledger, &books, context.shared(&ledger, target))),
            Err(why) => report.left_out.push(format!("pid {} ({}): {}", found.pid, found.name(), why.what)),
        }
    }
    let device = |row: &ProcessRow| row.live.device;
    report.processes.sort_by(|a, b| {
        let faster = b.growing_bytes_per_minute.total_cmp(&a.growing_bytes_per_minute);
        faster.then(device(b).cmp(&device(a))).then(a.pid.cmp(&b.pid))
    });
    context.print(&report, |out, report| print(out, report, context.name))
}

fn print(out: &mut dyn Write, report: &Report, command: &str) -> std::io::Result<()> {
    let table = Table::<ProcessRow>::new()
        .right("pid", 0, |row| row.pid.to_string())
        .text("name", 0, |row| &row.name)
        .right("grows", 0, |row| (row.grows.clone(), BAD))
        .bytes("device", 0, |row| row.live.device)
        .bytes("managed", 1, |row| row.live.managed)
        .bytes("host", 2, |row| row.live.host)
        .bytes("idle", 3, |row| row.idle_bytes)
        .right("driver's count", 0, |row| row.counted_bytes.map(units::bytes).unwrap_or_default())
        .left("verdict", 0, |row| row.verdict.unwrap_or_default())
        .left("first to look at", 0, |row| row.site.clone().unwrap_or_default());
    table.print(out, || report.processes.iter())?;
    for row in report.processes.iter().filter(|row| row.live.parked > 0) {
        let (pid, name, bytes) = (row.pid, clean(&row.name), units::bytes(row.live.parked));
        writeln!(out, "parked: pid {pid} ({name}): {bytes} of its device memory are on the host; gpumem resume {pid}")?;
    }
    for row in &report.processes {
        if let Some(rate) = row.heap_bytes_per_minute {
            let (pid, name, rate) = (row.pid, clean(&row.name), growth::rate(rate));
            writeln!(out, "{} pid {pid} ({name}): its own heap grows by {rate}", paint(WARN, "not GPU memory:"))?;
        }
        for line in shared::lines(&row.sharing, false) {
            writeln!(out, "{} pid {} ({}): {line}", paint(WARN, "shared:"), row.pid, clean(&row.name))?;
        }
    }
    for why in &report.left_out {
        writeln!(out, "{} {}", paint(WARN, "left out:"), clean(why))?;
    }
    if let Some(first) = report.processes.first() {
        writeln!(out, "\ndetails of one: gpumem {command} {}", first.pid)?;
    }
    Ok(())
}
