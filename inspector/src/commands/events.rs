//! `gpumem events`: events, oldest first.

use crate::args::{Target, one_of};
use crate::context::Context;
use crate::failure::Result;
use crate::model::events::{name, sentence, severity};
use crate::model::sites::Sites;
use crate::model::{Head, Ledger};
use crate::report::lines;
use crate::source::liveness::real_ns;
use crate::text::{count, units};
use crate::view::lazy::Lazy;
use crate::view::table::{BAD, DIM, Table, WARN, paint};
use anstyle::Style;
use gpumem_wire::kinds::{EventKind, Severity};
use gpumem_wire::layout::{EventSlot, StackRef};
use serde::Serialize;
use std::io::Write;

/// Show the events that the ledger keeps: failures, contexts, captures, messages
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only these kinds (repeatable)
    #[arg(long, value_name = "KIND", value_parser = one_of(EventKind::ALL, EventKind::name))]
    kind: Vec<EventKind>,
    /// Only what went wrong: failures, warnings, errors
    #[arg(long)]
    problems: bool,
    /// How many of the newest events to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Report<'a> {
    process: Head,
    pub(super) events: Lazy<'a, EventRow>,
    /// Number of events that match the filter, shown or not.
    events_total: usize,
    /// Number of events that the ring no longer holds.
    pub(super) events_lost: u64,
}

#[derive(Serialize)]
pub(super) struct EventRow {
    pub(super) seq: u64,
    age_ns: u64,
    time_unix_ns: u64,
    kind: String,
    /// `info`, `warning` or `error`.
    severity: &'static str,
    text: String,
    /// Number of events that the row stands for.
    #[serde(skip)]
    times: u64,
    code: i32,
    a: u64,
    b: u64,
    tid: u32,
    thread: String,
    pub(super) context: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    site: String,
    #[serde(skip)]
    pub(super) stack: StackRef,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let report = self.report(&ledger, context.rows(self.limit), !context.global.json);
        let empty = match (self.problems, self.kind.is_empty()) {
            (true, _) => "no problems",
            (_, false) => "no events of this kind",
            _ => "no events",
        };
        context.print(&report, |out, report| print(out, report, &ledger, empty))
    }

    /// Returns the newest events; `folded`: consecutive peaks are one.
    pub(super) fn report<'a>(&self, ledger: &'a Ledger, limit: usize, folded: bool) -> Report<'a> {
        let events = &ledger.snapshot.events;
        let wanted = |event: &&EventSlot| {
            let kind = EventKind::from_u8(event.kind);
            (self.kind.is_empty() || kind.is_some_and(|kind| self.kind.contains(&kind)))
                && (!self.problems || severity(event) != Severity::Info)
        };
        let mut chosen: Vec<(&EventSlot, u64)> = events.iter().filter(wanted).map(|event| (event, 1)).collect();
        let events_total = chosen.len();
        if folded {
            chosen = fold(&chosen);
        }
        let sites = Sites::of_events(ledger);
        let chosen = chosen.split_off(chosen.len().saturating_sub(limit));
        Report {
            process: Head::of(ledger),
            events: Lazy::of(chosen, move |event| row(ledger, &sites, event)),
            events_total,
            events_lost: events.first().map_or(0, |event| event.seq),
        }
    }
}

/// Merges consecutive peaks into one: the last is the highest, and stands for all of them.
fn fold<'a>(events: &[(&'a EventSlot, u64)]) -> Vec<(&'a EventSlot, u64)> {
    let is_peak = |event: &EventSlot| event.kind == EventKind::PeakGrew as u8;
    let runs = events.chunk_by(|(a, _), (b, _)| is_peak(a) && is_peak(b) && a.context == b.context);
    runs.filter_map(|run| Some((run.last()?.0, run.len() as u64))).collect()
}

fn row(ledger: &Ledger, sites: &Sites, (event, times): (&EventSlot, u64)) -> EventRow {
    EventRow {
        seq: event.seq,
        age_ns: ledger.age(event.time_ns),
        time_unix_ns: real_ns(&ledger.snapshot.header, event.time_ns),
        kind: name(event),
        severity: severity(event).name(),
        text: match times {
            1 => sentence(ledger, event),
            _ => format!("{}; not listed: {} before this one", sentence(ledger, event), count(times - 1, "lower peak")),
        },
        times,
        code: event.code,
        a: event.a,
        b: event.b,
        tid: event.tid,
        thread: ledger.thread(event.tid).to_owned(),
        context: event.context,
        site: if event.stack == 0 { String::new() } else { sites.name(event.stack).to_string() },
        stack: event.stack,
    }
}

/// Prints the events, or `empty` if there are none.
fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, empty: &str) -> std::io::Result<()> {
    lines::head(out, &report.process, ledger)?;
    if report.events.is_empty() {
        return writeln!(out, "{empty}");
    }
    writeln!(out)?;
    let lost = report.events_total as u64 - report.events.iter().map(|event| event.times).sum::<u64>();
    if lost > 0 {
        writeln!(out, "{}", paint(DIM, format!("… {} earlier: -n 0 shows all", units::number(lost))))?;
    }
    event_table(ledger).print(out, || report.events.iter())
}

/// Returns the table of events.
pub(super) fn event_table(ledger: &Ledger) -> Table<'static, EventRow> {
    let style = |event: &EventRow| match event.severity {
        "error" => BAD,
        "warning" => WARN,
        _ => Style::new(),
    };
    Table::<EventRow>::new()
        .right("time", 0, |event| (units::clock(event.time_unix_ns), DIM))
        .span(ledger.status.ago_words(), 0, |event| event.age_ns)
        .left("what", 0, move |event| (event.kind.clone(), style(event)))
        .left("thread", 1, |event| (format!("{} {}", event.tid, event.thread).trim_end().to_owned(), DIM))
        // The event matters more than the site.
        .left("text", 0, move |event| (event.text.clone(), style(event)))
        .keeping(40)
        .text("site", 2, |event| &event.site)
}
