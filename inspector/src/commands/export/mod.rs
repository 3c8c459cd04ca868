//! `gpumem export`: numbers for other tools: Prometheus, JSON, CSV.

mod prometheus;

use crate::args::Target;
use crate::context::{Command, Context};
use crate::failure::Result;
use crate::model::sites::Sites;
use crate::model::{Ledger, cache, execs, graphs, growth, pool, totals};
use crate::source::choose;
use crate::source::find::{self, What};
use crate::source::life::real_ns;
use crate::view::json;
use crate::view::lazy::Lazy;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Pinned};
use gpumem_wire::layout::{AllocSlot, ExecSlot, GraphSlot};
use gpumem_wire::read;
use serde::Serialize;
use std::io::Write;

/// Export numbers: Prometheus text (of all processes unless one is named), JSON, CSV
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The format
    #[arg(long, value_enum)]
    format: Format,
}

/// Forms of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Prometheus' text format, for a textfile collector
    Prometheus,
    /// Everything in the ledger: every allocation, graph, exec, counter, sample
    Json,
    /// A line for each live allocation
    Csv,
}

impl Command for Args {
    const NAME: &'static str = "export";

    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger.
    fn run(&self, context: &Context) -> Result<()> {
        match self.format {
            Format::Prometheus => {
                let text = prometheus::text(&ledgers(self, context)?);
                context.write(|out| out.write_all(text.as_bytes()))
            }
            Format::Json => {
                let ledger = context.ledger(&self.target)?;
                let report = everything(context, &ledger);
                context.write(|out| json::print(out, "export", &report))
            }
            Format::Csv => {
                let ledger = context.ledger(&self.target)?;
                context.write(|out| csv(out, &ledger))
            }
        }
    }
}

/// The named process, or all that run: none is a result too, for a collector.
fn ledgers(args: &Args, context: &Context) -> Result<Vec<Ledger>> {
    if args.target.target.is_some() || args.target.file.is_some() {
        return Ok(vec![context.ledger(&args.target)?]);
    }
    let survey = find::survey(&context.world);
    let live = survey.found.iter().filter(|found| found.is_live() && matches!(found.what, What::Ledger { .. }));
    // One that ends meanwhile is left out.
    Ok(live
        .filter_map(|found| choose::read(&context.world, found).ok())
        .map(|opened| Ledger::of(&context.world, opened))
        .collect())
}

fn csv(out: &mut dyn Write, ledger: &Ledger) -> std::io::Result<()> {
    writeln!(out, "address,bytes,kind,time_unix_ns,age_ns,serial,tid,thread,tag,context,device,stream,flags,site")?;
    let sites = Sites::of_allocs(ledger);
    for alloc in &ledger.snapshot.allocs {
        let device = ledger.device(alloc.context);
        writeln!(
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
        )?;
    }
    Ok(())
}

/// A field, quoted where it must be. A leading `=`, `+`, `-` or `@` would be a formula to a spreadsheet.
fn field(text: &str) -> String {
    let text = crate::text::clean(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    if formula || text.contains([',', '"', '\n']) {
        format!("\"{}{}\"", if formula { "'" } else { "" }, text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[derive(Serialize)]
struct Everything<'a> {
    process: crate::model::Head,
    live: totals::Live,
    kinds: Vec<totals::KindTotal>,
    devices: Vec<totals::Device>,
    host: totals::Host,
    cache: cache::Cache,
    pool: pool::Pool,
    counters: std::collections::BTreeMap<&'static str, u64>,
    samples: Vec<std::collections::BTreeMap<&'static str, u64>>,
    stacks: Lazy<'a, Stack>,
    allocations: Lazy<'a, Alloc>,
    graphs: Lazy<'a, Graph>,
    execs: Lazy<'a, Exec>,
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
    /// 0: the driver holds it.
    folded_bytes: u64,
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
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<&'static str>,
    class: String,
    nodes: std::collections::BTreeMap<&'static str, u64>,
    launches: u64,
    updates: u64,
    failed_updates: u64,
    retargets: u64,
    instantiations: u64,
    evictions: u64,
    saved_ns: u64,
    source_bytes: u64,
    host_bytes_estimated: u64,
    device_bytes_estimated: u64,
    real_bytes_estimated: u64,
    age_ns: u64,
    stack: u32,
}

fn everything<'a>(context: &Context, ledger: &'a Ledger) -> Everything<'a> {
    let snapshot = &ledger.snapshot;
    let mut stacks: Vec<_> = snapshot.stacks.iter().collect();
    stacks.sort_by_key(|(reference, _)| **reference);
    Everything {
        process: ledger.head(),
        live: totals::live(snapshot),
        kinds: totals::kinds(ledger),
        devices: totals::devices(ledger, totals::driver_books(ledger).as_ref()),
        host: totals::host(&context.world, ledger),
        cache: cache::of(ledger),
        pool: pool::of(ledger),
        counters: counters::ALL.iter().map(|&(index, name, _)| (name, snapshot.counter(index))).collect(),
        samples: growth::samples(ledger),
        stacks: Lazy::of(stacks, move |(&stack, slot): (&u32, &read::Stack)| Stack {
            stack,
            frames: ledger.symbols.stack(snapshot.frames(slot)),
            allocs: slot.allocs,
            alloc_bytes: slot.alloc_bytes,
            graphs: slot.graphs,
            execs: slot.execs,
        }),
        allocations: Lazy::of(snapshot.allocs.iter().collect(), |alloc| Alloc::of(ledger, alloc)),
        graphs: Lazy::of(snapshot.graphs.iter().collect(), |graph| Graph::of(ledger, graph)),
        execs: Lazy::of(snapshot.execs.iter().collect(), |exec| Exec::of(ledger, exec)),
    }
}

impl Alloc {
    fn of(ledger: &Ledger, alloc: &AllocSlot) -> Self {
        Self {
            address: alloc.addr,
            bytes: alloc.bytes,
            kind: AllocKind::from_u8(alloc.kind).map_or("unknown", AllocKind::name),
            time_unix_ns: real_ns(&ledger.snapshot.header, alloc.time_ns),
            age_ns: ledger.age(alloc.time_ns),
            serial: alloc.serial,
            tid: alloc.tid,
            tag: ledger.snapshot.text(alloc.tag).into_owned(),
            context: alloc.context,
            stream: alloc.stream,
            flags: Ledger::flags(alloc),
            stack: alloc.stack,
        }
    }
}

impl Graph {
    fn of(ledger: &Ledger, graph: &GraphSlot) -> Self {
        Self {
            handle: graph.handle,
            serial: graph.serial,
            nodes: graph.nodes,
            folded_bytes: graph.folded_bytes,
            host_bytes_estimated: execs::graph_held(graph),
            instantiates: graph.instantiates,
            age_ns: ledger.age(graph.time_ns),
            stack: graph.stack,
        }
    }
}

impl Exec {
    fn of(ledger: &Ledger, exec: &ExecSlot) -> Self {
        Self {
            handle: exec.handle,
            serial: exec.serial,
            graph_serial: exec.graph_serial,
            state: execs::state_name(exec),
            pinned: execs::why_pinned(exec).map(Pinned::name),
            class: execs::class_name(exec),
            nodes: graphs::by_name(&exec.nodes.map(u64::from)),
            launches: exec.launches,
            updates: exec.updates,
            failed_updates: exec.failed_updates,
            retargets: exec.retargets,
            instantiations: exec.instantiations,
            evictions: exec.evictions,
            saved_ns: exec.saved_ns,
            source_bytes: exec.source_bytes,
            host_bytes_estimated: execs::held(exec).host_all(),
            device_bytes_estimated: execs::held(exec).device,
            real_bytes_estimated: exec.host_bytes.saturating_add(exec.device_bytes),
            age_ns: ledger.age(exec.time_ns),
            stack: exec.stack,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_break_out() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(field("=cmd()"), "\"'=cmd()\"");
    }
}
