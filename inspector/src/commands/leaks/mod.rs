//! `gpumem leaks`: growing memory: who holds it, since when, how fast, and what to do about it.
//!
//! * [`text`](mod@text): the report for people. [`suspect`]: allocations with few references left.

mod suspect;
pub(super) mod text;

use super::several;
use crate::args::{Target, rate, since, size, span};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::model::allocs::{self, By, Filter};
use crate::model::key::GroupKey;
use crate::model::left::{self, LeftByGraphs};
use crate::model::marks::{self, Since};
use crate::model::parts::Part;
use crate::model::shared::Shared;
use crate::model::suspects::{self, Suspect, Suspects, is_site};
use crate::model::verdict::{ENOUGH, Verdict};
use crate::model::{Head, Ledger, unmapped};
use crate::report::cure::Cure;
use crate::report::growth;
use crate::symbols::Frame;
use crate::text::units;
use gpumem_wire::kinds::GrowthKind;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// Show what keeps growing: call sites, tags and graphs, with growth, age, and a verdict
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only growth since then: a time such as 5m, or the name of a mark
    #[arg(long, value_name = "TIME|MARK", value_parser = since)]
    since: Option<Since>,
    /// Also show in full what does not grow, and each class of graphs
    #[arg(long)]
    all: bool,
    /// How many suspects to show; 0 shows all [default: 40, in JSON all]
    #[arg(short = 'n', long, value_name = "ROWS", value_parser = crate::args::number::<usize>)]
    limit: Option<usize>,
    /// Show the call stack of each suspect
    #[arg(long)]
    stacks: bool,
    /// Exit with 3 if the call sites that grow steadily grew by more than this in total. With --since, all call sites
    /// that hold more now than at that moment count instead; call sites that hold less are not subtracted
    #[arg(long, value_name = "SIZE", value_parser = size)]
    fail_over: Option<u64>,
    /// Exit with 3 if the call sites that grow steadily grow faster than this in total, such as 1MiB/min
    #[arg(long, value_name = "SIZE/min", value_parser = rate)]
    fail_rate: Option<f64>,
    /// Search the process's memory twice for references to each allocation, and show those with none or few
    ///
    /// Needs a running process. With --fail-over: exit with 3 if the suspect allocations have more bytes than that, and
    /// with 1 if the search cannot tell.
    #[arg(long, conflicts_with_all = ["since", "stacks", "fail_rate"])]
    suspect: bool,
    /// Longest time for both searches and the pause between them
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s", requires = "suspect")]
    timeout: Duration,
    /// Pause between the two searches; no more than a third of --timeout
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s", requires = "suspect")]
    pause: Duration,
    /// Do not judge allocations that are younger than this
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s", requires = "suspect")]
    older: Duration,
}

#[derive(Serialize)]
struct Report {
    process: Head,
    /// Number of sampled points in time, and the age of the first.
    samples: usize,
    sampled_ns: u64,
    /// Time between two samples; 0 if only marks cause samples.
    interval_ns: u64,
    /// True if there are enough samples for verdicts.
    enough: bool,
    /// Problems with the samples.
    remarks: Vec<String>,
    /// The requested moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    suspects: Vec<SuspectRow>,
    suspects_total: usize,
    /// Allocations of call sites that are not listed, because no sample saw them.
    unlisted_allocs: u64,
    /// The process's own heap, without the part that graphs take: growth outside of gpumem's view.
    #[serde(skip_serializing_if = "Option::is_none")]
    heap: Option<Suspect>,
    /// Number of call sites that grow steadily.
    growing: usize,
    growing_bytes: i64,
    growing_bytes_per_minute: f64,
    /// Memory left behind by launches of destroyed graphs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_by_graphs: Vec<LeftByGraphs>,
    /// Memory that is freed here and open elsewhere, or owned by another process.
    #[serde(skip_serializing_if = "Shared::is_empty")]
    sharing: Shared,
    /// Call sites that hold something, for the text.
    #[serde(skip)]
    holding: Holding,
    /// Classes that the text sums up.
    #[serde(skip)]
    summed: Summed,
}

/// Call sites that hold memory, and those that hold things without bytes, with the kinds of these things.
struct Holding {
    memory: u64,
    things: u64,
    kinds: BTreeSet<&'static str>,
}

impl Holding {
    fn of(all: &[Suspect]) -> Self {
        let sites = || all.iter().filter(|suspect| is_site(suspect));
        let things = || sites().filter(|suspect| suspect.bytes == 0 && suspect.live > 0);
        Self {
            memory: sites().filter(|suspect| suspect.bytes > 0).count() as u64,
            things: things().count() as u64,
            kinds: things().map(|suspect| suspect.kind.name()).collect(),
        }
    }
}

/// Classes of graphs: there may be thousands, and they repeat the bytes of call sites.
#[derive(Default)]
pub(super) struct Summed {
    classes: u64,
    bytes: u64,
    /// Number of those without a verdict yet.
    too_little: u64,
    growing: u64,
}

impl Summed {
    /// Takes the classes out of a list, and what holds nothing and has not come back.
    pub(super) fn take_from(all: &mut Vec<Suspect>) -> Self {
        let mut summed = Self::default();
        all.retain(|suspect| suspect.bytes > 0 || suspect.grows());
        all.retain(|suspect| {
            let stays = suspect.kind != GrowthKind::Class;
            if !stays {
                summed.classes += 1;
                summed.bytes = summed.bytes.saturating_add(suspect.bytes);
                summed.too_little += u64::from(suspect.verdict == Verdict::TooLittle);
                summed.growing += u64::from(suspect.grows());
            }
            stays
        });
        summed
    }
}

/// A suspect, with its remedy.
#[derive(Serialize)]
pub(super) struct SuspectRow {
    #[serde(flatten)]
    suspect: Suspect,
    #[serde(skip_serializing_if = "Option::is_none")]
    caveat: Option<&'static str>,
    /// For physical memory: number of handles that are mapped nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    mapped_nowhere: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Memory that the program's own allocators handed out of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Part>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of choosing and reading the ledger, and of asking the process; a missing mark; `Code::Nothing` for more
    /// growth than is allowed; `Code::Error` if there are too few samples to tell.
    pub(super) fn run(&self, context: &Context) -> Result<()> {
        if self.suspect {
            return suspect::run(self, context);
        }
        let gate = self.fail_over.is_some() || self.fail_rate.is_some();
        let for_one = gate || self.since.is_some() || self.limit.is_some() || self.all || self.stacks;
        let Some(ledger) = several::one_or_answer(context, &self.target, for_one)? else { return Ok(()) };
        let moment = self.since.as_ref().map(|since| marks::moment(&ledger, since)).transpose();
        let moment = moment.map_err(Failure::usage)?;
        let found = suspects::find(&ledger, moment.as_ref());
        let verdict = self.fails(&found);
        let report = self.report(context, &ledger, found, moment.map(|moment| moment.name));
        context.print(&report, |out, report| text::print(out, report, &ledger, self.all))?;
        verdict
    }

    fn report(&self, context: &Context, ledger: &Ledger, found: Suspects, since: Option<String>) -> Report {
        let remarks = growth::remarks(ledger, &found);
        let growing: Vec<&Suspect> = suspects::growing(&found.all).collect();
        let growing_bytes_per_minute = growth::per_minute(suspects::growing(&found.all));
        let (growing, growing_bytes) = (growing.len(), sum(&growing));
        let heap = found.heap;
        let (samples, sampled_ns) = (found.samples.points.len(), found.samples.span_ns());
        let mut all = found.all;
        let holding = Holding::of(&all);
        let every = self.all || context.global.json;
        let summed = if every { Summed::default() } else { Summed::take_from(&mut all) };
        let suspects_total = all.len();
        all.truncate(context.rows(self.limit));
        let row = rows(ledger, self.stacks);
        Report {
            process: Head::of(ledger),
            samples,
            sampled_ns,
            interval_ns: ledger.settings().growth_interval,
            enough: samples >= ENOUGH,
            remarks,
            since,
            suspects: all.into_iter().map(row).collect(),
            suspects_total,
            unlisted_allocs: found.unlisted_allocs,
            heap,
            growing,
            growing_bytes,
            growing_bytes_per_minute,
            left_by_graphs: left::by_graphs(ledger),
            sharing: context.shared(ledger, &self.target),
            holding,
            summed,
        }
    }

    /// Fails if there is more growth than the user allows.
    fn fails(&self, found: &Suspects) -> Result<()> {
        let Self { since, fail_over, fail_rate, .. } = self;
        if fail_over.is_none() && fail_rate.is_none() {
            return Ok(());
        }
        let sites: Vec<&Suspect> = found.all.iter().filter(|suspect| is_site(suspect)).collect();
        let growing: Vec<&Suspect> = suspects::growing(&found.all).collect();
        // With a moment, bytes are compared, and no verdict is needed.
        let judged = fail_rate.is_some() || since.is_none();
        let samples = found.samples.points.len();
        if judged && samples < ENOUGH {
            let said = format!("too little to judge: {samples} samples, {ENOUGH} are needed");
            return Err(
                Failure::error(said).fix("let it run longer, or start it with a shorter GPUMEM_GROWTH_INTERVAL")
            );
        }
        if since.is_some() && found.samples.points.is_empty() {
            return Err(Failure::error("there is no sample to compare with"));
        }
        let grown = sum(if since.is_some() { &sites } else { &growing });
        let rate = growth::per_minute(suspects::growing(&found.all));
        let more = |what: String, than: String| Err(Failure::nothing(format!("grew by {what}, more than {than}")));
        let is_more = |grown: i64, most: u64| grown > i64::try_from(most).unwrap_or(i64::MAX);
        // Call sites without a verdict may be what grows.
        let unclear = suspects::unclear(&found.all);
        let may_grow = unclear.iter().map(|suspect| i64::try_from(suspect.may_have_grown()).unwrap_or(i64::MAX));
        let may_grow = may_grow.fold(grown, i64::saturating_add);
        let rates = unclear.iter().map(|suspect| suspect.bytes_per_minute.max(0.0));
        let may_rate = rates.fold(rate, |sum, rate| sum + rate);
        match (fail_over, fail_rate) {
            (Some(most), _) if is_more(grown, *most) => more(units::signed_bytes(grown), units::bytes(*most)),
            (_, Some(most)) if rate > *most => more(growth::rate(rate), growth::rate(*most)),
            (Some(most), _) if since.is_none() && is_more(may_grow, *most) => too_little(&unclear),
            (_, Some(most)) if may_rate > *most => too_little(&unclear),
            _ => Ok(()),
        }
    }
}

/// Fails because call sites without a verdict may have grown by more than is allowed.
fn too_little(unclear: &[&Suspect]) -> Result<()> {
    let said = format!("too little to judge: {}", growth::without_verdict(unclear));
    Err(Failure::error(said).fix("ask again later, while the program works"))
}

/// Returns a function that adds the remedy to a suspect.
pub(super) fn rows(ledger: &Ledger, stacks: bool) -> impl Fn(Suspect) -> SuspectRow {
    let parts = |by| allocs::parts(ledger, &Filter::default(), by);
    let (of_sites, of_tags) = (parts(By::Site), parts(By::Tag));
    let unmapped = unmapped::by_site(ledger);
    move |suspect| {
        let (parts, mapped_nowhere) = match suspect.kind {
            GrowthKind::Site => {
                let parts = of_sites.get(&GroupKey::Site(suspect.key.as_str().into()));
                (parts, unmapped.get(&*suspect.key).copied())
            }
            GrowthKind::Tag => (of_tags.get(&GroupKey::Tag(suspect.key.clone())), None),
            _ => (None, None),
        };
        SuspectRow {
            mapped_nowhere,
            parts: parts.cloned().unwrap_or_default(),
            caveat: growth::caveat(ledger, &suspect),
            next: growth::advice(ledger, &suspect).map(Cure::text),
            stack: if stacks { ledger.frames(suspect.stack) } else { Vec::new() },
            suspect,
        }
    }
}

/// Returns the sum of the growth of the growing ones, since the requested moment or the first sample.
fn sum(suspects: &[&Suspect]) -> i64 {
    let grown = suspects.iter().filter_map(|suspect| suspect.since()).map(|grown| grown.bytes_change.max(0));
    grown.fold(0, i64::saturating_add)
}
