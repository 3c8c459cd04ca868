//! `gpumem stats`: totals, and what of the device's and the host's memory they explain.

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::model::cache::{self, Cache};
use crate::model::growth::{self, COLUMNS, Growth};
use crate::model::pool::{self, Pool};
use crate::model::totals::{self, Device, Host, KindTotal, Live, OfProcess};
use crate::model::{Head, Ledger};
use crate::report::lines::line;
use crate::report::{self, head};
use crate::text::units;
use crate::view::table::{HEAD, Side, Table, paint};
use gpumem_wire::counters;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// Show totals per kind, explained and unexplained memory, the pool, the graph cache, growth, counters
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Also show every sample
    #[arg(long)]
    samples: bool,
    /// Also show counters that are zero, settings, and the call stacks of stranded memory
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Report {
    process: Head,
    live: Live,
    kinds: Vec<KindTotal>,
    devices: Vec<Device>,
    /// By the driver's books, for this process alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_of_process: Option<OfProcess>,
    host: Host,
    cache: Cache,
    pool: Pool,
    counters: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<GrowthReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<BTreeMap<&'static str, u64>>,
    streams: u64,
    captures_in_progress: u64,
    threads: u64,
    call_stacks: u64,
    settings: Vec<String>,
}

#[derive(Serialize)]
struct GrowthReport {
    span_ns: u64,
    samples: u64,
    rows: Vec<Growth>,
}

impl Command for Args {
    const NAME: &'static str = "stats";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let snapshot = &ledger.snapshot;
        let nvml = totals::driver_books(&ledger);
        let devices = totals::devices(&ledger, nvml.as_ref());
        let report = Report {
            process: ledger.head(),
            live: totals::live(snapshot),
            kinds: totals::kinds(&ledger),
            device_of_process: totals::of_process(&ledger, &devices, nvml.as_ref()),
            devices,
            host: totals::host(&context.world, &ledger),
            cache: cache::of(&ledger),
            pool: pool::of(&ledger),
            counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
            growth: growth::growth(&ledger).map(|(span_ns, rows)| GrowthReport {
                span_ns,
                samples: snapshot.samples.len() as u64,
                rows,
            }),
            samples: if self.samples { growth::samples(&ledger) } else { Vec::new() },
            streams: snapshot.streams.len() as u64,
            captures_in_progress: snapshot.streams.values().filter(|stream| stream.capturing_ns != 0).count() as u64,
            threads: snapshot.threads.len() as u64,
            call_stacks: snapshot.stacks.len() as u64,
            settings: ledger.environment().into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
        };
        context.print(&report, |out, report| print(out, report, &ledger, self))
    }
}

fn print(out: &mut dyn Write, report: &Report, ledger: &Ledger, args: &Args) -> std::io::Result<()> {
    head::print(out, &report.process, ledger)?;
    print_kinds(out, &report.kinds)?;
    print_devices(out, report)?;
    print_host(out, &report.host)?;
    report::pool::print_part(out, &report.pool, args.all)?;
    report::cache::print_part(out, &report.cache)?;
    print_growth(out, report)?;
    print_counters(out, report, args)?;
    if args.samples {
        print_samples(out, report)?;
    }
    if args.all {
        writeln!(out, "\n{}", paint(HEAD, "settings"))?;
        for setting in &report.settings {
            writeln!(out, "  {}", crate::text::clean(setting))?;
        }
    }
    Ok(())
}

fn print_kinds(out: &mut dyn Write, kinds: &[KindTotal]) -> std::io::Result<()> {
    let right = Side::Right;
    let mut table = Table::new(&[
        ("kind", Side::Left),
        ("memory", Side::Left),
        ("live", right),
        ("count", right),
        ("allocated", right),
        ("times", right),
        ("freed", right),
        ("failed", right),
    ]);
    for kind in kinds {
        table.row([
            kind.kind.to_owned(),
            if kind.space == "none" { "-".to_owned() } else { kind.space.to_owned() },
            units::bytes(kind.live_bytes),
            units::number(kind.live),
            units::bytes(kind.alloc_bytes),
            units::number(kind.allocs),
            units::number(kind.frees),
            if kind.failures > 0 { units::number(kind.failures) } else { String::new() },
        ]);
    }
    if table.is_empty() {
        return writeln!(out, "\nnothing was allocated");
    }
    writeln!(out)?;
    table.print(out)
}

fn print_devices(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for device in &report.devices {
        let name = crate::text::clean(&device.name);
        let title = format!("device {}: {name}, {}", device.device, units::bytes(device.total_bytes));
        writeln!(out, "\n{}", paint(HEAD, title))?;
        print_explained(out, device)?;
        print_used(out, device)?;
    }
    match &report.device_of_process {
        Some(of_process) => print_of_process(out, of_process, report.pool.idle_bytes),
        None => Ok(()),
    }
}

/// What the records and estimates explain.
fn print_explained(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    line(out, &units::bytes(device.tracked_bytes), "recorded allocations", "")?;
    // Most programs have none of these.
    let print_some = |out: &mut dyn Write, rows: &[(u64, &str, &str)]| {
        let some = rows.iter().filter(|(bytes, ..)| *bytes > 0);
        some.clone().try_for_each(|(bytes, name, remark)| line(out, &units::bytes(*bytes), name, remark))
    };
    print_some(
        out,
        &[
            (device.managed_bytes, "managed memory, on the device or on the host", ""),
            (device.spilled_bytes, "spilled, outside of the device's memory", "gpumem allocs --spilled"),
            (device.idle_bytes, "idle in gpumem's pool", "kept for the next allocations"),
        ],
    )?;
    line(out, &units::bytes(device.graph_bytes), "graph execs", "estimated")?;
    print_some(
        out,
        &[
            (device.pool_idle_bytes, "idle in the driver's stream-ordered pool", "cudaMallocAsync reuses it"),
            (device.graph_memory_bytes, "memory nodes of graphs", "the driver keeps it until cudaDeviceGraphMemTrim"),
        ],
    )
}

/// What is used, and what of it is not explained.
fn print_used(out: &mut dyn Write, device: &Device) -> std::io::Result<()> {
    if device.used_bytes == 0 {
        return line(out, "?", "used by all processes", "not measured yet");
    }
    let remark = match device.used_age_ns {
        age if age > 1_500_000_000 => format!("{} ago", units::span(age)),
        _ => String::new(),
    };
    line(out, &units::bytes(device.used_bytes), "used by all processes", &remark)?;
    let baseline = match device.baseline_bytes {
        0 => String::new(),
        baseline => format!("; {} were used when the first context was made", units::bytes(baseline)),
    };
    let (unexplained, remark) = match device.unexplained_bytes {
        Some(bytes) => (units::bytes(bytes), format!("other processes, contexts, modules{baseline}")),
        None if device.used_source == "driver" => {
            ("?".into(), "records and estimates add up to more than is used".into())
        }
        None => ("?".into(), "more was allocated since it was measured".into()),
    };
    line(out, &unexplained, "not explained", &remark)?;
    line(out, &units::bytes(device.peak_bytes), "peak of recorded allocations", "")
}

/// The same for this process alone, as the driver counts it.
fn print_of_process(out: &mut dyn Write, of_process: &OfProcess, idle: u64) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "device memory of this process, as the driver counts it"))?;
    line(out, &units::bytes(of_process.used_bytes), "used", "")?;
    let remark = match idle {
        0 => String::new(),
        idle => {
            format!("{} of it is idle in gpumem's pool: the driver counts it as used", units::bytes(idle))
        }
    };
    line(out, &units::bytes(of_process.explained_bytes), "explained by recorded calls", &remark)?;
    let remark = "contexts, modules, local memory, calls that the shim did not see";
    line(out, &units::bytes(of_process.unexplained_bytes), "not explained", remark)
}

fn print_host(out: &mut dyn Write, host: &Host) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "host memory of this process"))?;
    let rss = host.rss_bytes.map_or("?".into(), units::bytes);
    let remark = match (host.rss_source, &host.resident) {
        ("now", Some(resident)) => format!(
            "{} anonymous, {} of files, {} shared",
            units::bytes(resident.anonymous),
            units::bytes(resident.file),
            units::bytes(resident.shared)
        ),
        (source, _) => source.replace('-', " "),
    };
    line(out, &rss, "resident", &remark)?;
    line(out, &units::bytes(host.pinned_bytes), "pinned memory from the driver", "")?;
    line(out, &units::bytes(host.registered_bytes), "the program's own memory, pinned", "")?;
    line(out, &units::bytes(host.graph_bytes), "graphs", "estimated")?;
    line(out, &units::bytes(host.exec_bytes), "graph execs", "estimated")?;
    if host.source_bytes > 0 {
        line(out, &units::bytes(host.source_bytes), "sources of graph execs", "")?;
    }
    if let (Some(unexplained), Some(rss)) = (host.unexplained_bytes, host.rss_bytes) {
        let remark = if host.explained_bytes > rss {
            "the estimates add up to more than is resident"
        } else {
            "the program's own memory, the driver's, caches"
        };
        line(out, &units::bytes(unexplained), "not explained", remark)?;
    }
    Ok(())
}

fn print_growth(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let Some(growth) = &report.growth else { return Ok(()) };
    let title = format!("growth over {} ({} samples)", units::span(growth.span_ns), growth.samples);
    writeln!(out, "\n{}", paint(HEAD, title))?;
    let mut table = Table::new(&[
        ("", Side::Left),
        ("first", Side::Right),
        ("last", Side::Right),
        ("peak", Side::Right),
        ("per minute", Side::Right),
        ("last minute", Side::Right),
    ]);
    for row in growth.rows.iter().filter(|row| row.peak > 0) {
        let bytes = row.what.ends_with("_bytes");
        let show = |n| if bytes { units::bytes(n) } else { units::number(n) };
        let change = row.per_minute.round() as i64;
        table.row([
            format!("  {}", row.what.trim_end_matches("_bytes").replace('_', " ")),
            show(row.first),
            show(row.last),
            show(row.peak),
            if bytes { units::signed_bytes(change) } else { units::signed(change) },
            if bytes { units::signed_bytes(row.last_minute) } else { units::signed(row.last_minute) },
        ]);
    }
    if table.is_empty() { Ok(()) } else { table.print(out) }
}

fn print_counters(out: &mut dyn Write, report: &Report, args: &Args) -> std::io::Result<()> {
    writeln!(out, "\n{}", paint(HEAD, "counters"))?;
    for &(_, name, doc) in counters::ALL {
        let value = report.counters[name];
        if value > 0 || args.all {
            let shown = match name {
                _ if name.ends_with("_ns") => units::span(value),
                _ if name.contains("_bytes") => units::bytes(value),
                _ => units::number(value),
            };
            let name =
                name.strip_suffix("_ns").map_or(name.to_owned(), |name| format!("{name} time")).replace('_', " ");
            line(out, &shown, &name, if args.all { doc.trim() } else { "" })?;
        }
    }
    line(out, &units::number(report.threads), "threads that made recorded calls", "")?;
    line(out, &units::number(report.streams), "live streams", "")?;
    if report.captures_in_progress > 0 {
        line(out, &units::number(report.captures_in_progress), "captures in progress", "")?;
    }
    line(out, &units::number(report.call_stacks), "different call stacks", "")
}

/// Headings for [`COLUMNS`], in their order.
const SAMPLE_HEADS: [&str; COLUMNS.len()] =
    ["device", "host", "managed", "allocs", "graphs", "execs", "graph host~", "rss", "device used", "idle"];

fn print_samples(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let heads: Vec<_> =
        std::iter::once(("age", Side::Right)).chain(SAMPLE_HEADS.iter().map(|&name| (name, Side::Right))).collect();
    let mut table = Table::new(&heads);
    for sample in &report.samples {
        let age = units::span(sample["age_ns"]);
        let cells = COLUMNS.iter().map(|&(name, _)| {
            if name.ends_with("_bytes") { units::bytes(sample[name]) } else { units::number(sample[name]) }
        });
        table.row(std::iter::once(age).chain(cells));
    }
    writeln!(out)?;
    table.print(out)
}
