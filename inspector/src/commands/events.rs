//! `gpumem events`: events, oldest first.

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::model::sites::Sites;
use crate::model::{Head, Ledger};
use crate::report::head;
use crate::source::liveness::real_ns;
use crate::text::count;
use crate::text::units;
use crate::view::lazy::Lazy;
use crate::view::table::{BAD, DIM, Table, WARN, paint};
use anstyle::Style;
use gpumem_wire::kinds::{AllocKind, EventKind, Severity, Taken};
use gpumem_wire::layout::EventSlot;
use serde::Serialize;
use std::io::Write;

/// Show the events that the ledger keeps: failures, contexts, captures, messages
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only these kinds (repeatable)
    #[arg(long, value_name = "KIND", value_parser = kind_parser())]
    kind: Vec<String>,
    /// Only what went wrong: failures, warnings, errors
    #[arg(long)]
    problems: bool,
    /// How many of the newest events to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
}

fn kind_parser() -> clap::builder::PossibleValuesParser {
    EventKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().into()
}

#[derive(Serialize)]
struct Report<'a> {
    process: Head,
    events: Lazy<'a, Row>,
    /// Number of events that match the filter, shown or not.
    events_total: usize,
    /// Number of events that the ring no longer holds.
    events_lost: u64,
}

#[derive(Serialize)]
struct Row {
    seq: u64,
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
    context: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    site: String,
}

impl Command for Args {
    const NAME: &'static str = "events";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let events = &ledger.snapshot.events;
        let wanted = |event: &&EventSlot| {
            let kind = EventKind::from_u8(event.kind);
            (self.kind.is_empty() || kind.is_some_and(|kind| self.kind.iter().any(|name| name == kind.name())))
                && (!self.problems || severity(event) != Severity::Info)
        };
        let mut chosen: Vec<(&EventSlot, u64)> = events.iter().filter(wanted).map(|event| (event, 1)).collect();
        let events_total = chosen.len();
        if !context.global.json {
            chosen = fold(&chosen);
        }
        let limit = context.rows(self.limit);
        let sites = Sites::of_events(&ledger);
        let report = Report {
            process: ledger.head(),
            events: Lazy::of(chosen.split_off(chosen.len().saturating_sub(limit)), |event| row(&ledger, &sites, event)),
            events_total,
            events_lost: events.first().map_or(0, |event| event.seq),
        };
        let empty = match (self.problems, self.kind.is_empty()) {
            (true, _) => "no problems",
            (_, false) => "no events of this kind",
            _ => "no events",
        };
        context.print(&report, |out, report| print(out, report, &ledger, empty))
    }
}

/// Merges consecutive peaks into one: the last is the highest, and stands for all of them.
fn fold<'a>(events: &[(&'a EventSlot, u64)]) -> Vec<(&'a EventSlot, u64)> {
    let is_peak = |event: &EventSlot| event.kind == EventKind::PeakGrew as u8;
    let runs = events.chunk_by(|(a, _), (b, _)| is_peak(a) && is_peak(b) && a.context == b.context);
    runs.filter_map(|run| Some((run.last()?.0, run.len() as u64))).collect()
}

pub(in crate::commands) fn severity(event: &EventSlot) -> Severity {
    match EventKind::from_u8(event.kind) {
        Some(EventKind::Message) => u8::try_from(event.code).ok().and_then(Severity::from_u8).unwrap_or(Severity::Info),
        Some(EventKind::AllocFailed | EventKind::InstantiateFailed | EventKind::OutOfMemory) => Severity::Error,
        Some(EventKind::OomRetry) if event.code != 0 => Severity::Error,
        Some(EventKind::FreeFailed | EventKind::CaptureFailed | EventKind::Thrash | EventKind::OomRetry) => {
            Severity::Warning
        }
        Some(
            EventKind::Spilled
            | EventKind::LimitRefused
            | EventKind::StrandedSite
            | EventKind::Pressed
            | EventKind::TopHolder
            | EventKind::FreedInGraph,
        ) => Severity::Warning,
        Some(EventKind::WrittenOutside | EventKind::WrittenAfterFree) => Severity::Error,
        Some(EventKind::FreedGraphLaunched | EventKind::LaunchedGraph | EventKind::NextOwner) => Severity::Error,
        _ => Severity::Info,
    }
}

fn row(ledger: &Ledger, sites: &Sites, (event, times): (&EventSlot, u64)) -> Row {
    let kind = EventKind::from_u8(event.kind);
    Row {
        seq: event.seq,
        age_ns: ledger.age(event.time_ns),
        time_unix_ns: real_ns(&ledger.snapshot.header, event.time_ns),
        kind: kind.map_or(format!("kind {}", event.kind), |kind| kind.name().to_owned()),
        severity: severity(event).name(),
        text: match times {
            1 => sentence(ledger, event, kind),
            _ => format!("{}, after {}", sentence(ledger, event, kind), count(times - 1, "lower peak")),
        },
        times,
        code: event.code,
        a: event.a,
        b: event.b,
        tid: event.tid,
        thread: ledger.thread(event.tid).to_owned(),
        context: event.context,
        site: if event.stack == 0 { String::new() } else { sites.name(event.stack).to_string() },
    }
}

/// Returns the event in words.
pub(in crate::commands) fn sentence(ledger: &Ledger, event: &EventSlot, kind: Option<EventKind>) -> String {
    let words = ledger.snapshot.text(event.text).into_owned();
    let (a, b, code) = (event.a, event.b, event.code);
    let said = match kind {
        None | Some(EventKind::Message | EventKind::Mark | EventKind::LibraryBound) => String::new(),
        Some(EventKind::ContextCreated | EventKind::ContextDestroyed) => {
            format!("context {} on device {}", event.context, ledger.device(event.context))
        }
        Some(EventKind::AllocFailed) => {
            let kind = u8::try_from(b).ok().and_then(AllocKind::from_u8).map_or("unknown", AllocKind::name);
            format!("{} of {kind} memory refused with error {code}", units::bytes(a))
        }
        Some(EventKind::InstantiateFailed) => format!("graph {a:#x} refused with error {code}"),
        Some(EventKind::CaptureFailed) => format!("the capture on stream {a:#x} gave no graph, error {code}"),
        Some(EventKind::PeakGrew) => format!("{} of device memory live", units::bytes(a)),
        Some(EventKind::FreeFailed) => format!("free of {a:#x} refused with error {code}"),
        // The words name the variable to raise.
        Some(EventKind::Thrash) => {
            let (execs, bytes) = (count(a, "real exec"), units::bytes(b));
            let to_raise = if words.is_empty() { String::new() } else { format!(": raise {words}") };
            return format!(
                "the graph cache evicts execs that are launched again soon, at {execs} of {bytes}{to_raise}"
            );
        }
        Some(EventKind::OomRetry) => {
            let then = if code == 0 { "succeeded".into() } else { format!("failed with error {code}") };
            format!("a graph call ran out of memory; gpumem gave {} back, then the call {then}", units::bytes(a))
        }
        Some(EventKind::PoolReleased) => format!("the pool gave {} of idle memory back to the driver", units::bytes(a)),
        Some(EventKind::Spilled) => format!("{} were placed outside of the device's memory", units::bytes(a)),
        Some(EventKind::LimitRefused) => format!("{} refused: over the limit of this process", units::bytes(a)),
        Some(EventKind::OutOfMemory) => {
            let (asked, live) = (units::bytes(a), units::bytes(b));
            format!("{asked} could not be allocated: {live} are live, and all idle memory was given back")
        }
        Some(EventKind::StrandedSite) => {
            let (bytes, blocks) = (units::bytes(a), count(b, "older block"));
            format!("a call site asks for larger and larger buffers; {bytes} in {blocks} lie unused")
        }
        Some(kind) => of_memory(kind, a, b, code),
    };
    match (said.is_empty(), words.is_empty()) {
        (true, _) => words,
        (false, true) => said,
        (false, false) => format!("{said}: {words}"),
    }
}

/// Returns an event of memory in words. The guard's own findings say it themselves.
fn of_memory(kind: EventKind, a: u64, b: u64, code: i32) -> String {
    match kind {
        EventKind::FreedInGraph => {
            format!("{} at {a:#x} were freed while a live graph still refers to them", units::bytes(b))
        }
        EventKind::TopHolder => {
            format!("this call site held {} in {} when memory ran out", units::bytes(a), count(b, "allocation"))
        }
        EventKind::Pressed => {
            let (asked, older) = (units::bytes(a), units::bytes(b));
            format!("{asked} were refused once, so that the program frees {older} that it strands")
        }
        EventKind::DriverTook => {
            let what = u8::try_from(b).ok().and_then(Taken::from_u8).map_or("itself", Taken::name);
            let took = format!("the driver took {}, reason: {what}", units::bytes(a));
            match u64::try_from(code) {
                // The event's text is the kernel's name.
                Ok(local) if local > 0 => {
                    format!("{took}, as a kernel has {} of local memory a thread", units::bytes(local))
                }
                _ => format!("{took} (free memory fell by that much during the call)"),
            }
        }
        EventKind::FreedHere => format!("{} at {a:#x} were freed here", units::bytes(b)),
        EventKind::FreedGraphLaunched if b == 0 => {
            format!("a graph was launched after memory at {a:#x} that it refers to was freed")
        }
        EventKind::LaunchedGraph => {
            format!("this was launch {} of exec {a:#x}, instantiated here", units::number(b.saturating_add(1)))
        }
        EventKind::Parked => format!("{} of device memory were moved to the host", units::bytes(a)),
        EventKind::Resumed => {
            format!("{} of device memory are back on the device after {}", units::bytes(a), units::span(b))
        }
        EventKind::NextOwner => format!("the memory now belongs to {} at {a:#x}, allocated here", units::bytes(b)),
        EventKind::FreedGraphLaunched => {
            format!("a graph that refers to {} at {a:#x} was launched after their free", units::bytes(b))
        }
        EventKind::PossibleWriter => {
            let how = match (b & 1 != 0, b & 2 != 0) {
                (false, false) => "launched meanwhile",
                (true, false) => "launched with its address meanwhile",
                (false, true) => "launched first after the free",
                (true, true) => "launched first after the free, with its address",
            };
            format!("{how}, on stream {a:#x}")
        }
        _ => String::new(),
    }
}

/// Prints the events, or `empty` if there are none.
fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, empty: &str) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    if report.events.is_empty() {
        return writeln!(out, "{empty}");
    }
    writeln!(out)?;
    let lost = report.events_total as u64 - report.events.iter().map(|event| event.times).sum::<u64>();
    if lost > 0 {
        writeln!(out, "{}", paint(DIM, format!("… {} earlier: -n 0 shows all", units::number(lost))))?;
    }
    let style = |event: &Row| match event.severity {
        "error" => BAD,
        "warning" => WARN,
        _ => Style::new(),
    };
    let table = Table::<Row>::new()
        .right("time", 0, |event| (units::clock(event.time_unix_ns), DIM))
        .span(ledger.status.ago_words(), 0, |event| event.age_ns)
        .left("what", 0, |event| (event.kind.clone(), style(event)))
        .left("thread", 1, |event| (format!("{} {}", event.tid, event.thread).trim_end().to_owned(), DIM))
        .left("text", 0, |event| (event.text.clone(), style(event)))
        .text("site", 0, |event| &event.site);
    table.print(out, || report.events.iter())
}
