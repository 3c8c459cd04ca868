//! `gpumem dump`: a self-contained copy of a ledger: its tables, and the symbols of their stacks.

use super::output::{PRIVATE, save};
use crate::args::Target;
use crate::compose::Composer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::{Ledger, devices, totals};
use crate::source::liveness::Life;
use crate::source::nvml::Books;
use crate::source::open;
use crate::text::{self, units};
use gpumem_wire::layout::{PythonFrame, StackSlot, TableKind};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Save a snapshot with its symbols to a file that every command can read
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The file to write; an existing dump is renamed to FILE~. A device or a pipe is written in place. With - the dump
    /// goes to stdout and the report to stderr [default: gpumem-PID.gpumem]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    #[serde(serialize_with = "crate::text::serialize_path")]
    file: PathBuf,
    /// New path of an earlier dump.
    #[serde(serialize_with = "crate::text::serialize_maybe_path", skip_serializing_if = "Option::is_none")]
    old_file: Option<PathBuf>,
    bytes: u64,
    pid: u32,
    allocs: u64,
    graphs: u64,
    execs: u64,
    stacks: u64,
    symbols: u64,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger, and of writing the file.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let ledger = context.ledger(&self.target)?;
        let (composer, symbols) = compose(context, &ledger, !self.target.no_symbols);
        let output = self.output.clone().unwrap_or_else(|| format!("gpumem-{}.gpumem", ledger.pid()).into());
        let to_stdout = output == Path::new("-");
        let old_file = if to_stdout { None } else { keep(&output) };
        let saved = match to_stdout {
            true => to(&mut std::io::stdout().lock(), composer),
            false => save(&output, PRIVATE, |out| composer.write(out)),
        };
        let name = if to_stdout { "stdout".to_owned() } else { text::os(output.as_os_str()).into_owned() };
        let bytes = saved.map_err(|error| Failure::io(format!("cannot write {name}"), &error))?;
        let report = Report {
            file: output,
            old_file,
            bytes,
            pid: ledger.pid(),
            allocs: ledger.snapshot.allocs.len() as u64,
            graphs: ledger.snapshot.graphs.len() as u64,
            execs: ledger.snapshot.execs.len() as u64,
            stacks: ledger.snapshot.stacks.len() as u64,
            symbols,
        };
        let old = report.old_file.as_deref().map(|old| format!("; the dump that was there is {} now", text::path(old)));
        let said = |out: &mut dyn Write, report: &Report| {
            writeln!(
                out,
                "wrote {} ({}): {}, {}, {}, {}{}",
                text::clean(&name),
                units::bytes(report.bytes),
                text::count(report.allocs, "allocation"),
                text::count(report.graphs, "graph"),
                text::count(report.execs, "exec"),
                text::count(report.symbols, "symbol"),
                old.unwrap_or_default(),
            )
        };
        if !to_stdout {
            return context.print(&report, said);
        }
        let answered = context.answer(&mut anstream::stderr().lock(), &report, said);
        answered.map_err(|error| Failure::io("cannot write to stderr", &error))
    }
}

/// Gives an existing dump a second name, so that a repeated command does not lose a baseline. `None` if there is no
/// dump, or if its file system has no hard links.
fn keep(place: &Path) -> Option<PathBuf> {
    let place = place.canonicalize().ok().filter(|place| place.is_file())?;
    let file = open::any(&place).ok()?;
    open::version(&file)?;
    let old = text::with_ending(&place, "~");
    let _ = std::fs::remove_file(&old);
    std::fs::hard_link(&place, &old).ok().map(|()| old)
}

fn to(out: &mut dyn Write, composer: Composer) -> std::io::Result<u64> {
    let bytes = composer.finish();
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(bytes.len() as u64)
}

/// Returns the dump of a ledger, and the number of its symbols. References (stacks, contexts, streams, texts) keep
/// their numbers.
fn compose(context: &Context, ledger: &Ledger, with_symbols: bool) -> (Composer, u64) {
    let snapshot = &ledger.snapshot;
    let mut composer = Composer::copy_of(&snapshot.header, snapshot.strings());
    let devices = devices::of(ledger, &Books::default());
    if ledger.status.life != Life::Dump {
        composer.header.dumped_ns = ledger.status.now_ns.max(1);
        composer.header.dumped_rss = totals::host(&context.world, ledger).rss_bytes.unwrap_or(0);
        composer.header.dumped_device_used = devices::process_used(ledger, &devices).unwrap_or(0);
    }
    composer.slots(snapshot.allocs.iter().copied());
    composer.slots(snapshot.shared.iter().copied());
    composer.slots(snapshot.modules.iter().copied());
    composer.slots(snapshot.graphs.iter().copied());
    composer.slots(snapshot.execs.iter().copied());
    composer.slots(snapshot.events.iter().copied());
    composer.slots(snapshot.samples.iter().copied());
    composer.slots(snapshot.threads.iter().copied());
    composer.slots_at(snapshot.contexts.iter().map(|(&context, slot)| {
        let mut slot = *slot;
        // The driver's present answer goes into the dump, because it cannot be asked later.
        let of_slot = |device: &&devices::Device| device.device == slot.device && device.used_source == "driver";
        if let Some(device) = devices.iter().find(of_slot) {
            (slot.used_bytes, slot.used_ns, slot.not_ours) = (device.used_bytes, ledger.status.now_ns, 0);
        }
        (usize::from(context) - 1, slot)
    }));
    composer.slots_at(snapshot.streams.iter().map(|(&stream, slot)| (stream as usize - 1, *slot)));
    composer.slots_at(snapshot.codes.iter().map(|(&code, slot)| (code as usize, *slot)));
    composer.words(TableKind::Counters, &totals::counters_of_listed(ledger));
    composer.slots_at(snapshot.growth.rows().map(|(row, slot)| (row as usize, *slot)));
    composer.words(TableKind::GrowthPoints, snapshot.growth.words());
    let mut addresses = BTreeSet::new();
    for (&reference, stack) in &snapshot.stacks {
        let slot = StackSlot {
            first_ns: stack.first_ns,
            allocs: stack.allocs,
            alloc_bytes: stack.alloc_bytes,
            graphs: stack.graphs,
            execs: stack.execs,
            ..Default::default()
        };
        composer.stack(reference as usize - 1, slot, snapshot.frames(stack));
        addresses.extend(snapshot.frames(stack).iter().copied().filter(|&frame| PythonFrame::of(frame).is_none()));
    }
    let mut symbols = 0;
    for address in addresses.into_iter().filter(|_| with_symbols) {
        for (inlined, frame) in ledger.symbols.frames(address).iter().enumerate() {
            let text = |text: &Option<Rc<str>>| text.clone().unwrap_or_default();
            let (function, file, module) = (text(&frame.function), text(&frame.file), text(&frame.module));
            composer.symbol(address, inlined as u32, &function, &file, frame.line.unwrap_or(0), &module);
            symbols += 1;
        }
    }
    (composer, symbols)
}
