//! `gpumem export`: memory of a process, for other tools: collectors, profile viewers, spreadsheets.
//!
//! * [`rows`]: everything, as JSON; one line for each allocation.
//! * [`stacks`]: live memory by call stack, for viewers: folded, and for speedscope. [`pprof`] is among the metrics.
//! * [`torch`]: a snapshot in PyTorch's format. [`timeline`]: samples and events over time.
//! * [`trace`]: each allocation and free in a trace.

mod rows;
mod stacks;
mod timeline;
mod torch;
mod trace;

use super::output::{FOR_OTHERS, PRIVATE, Written};
use crate::args::Target;
use crate::context::{Context, to_stdout};
use crate::failure::{Code, Failure, Result};
use crate::metrics::{self, Detail, Page, pprof};
use crate::model::Ledger;
use crate::text;
use crate::view::json;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Export for other tools: profiles, timelines, snapshots, numbers
///
/// Profiles have live memory by call stack. Prometheus text has all processes, unless one is named.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The format [default: by the ending of FILE; json if --json is given and no FILE]
    #[arg(long, visible_alias = "format", value_enum, value_name = "FORMAT")]
    to: Option<Format>,
    /// The file to write; without it, or with -, stdout
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

/// Forms of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Prometheus' text format, for a textfile collector (.prom)
    Prometheus,
    /// Everything in the ledger: every allocation, graph, exec, counter, sample (.json)
    Json,
    /// A line for each live allocation. If the input is a trace (GPUMEM_ALLOC_TRACE), a line for each allocation and
    /// each free, in the columns of the log of RMM, the RAPIDS Memory Manager (.csv)
    Csv,
    /// A line of JSON for each live allocation (.jsonl)
    Jsonl,
    /// A line for each call stack, for flame graphs: inferno, flamegraph.pl (.folded)
    Folded,
    /// For <https://www.speedscope.app> (.speedscope.json)
    Speedscope,
    /// A heap profile for pprof (.pb.gz, .pprof)
    Pprof,
    /// A snapshot for <https://pytorch.org/memory_viz> and torch.cuda._memory_viz (.pickle)
    MemoryViz,
    /// Samples and events over time, for Perfetto and chrome://tracing (.trace.json)
    Trace,
}

/// Endings of file names, the longest first.
const ENDINGS: &[(&str, Format)] = &[
    (".speedscope.json", Format::Speedscope),
    (".trace.json", Format::Trace),
    (".prom", Format::Prometheus),
    (".jsonl", Format::Jsonl),
    (".json", Format::Json),
    (".csv", Format::Csv),
    (".folded", Format::Folded),
    (".pb.gz", Format::Pprof),
    (".pprof", Format::Pprof),
    (".pickle", Format::MemoryViz),
];

impl Format {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, format)| format)
    }

    /// True if a terminal can show it.
    fn is_text(self) -> bool {
        !matches!(self, Self::Pprof | Self::MemoryViz)
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger, and of writing the file.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let file = self.output.as_deref().filter(|path| *path != Path::new("-"));
        let of_json = || (file.is_none() && context.global.json).then_some(Format::Json);
        let Some(format) = self.to.or_else(|| file.and_then(Format::of)).or_else(of_json) else {
            let endings = ENDINGS.iter().map(|(ending, _)| *ending).collect::<Vec<_>>().join(" ");
            let (code, what) = match file {
                Some(path) => {
                    let name = text::os(path.as_os_str());
                    (Code::Error, format!("the ending of {} names no format", text::clean(&name)))
                }
                None => (Code::Usage, "no file is named, and no format".into()),
            };
            let fix = "name a file with one of them (-o FILE), or the format: --to speedscope";
            return Err(Failure::new(code, format!("{what}; known are {endings}")).fix(fix));
        };
        if file.is_none() && !matches!(format, Format::Json | Format::Jsonl) {
            let name = clap::ValueEnum::to_possible_value(&format);
            context.no_json(&format!("--to {}", name.as_ref().map_or("FORMAT", |name| name.get_name())))?;
        }
        let named = self.target.target.is_some() || self.target.file.is_some();
        // Metrics cover all processes unless one is named. For a collector no processes is a result too.
        let all = format == Format::Prometheus && !named;
        let target = self.target.target.as_deref().or(self.target.file.as_deref()).map(Path::new);
        let trace = target.filter(|_| format == Format::Csv).map(trace::named).transpose()?.flatten();
        let ledger = if all || trace.is_some() { None } else { Some(context.ledger(&self.target)?) };
        let detail = Detail { top: metrics::TOP, symbols: !self.target.no_symbols };
        let write = |out: &mut dyn Write| match (&trace, &ledger) {
            (Some(trace), _) => trace::csv(out, trace),
            (None, Some(ledger)) => print(&mut context.limited(out), context, format, ledger),
            (None, None) => write_page(out, &metrics::of_all(&context.world, detail)),
        };
        let Some(path) = file else {
            if format.is_text() {
                return context.write(write);
            }
            if std::io::stdout().is_terminal() {
                return Err(
                    Failure::error("this format is binary, and stdout is a terminal").fix("write a file: -o FILE")
                );
            }
            let mut out = std::io::stdout().lock();
            let written = write(&mut out).and_then(|()| out.flush());
            return written.map_err(to_stdout);
        };
        // A page of metrics is for a collector, which runs as another user.
        let mode = if format == Format::Prometheus { FOR_OTHERS } else { PRIVATE };
        let written = Written::new(path, mode, write)?;
        context.print(&written, |out, written| writeln!(out, "wrote {written}"))
    }
}

fn print(out: &mut dyn Write, context: &Context, format: Format, ledger: &Ledger) -> std::io::Result<()> {
    match format {
        Format::Prometheus => write_page(out, &metrics::of_one(&context.world, ledger, metrics::TOP)),
        Format::Json => json::print(out, "export", &rows::everything(context, ledger)),
        Format::Csv => rows::csv(out, ledger),
        Format::Jsonl => rows::json_lines(out, ledger),
        Format::Folded => stacks::folded(out, ledger),
        Format::Speedscope => stacks::speedscope(out, ledger),
        Format::Pprof => pprof::write(out, ledger),
        Format::MemoryViz => torch::write(out, ledger),
        Format::Trace => timeline::write(out, ledger),
    }
}

fn write_page(out: &mut dyn Write, page: &Page) -> std::io::Result<()> {
    out.write_all(page.write(metrics::Format::Text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_name_formats() {
        for (name, format) in [
            ("a.speedscope.json", Some(Format::Speedscope)),
            ("a.json", Some(Format::Json)),
            ("x/a.pb.gz", Some(Format::Pprof)),
            ("a.txt", None),
            ("json", None),
        ] {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
        assert!(ENDINGS.is_sorted_by(|a, b| !b.0.ends_with(a.0)), "an ending hides a longer one");
    }
}
