//! `gpumem export`: numbers for other tools: Prometheus, JSON, CSV.

use super::Context;
use crate::args::Target;
use crate::failure::Result;
use crate::model::sites::Sites;
use crate::model::{Ledger, graphs, totals};
use crate::source::choose;
use crate::source::find::{self, What};
use crate::source::life::real_ns;
use crate::view::json;
use gpumem_wire::counters;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;

/// Export numbers: Prometheus text (of all processes unless one is named), JSON, CSV
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// In which form
    #[arg(long, value_enum)]
    format: Format,
}

/// Forms of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Prometheus' text format, for a textfile collector
    Prometheus,
    /// Everything in the ledger: every allocation, graph, exec, counter, sample
    Json,
    /// A line for each live allocation
    Csv,
}

/// Runs the command.
///
/// # Errors
/// Those of choosing and reading the ledger.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let text = match args.format {
        Format::Prometheus => prometheus(&ledgers(args, context)?),
        Format::Json => everything(context, &context.ledger(&args.target)?)?,
        Format::Csv => csv(&context.ledger(&args.target)?),
    };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// The named process, or all that run: none is a result too, for a collector.
fn ledgers(args: &Args, context: &Context) -> Result<Vec<Ledger>> {
    if args.target.target.is_some() || args.target.file.is_some() {
        return Ok(vec![context.ledger(&args.target)?]);
    }
    let survey = find::survey(&context.world);
    let live = survey.found.iter().filter(|found| found.is_live() && matches!(found.what, What::Ledger { .. }));
    // One that ends meanwhile is left out.
    Ok(live.filter_map(|found| choose::read(&context.world, found).ok()).collect())
}

type Sample = (Vec<(&'static str, String)>, f64);

/// A metric with its samples, in the order in which they were added.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<Sample>,
}

/// Prometheus' text format.
fn prometheus(ledgers: &[Ledger]) -> String {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut add = |name, kind, help, labels: Vec<(&'static str, String)>, value: f64| match metrics
        .iter_mut()
        .find(|metric| metric.name == name)
    {
        Some(metric) => metric.samples.push((labels, value)),
        None => metrics.push(Metric { name, kind, help, samples: vec![(labels, value)] }),
    };
    for ledger in ledgers {
        let head = ledger.head();
        let who = vec![("pid", head.pid.to_string()), ("process", head.name.clone())];
        let with = |name, value: &str| [who.clone(), vec![(name, value.to_owned())]].concat();
        let complete = f64::from(u8::from(head.interception == "complete"));
        add(
            "gpumem_interception_complete",
            "gauge",
            "1 if every call of the process is known to be recorded.",
            who.clone(),
            complete,
        );
        for kind in totals::kinds(ledger) {
            let of = || with("kind", kind.kind);
            add("gpumem_live_bytes", "gauge", "Live bytes by kind.", of(), kind.live_bytes as f64);
            add("gpumem_live_allocations", "gauge", "Live allocations by kind.", of(), kind.live as f64);
            add("gpumem_allocations_total", "counter", "Allocations by kind.", of(), kind.allocs as f64);
            add(
                "gpumem_allocated_bytes_total",
                "counter",
                "Bytes ever allocated by kind.",
                of(),
                kind.alloc_bytes as f64,
            );
            add(
                "gpumem_allocation_failures_total",
                "counter",
                "Failed allocations by kind.",
                of(),
                kind.failures as f64,
            );
        }
        let nvml = totals::driver_books(ledger);
        for device in totals::devices(ledger, nvml.as_ref()) {
            let of = || with("device", &device.device.to_string());
            add(
                "gpumem_device_tracked_bytes",
                "gauge",
                "Live device bytes of recorded allocations.",
                of(),
                device.tracked_bytes as f64,
            );
            add(
                "gpumem_device_peak_bytes",
                "gauge",
                "Highest live device bytes of recorded allocations.",
                of(),
                device.peak_bytes as f64,
            );
            add(
                "gpumem_device_pool_idle_bytes",
                "gauge",
                "Bytes that the driver keeps for the default stream-ordered pool beyond live allocations.",
                of(),
                device.pool_idle_bytes as f64,
            );
            add(
                "gpumem_device_graph_memory_bytes",
                "gauge",
                "Bytes that the driver keeps for the memory nodes of graphs.",
                of(),
                device.graph_memory_bytes as f64,
            );
            if device.used_bytes > 0 {
                add(
                    "gpumem_device_used_bytes",
                    "gauge",
                    "Bytes in use on the device by all processes.",
                    of(),
                    device.used_bytes as f64,
                );
            }
            if let Some(unexplained) = device.unexplained_bytes {
                add(
                    "gpumem_device_unexplained_bytes",
                    "gauge",
                    "Bytes in use that this process's records do not explain.",
                    of(),
                    unexplained as f64,
                );
            }
        }
        let total = graphs::total(ledger);
        add("gpumem_graphs", "gauge", "Live graphs.", who.clone(), total.graphs as f64);
        add("gpumem_graph_execs", "gauge", "Live graph execs.", who.clone(), total.execs as f64);
        add(
            "gpumem_graph_host_bytes_estimated",
            "gauge",
            "Estimated host bytes of graphs and execs.",
            who.clone(),
            total.host_bytes as f64,
        );
        add(
            "gpumem_graph_device_bytes_estimated",
            "gauge",
            "Estimated device bytes of execs.",
            who.clone(),
            total.device_bytes as f64,
        );
        for &(index, name, _) in counters::ALL {
            let value = ledger.snapshot.counter(index) as f64;
            add("gpumem_events_total", "counter", "The ledger's counters, by name.", with("counter", name), value);
        }
    }
    let mut out = String::new();
    for metric in &metrics {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", metric.name, metric.help, metric.name, metric.kind);
        for (labels, value) in &metric.samples {
            let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
            let _ = writeln!(out, "{}{{{}}} {value}", metric.name, labels.join(","));
        }
    }
    out
}

/// A label's value: backslash, quote and line break escaped, other control characters written out.
fn label(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    // What cleaning writes as \xNN is no escape of the format, so its backslash is doubled.
    let cleaned = crate::view::text::clean(&escaped);
    if cleaned == escaped { escaped } else { cleaned.replace("\\x", "\\\\x").replace("\\u", "\\\\u") }
}

fn csv(ledger: &Ledger) -> String {
    let mut out =
        String::from("address,bytes,kind,time_unix_ns,age_ns,serial,tid,thread,tag,context,device,stream,flags,site\n");
    let sites = Sites::of_allocs(ledger);
    for alloc in &ledger.snapshot.allocs {
        let device = ledger.device(alloc.context);
        let _ = writeln!(
            out,
            "{:#x},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            alloc.addr,
            alloc.bytes,
            AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
            real_ns(&ledger.snapshot.header, alloc.time_ns),
            ledger.age(alloc.time_ns),
            alloc.serial,
            alloc.tid,
            field(ledger.thread(alloc.tid)),
            field(&ledger.snapshot.text(alloc.tag)),
            alloc.context,
            field(&device),
            alloc.stream,
            Ledger::flags(alloc).join(" "),
            field(&sites.name(alloc.stack)),
        );
    }
    out
}

/// A field, quoted where it must be. A leading `=`, `+`, `-` or `@` would be a formula to a spreadsheet.
fn field(text: &str) -> String {
    let text = crate::view::text::clean(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    if formula || text.contains([',', '"', '\n']) {
        format!("\"{}{}\"", if formula { "'" } else { "" }, text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[derive(Serialize)]
struct Everything {
    process: crate::model::Head,
    live: totals::Live,
    kinds: Vec<totals::KindTotal>,
    devices: Vec<totals::Device>,
    host: totals::Host,
    counters: std::collections::BTreeMap<&'static str, u64>,
    samples: Vec<std::collections::BTreeMap<&'static str, u64>>,
    stacks: Vec<Stack>,
    allocations: Vec<Alloc>,
    graphs: Vec<Graph>,
    execs: Vec<Exec>,
}

#[derive(Serialize)]
struct Stack {
    stack: u32,
    frames: Vec<crate::symbols::Frame>,
    allocs: u64,
    alloc_bytes: u64,
    graphs: u64,
    execs: u64,
}

#[derive(Serialize)]
struct Alloc {
    address: u64,
    bytes: u64,
    kind: &'static str,
    time_unix_ns: u64,
    age_ns: u64,
    serial: u64,
    tid: u32,
    tag: String,
    context: u16,
    stream: u32,
    flags: Vec<&'static str>,
    stack: u32,
}

#[derive(Serialize)]
struct Graph {
    handle: u64,
    serial: u64,
    nodes: u64,
    host_bytes_estimated: u64,
    instantiates: u64,
    age_ns: u64,
    stack: u32,
}

#[derive(Serialize)]
struct Exec {
    handle: u64,
    serial: u64,
    graph_serial: u64,
    nodes: std::collections::BTreeMap<&'static str, u64>,
    launches: u64,
    updates: u64,
    failed_updates: u64,
    host_bytes_estimated: u64,
    device_bytes_estimated: u64,
    age_ns: u64,
    stack: u32,
}

fn everything(context: &Context, ledger: &Ledger) -> Result<String> {
    let snapshot = &ledger.snapshot;
    let mut stacks: Vec<_> = snapshot.stacks.iter().collect();
    stacks.sort_by_key(|(reference, _)| **reference);
    let alloc = |alloc: &AllocSlot| Alloc {
        address: alloc.addr,
        bytes: alloc.bytes,
        kind: AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
        time_unix_ns: real_ns(&snapshot.header, alloc.time_ns),
        age_ns: ledger.age(alloc.time_ns),
        serial: alloc.serial,
        tid: alloc.tid,
        tag: snapshot.text(alloc.tag).into_owned(),
        context: alloc.context,
        stream: alloc.stream,
        flags: Ledger::flags(alloc),
        stack: alloc.stack,
    };
    let report = Everything {
        process: ledger.head(),
        live: totals::live(snapshot),
        kinds: totals::kinds(ledger),
        devices: totals::devices(ledger, totals::driver_books(ledger).as_ref()),
        host: totals::host(&context.world, ledger),
        counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
        samples: super::stats::samples(ledger),
        stacks: stacks
            .into_iter()
            .map(|(&stack, slot)| Stack {
                stack,
                frames: ledger.symbols.stack(&slot.frames),
                allocs: slot.allocs,
                alloc_bytes: slot.alloc_bytes,
                graphs: slot.graphs,
                execs: slot.execs,
            })
            .collect(),
        allocations: snapshot.allocs.iter().map(alloc).collect(),
        graphs: snapshot
            .graphs
            .iter()
            .map(|graph| Graph {
                handle: graph.handle,
                serial: graph.serial,
                nodes: graph.nodes,
                host_bytes_estimated: graph.host_bytes,
                instantiates: graph.instantiates,
                age_ns: ledger.age(graph.time_ns),
                stack: graph.stack,
            })
            .collect(),
        execs: snapshot
            .execs
            .iter()
            .map(|exec| Exec {
                handle: exec.handle,
                serial: exec.serial,
                graph_serial: exec.graph_serial,
                nodes: graphs::by_name(&exec.nodes.map(u64::from)),
                launches: exec.launches,
                updates: exec.updates,
                failed_updates: exec.failed_updates,
                host_bytes_estimated: exec.host_bytes,
                device_bytes_estimated: exec.device_bytes,
                age_ns: ledger.age(exec.time_ns),
                stack: exec.stack,
            })
            .collect(),
    };
    Ok(json::to_string("export", &report)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_fields_cannot_break_out() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(label("\x1b"), "\\\\x1b");
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=cmd()"), "\"'=cmd()\"");
    }
}
