//! `gpumem report`: one page of HTML to send to a colleague: growth over time, by call stack, and the remedies.
//!
//! * [`gather`]: the present state of a process. [`recorded`]: the contents of a recording, or of
//!   several that were made together. [`page`]: the page of one process, [`several`] of several.

pub(super) mod gather;
mod page;
mod recorded;
mod several;

use super::output::{PRIVATE, Written};
use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::model::Ledger;
use crate::model::chart::{self, Chart};
use crate::model::course::{self, Course, Moment};
use crate::model::flame::{self, Flame};
use crate::model::summary::Summary;
use crate::source::liveness::Life;
use crate::text::{self, units};
use crate::view::json;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write a page of HTML to send to a colleague: what grew, over time, by call stack, and what to do
///
/// The page is made from a recording of gpumem record, a dump, a running process, or the ledger of one that has ended. If
/// gpumem record recorded several processes of a command, the page of the first file has them all. It is one file that loads nothing else and opens in any browser, offline. It has the command line of the process, and
/// paths, functions and tags of its program: look at it before you send it to strangers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The file to write; with - the page goes to stdout [default: gpumem-PID.html, with --json stdout]
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
}

/// Contents of the page.
#[derive(Serialize)]
pub(super) struct Report {
    source: ReportSource,
    #[serde(flatten)]
    summary: Summary,
    /// Live memory over time.
    charts: Vec<Chart>,
    /// Graphs and execs over time, and their events.
    graph_charts: Vec<Chart>,
    moments: Vec<Moment>,
    flame: Flame,
    /// The largest allocations that were recorded one by one, and the number of all of them.
    large: Vec<LargeOne>,
    large_total: u64,
    /// All processes, if this one was recorded together with others.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    together: Option<recorded::Together>,
}

/// A large allocation.
#[derive(Serialize)]
struct LargeOne {
    bytes: u64,
    kind: String,
    tag: String,
    site: String,
    made_unix_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_unix_ns: Option<u64>,
}

/// Source of the report.
#[derive(Serialize)]
struct ReportSource {
    /// `process`, `ledger` of an ended one, `dump`, or `recording`.
    kind: &'static str,
    /// Source of the timeline, in words.
    timeline: String,
}

/// Most moments that are listed: the newest ones.
const MOMENTS: usize = 200;

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger or the recording, and of writing the file.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        let target = self.target.target.as_deref().or(self.target.file.as_deref());
        let report = match target.and_then(recorded::named) {
            Some(path) => recorded::report(path)?,
            None => Report::of_ledger(context, &context.ledger(&self.target)?),
        };
        let name = match (&self.output, context.global.json) {
            (Some(name), _) => Some(name.clone()).filter(|name| name != Path::new("-")),
            (None, true) => None,
            (None, false) => Some(format!("gpumem-{}.html", report.summary.process.pid).into()),
        };
        let write = |out: &mut dyn Write| report.write(&mut context.limited(out), context.global.json);
        let Some(name) = name else { return context.write(write) };
        let written = Written::new(&name, PRIVATE, write)?;
        context.print(&written, |out, written| writeln!(out, "wrote {written}: open it in a browser"))
    }
}

impl Report {
    fn of_ledger(context: &Context, ledger: &Ledger) -> Self {
        let mut course = course::of_ledger(ledger);
        course.moments.sort_by_key(|moment| moment.unix_ns);
        course.moments.drain(..course.moments.len().saturating_sub(MOMENTS));
        let kind = match ledger.status.life {
            Life::Running | Life::Stopped | Life::BeingParked | Life::Parked | Life::Elsewhere => "process",
            Life::Exited | Life::Killed | Life::Replaced => "ledger",
            Life::Dump => "dump",
        };
        let flame = flame::of_ledger(ledger, &course.held);
        let source = ReportSource { kind, timeline: timeline(&course) };
        Self::new(source, gather::summary(context, ledger), course, flame)
    }

    fn new(source: ReportSource, summary: Summary, course: Course, flame: Flame) -> Self {
        let (charts, graph_charts) = (chart::of_memory(&course), chart::of_graphs(&course));
        let (large, large_total, together) = (Vec::new(), 0, None);
        Self { source, summary, charts, graph_charts, moments: course.moments, flame, large, large_total, together }
    }

    fn write(&self, out: &mut dyn Write, as_json: bool) -> std::io::Result<()> {
        match &self.together {
            _ if as_json => json::print(out, "report", self),
            Some(together) => several::write(out, self, together),
            None => page::write(out, self),
        }
    }
}

/// Describes the timeline of a ledger's own samples.
fn timeline(course: &Course) -> String {
    match course.held.times.as_slice() {
        [first, .., last] => format!(
            "This timeline is made of {} that the process took of itself over {}. They are close together at the \
             end; far back each stands for a longer time, and has the least that was held in it. gpumem record keeps \
             one for every second.",
            text::count(course.held.times.len() as u64, "sample"),
            units::span(last.saturating_sub(*first)),
        ),
        _ => {
            "There is no timeline: the process took no samples of itself. gpumem record takes one every second.".into()
        }
    }
}
