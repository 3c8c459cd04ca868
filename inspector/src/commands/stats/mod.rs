//! `gpumem stats`: totals, and the device and host memory that they explain. Without options it answers the most common
//! questions, on one screen: memory, growth, pool and graph cache.
//!
//! * [`whole`]: everything. [`devices`]: the memory of devices, for both.

mod devices;
pub(super) mod whole;

use super::several;
use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::model::devices::Device;
use crate::model::growth::{self, AllGrowth};
use crate::model::left::{self, LeftByGraphs};
use crate::model::overview::Overview;
use crate::model::shared::Shared;
use crate::model::taken::{self, TakenBy};
use crate::model::totals::{self, Host};
use crate::model::{Head, Ledger};
use crate::report;
use crate::report::growth::rate;
use crate::report::lines::{self, line, nonzero};
use crate::source::nvml::Books;
use crate::text::{count, units};
use crate::view::table::{DIM, HEAD, Table, WARN, paint};
use gpumem_wire::counters;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Show what memory is made of, explained and unexplained, the pool, the graph cache, growth; with --all every total
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Also show every sample
    #[arg(long)]
    samples: bool,
    /// Show all there is: each kind, each counter, settings, the call stacks of stranded memory
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Report {
    process: Head,
    #[serde(flatten)]
    overview: Overview,
    host: Host,
    /// Memory that the driver took for itself, by call site.
    driver_took: Vec<TakenBy>,
    /// Memory left behind by launches of destroyed graphs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_by_graphs: Vec<LeftByGraphs>,
    /// Memory that is freed here and open elsewhere, or owned by another process.
    #[serde(skip_serializing_if = "Shared::is_empty")]
    sharing: Shared,
    counters: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<AllGrowth>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<BTreeMap<&'static str, u64>>,
    streams: u64,
    captures_in_progress: u64,
    threads: u64,
    call_stacks: u64,
    settings: Vec<String>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let for_one = self.all || self.samples;
        let Some(ledger) = several::one_or_answer(context, &self.target, for_one)? else { return Ok(()) };
        let snapshot = &ledger.snapshot;
        let report = Report {
            process: Head::of(&ledger),
            overview: Overview::of(&ledger, &Books::default()),
            host: totals::host(&context.world, &ledger),
            driver_took: taken::taken(&ledger),
            left_by_graphs: left::by_graphs(&ledger),
            sharing: context.shared(&ledger, &self.target),
            counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
            growth: growth::growth(&ledger),
            samples: if self.samples { growth::samples(&ledger) } else { Vec::new() },
            streams: snapshot.streams.len() as u64,
            captures_in_progress: snapshot.streams.values().filter(|stream| stream.capturing_ns != 0).count() as u64,
            threads: snapshot.threads.len() as u64,
            call_stacks: snapshot.stacks.len() as u64,
            settings: ledger.environment().into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        };
        context.print(&report, |out, report| {
            lines::head(out, &report.process, &ledger)?;
            match self.all {
                true => whole::print(out, report, &ledger)?,
                false => print_short(out, report, &ledger)?,
            }
            if self.samples { whole::print_samples(out, report) } else { Ok(()) }
        })
    }
}

/// Most rows of devices, if there are several.
const DEVICES: usize = 8;

/// Columns of samples whose growth is shown, with their words.
const GROWING: [(&str, &str); 6] = [
    ("device_live_bytes", "device"),
    ("managed_live_bytes", "managed"),
    ("host_live_bytes", "pinned host"),
    ("unknown_live_bytes", "in unknown places"),
    ("graph_host_bytes", "graphs on the host"),
    ("rss_bytes", "resident"),
];

/// Prints the part below the head.
fn print_short(out: &mut dyn Write, report: &Report, ledger: &Ledger) -> std::io::Result<()> {
    match report.overview.devices.as_slice() {
        [] => writeln!(out, "\nno context on a device so far")?,
        [device] => devices::print_device(out, device)?,
        devices => print_devices(out, devices)?,
    }
    report::shared::print_left(out, &report.left_by_graphs, ledger)?;
    report::shared::print(out, &report.sharing, false)?;
    print_host(out, &report.host)?;
    writeln!(out)?;
    if let Some(growth) = growing(report) {
        writeln!(out, "{growth}")?;
    }
    report::pool::print_head(out, &report.overview.pool)?;
    report::cache::print_short(out, &report.overview.cache)?;
    if let Some(failed) = failed(report) {
        writeln!(out, "{} {failed}", paint(WARN, "failed:"))?;
    }
    writeln!(out, "{}", paint(DIM, "gpumem stats --all shows each kind, counter and setting"))
}

/// Prints a row for each device.
fn print_devices(out: &mut dyn Write, devices: &[Device]) -> std::io::Result<()> {
    let table = Table::<Device>::new()
        .bytes("recorded", 0, |device| device.tracked_bytes)
        .bytes("peak", 0, |device| device.peak_bytes)
        .some_bytes("idle", 0, |device| device.idle_bytes)
        .some_bytes("execs~", 0, |device| device.graph_bytes)
        .some_bytes("used by all", 0, |device| device.used_bytes)
        .left("device", 0, |device| {
            format!("{}: {}, {}", device.device, device.name, units::bytes(device.total_bytes))
        });
    writeln!(out)?;
    table.print(out, || devices.iter().take(DEVICES))?;
    match devices.len().saturating_sub(DEVICES) as u64 {
        0 => Ok(()),
        more => writeln!(out, "{}", paint(DIM, format!("… {more} more: --all shows them"))),
    }
}

fn print_host(out: &mut dyn Write, host: &Host) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "host memory of this process"))?;
    line(out, &host.rss_bytes.map_or("?".into(), units::bytes), "resident", "")?;
    let of_graphs = host.graph_bytes.saturating_add(host.exec_bytes).saturating_add(host.source_bytes);
    let parts = [
        (host.pinned_bytes, "pinned memory from the driver", ""),
        (host.registered_bytes, "the program's own memory, pinned", ""),
        (of_graphs, "graphs, graph execs and their sources", "estimated"),
    ];
    nonzero(out, units::bytes, &parts)
}

/// Returns the changes per minute over the samples; `None` without samples.
fn growing(report: &Report) -> Option<String> {
    let growth = report.growth.as_ref()?;
    let row = |name| growth.rows.iter().find(|row| row.what == name);
    let moved = GROWING.iter().filter_map(|&(name, words)| Some((words, row(name)?.per_minute)));
    let moved = moved.filter(|(_, change)| change.round() != 0.0);
    let moved: Vec<_> = moved.map(|(words, change)| format!("{words} {}", rate(change))).collect();
    // Rates cover the later half of the samples.
    let over = format!("over the last {}", units::span(growth.span_ns / 2));
    Some(match moved.is_empty() {
        true => format!("growth: none {over}"),
        false => format!("growth: {}, {over}; gpumem leaks judges it", moved.join(", ")),
    })
}

/// Returns the calls that the driver refused; `None` without any.
fn failed(report: &Report) -> Option<String> {
    let allocations = report.overview.kinds.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.failures));
    let counter = |name| report.counters.get(name).copied().unwrap_or_default();
    let all = [
        (allocations, "allocation"),
        (counter("instantiate_failures"), "instantiate"),
        (counter("launch_failures"), "launch"),
        (counter("update_failures"), "update"),
        (counter("captures_failed"), "capture"),
    ];
    let some: Vec<_> = all.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| count(n, what)).collect();
    (!some.is_empty()).then(|| some.join(", "))
}
