//! `gpumem stats`: totals, and the device and host memory that they explain.
//!
//! * [`short`]: the most common questions. [`whole`]: everything.
//! * [`devices`]: the memory of devices, for both.

mod devices;
mod short;
mod whole;

use super::several;
use crate::args::Target;
use crate::context::Context;
use crate::failure::Result;
use crate::model::Head;
use crate::model::growth::{self, Growth};
use crate::model::left::{self, LeftByGraphs};
use crate::model::overview::Overview;
use crate::model::shared::Shared;
use crate::model::taken::{self, TakenBy};
use crate::model::totals::{self, Host};
use crate::report::head;
use crate::source::nvml::Books;
use gpumem_wire::counters;
use serde::Serialize;
use std::collections::BTreeMap;

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
        context.print(&report, |out, report| {
            head::print(out, &report.process, &ledger)?;
            match self.all {
                true => whole::print(out, report)?,
                false => short::print(out, report)?,
            }
            if self.samples { whole::print_samples(out, report) } else { Ok(()) }
        })
    }
}
