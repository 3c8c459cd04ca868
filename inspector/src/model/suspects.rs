//! Likely leaks: call sites, tags and classes of graphs with their memory over time, most likely first.

use super::Ledger;
use super::ages::{OfAge, ages};
use super::allocs::{self, By, Group};
use super::balance::Balance;
use super::changes::minus;
use super::execs::hex;
use super::history::{Samples, Series};
use super::judged::{self, Judged};
use super::key::GroupKey;
use super::live::{Live, numbered};
use super::marks::{self, Moment};
use super::sites::Sites;
use super::verdict::Verdict;
use gpumem_wire::kinds::GrowthKind;
use gpumem_wire::layout::StackRef;
use gpumem_wire::read::Point;
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Nanoseconds in a minute.
const MINUTE_NS: u64 = 60_000_000_000;
/// Windows in minutes over which growth is given, as far as the samples go back.
const WINDOWS: [u64; 3] = [1, 5, 15];

/// The heap may grow by one part in this many of the call sites' growth, for the driver's records of it.
const OF_RECORDS: f64 = 16.0;

/// Most heap bytes that the driver takes for a stream, an event, a context or a module. A stream takes most.
const OF_THING: f64 = 262_144.0;

/// Smaller growth of the heap is not reported: the driver and gpumem take as much for a while.
const LITTLE_HEAP: i64 = 1 << 20;

/// Growth since a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Grown {
    /// `1 min`, `mark warm`, ….
    pub since: String,
    /// Time since then.
    pub over_ns: u64,
    pub bytes_change: i64,
    pub count_change: i64,
}

/// A holder of memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Suspect {
    #[serde(serialize_with = "as_name")]
    pub kind: GrowthKind,
    /// The call site, the tag, or the class.
    pub key: String,
    pub verdict: Verdict,
    pub bytes: u64,
    /// True if its bytes are measured by the fall of the device's free memory: other processes may have taken some of
    /// it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub measured: bool,
    pub live: u64,
    pub peak_bytes: u64,
    /// Ages of the oldest and newest live record; 0 if none is live.
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
    /// Ages of the first allocation there and of the last one in a sample. Only for call sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen_age_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen_age_ns: Option<u64>,
    /// Number ever made here, if that is counted, and the freed share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_allocs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_share: Option<f64>,
    /// For a call site of graphs: the made and destroyed graphs or execs behind these two numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    pub ages: Vec<OfAge>,
    pub growth: Vec<Grown>,
    /// Growth over the later half of the samples.
    pub bytes_per_minute: f64,
    /// The same for the count, for kinds without bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_per_minute: Option<f64>,
    /// Mean growth from mark to mark, if there are two or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_mark: Option<f64>,
    /// True if it grew steadily, and made nothing for some time.
    #[serde(skip)]
    pub has_paused: bool,
    /// Number of points behind the verdict, and the time that they cover.
    pub samples: usize,
    pub sampled_ns: u64,
    #[serde(skip)]
    pub stack: StackRef,
    #[serde(skip)]
    pub series: Series,
}

fn as_name<S: Serializer>(kind: &GrowthKind, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(kind)
}

impl Suspect {
    /// True for suspects to look at first.
    pub(crate) fn grows(&self) -> bool {
        self.verdict == Verdict::GrowsSteadily
    }

    /// Returns the growth since the requested moment.
    pub(crate) fn since(&self) -> Option<&Grown> {
        self.growth.last()
    }

    /// Returns the most bytes by which it may have grown since then. Without samples it may be all of them.
    pub(crate) fn may_have_grown(&self) -> u64 {
        self.since().map_or(self.bytes, |grown| u64::try_from(grown.bytes_change).unwrap_or(0))
    }
}

/// All suspects, with the data behind them.
pub(crate) struct Suspects {
    pub samples: Samples,
    /// Call sites of memory and of graphs, then tags and classes, each with the most likely leak first.
    pub all: Vec<Suspect>,
    /// The process's own heap.
    pub heap: Option<Suspect>,
    /// Number of call sites that hold memory and have no row, for lack of room.
    pub without_row: u64,
    /// Number of allocations whose call stack is not in `all`: they were freed before a sample saw them, or take no
    /// memory of their own.
    pub unlisted_allocs: u64,
}

/// Returns the call sites that grow steadily.
pub(crate) fn growing(all: &[Suspect]) -> impl Iterator<Item = &Suspect> {
    all.iter().filter(|suspect| is_site(suspect) && suspect.grows())
}

/// Returns the call sites that grew, and on which there is no verdict yet: the one that grew most first.
pub(crate) fn unclear(all: &[Suspect]) -> Vec<&Suspect> {
    let things =
        |suspect: &Suspect| suspect.count_per_minute.and(suspect.since()).map_or(0, |of| of.count_change.max(0));
    let grew = |suspect: &Suspect| (suspect.may_have_grown(), things(suspect));
    let is_unclear =
        |suspect: &&Suspect| is_site(suspect) && suspect.verdict == Verdict::TooLittle && grew(suspect) > (0, 0);
    let mut unclear: Vec<&Suspect> = all.iter().filter(is_unclear).collect();
    unclear.sort_by_key(|suspect| std::cmp::Reverse(grew(suspect)));
    unclear
}

/// Returns all holders in the ledger.
pub(crate) fn find(ledger: &Ledger, since: Option<&Moment>) -> Suspects {
    let samples = Samples::of(ledger);
    // A sample does not see what is allocated while it is taken.
    let seen_ns = samples.points.iter().rev().nth(1).map_or(0, |point| point.time_ns);
    let numbered = numbered(ledger, &samples);
    let made = numbered.iter().filter(|((kind, _), _)| *kind != GrowthKind::Heap).map(|(_, live)| live.newest_ns());
    let active_ns = made.max().unwrap_or(0);
    let is_lost = |kind: GrowthKind, live: &Live| {
        kind == GrowthKind::Site && !live.has_row && live.born.iter().any(|&(time_ns, _)| time_ns < seen_ns)
    };
    let without_row = numbered.iter().filter(|((kind, _), live)| is_lost(*kind, live)).count() as u64;
    let stacks = ledger.snapshot.stacks.iter();
    let unlisted = stacks.filter(|&(&stack, _)| !numbered.contains_key(&(GrowthKind::Site, stack.into())));
    let unlisted_allocs = unlisted.fold(0_u64, |sum, (_, totals)| sum.saturating_add(totals.allocs));
    let names = SiteNames {
        sites: Sites::of_allocs(ledger),
        graphs: Sites::of_graphs(ledger),
        others: Sites::of_others(ledger),
    };
    let mut named: BTreeMap<(GrowthKind, Rc<str>), Live> = BTreeMap::new();
    for ((kind, number), live) in numbered {
        named.entry((kind, names.name(ledger, kind, number))).or_default().join(live);
    }
    let mut all: Vec<Suspect> = named
        .into_iter()
        .map(|((kind, name), live)| suspect(ledger, &samples, (since, active_ns), kind, &name, live))
        .collect();
    let heap = all.iter().position(|suspect| suspect.kind == GrowthKind::Heap).map(|at| all.remove(at));
    let heap = heap.map(|heap| outside(heap, &all));
    all.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| worse(a, b)).then_with(|| a.key.cmp(&b.key)));
    Suspects { samples, all, heap, without_row, unlisted_allocs }
}

/// Sets the growth of live bytes in each group, since a moment or over the later half of the samples: memory made at
/// the start is no growth. `None` if the ledger keeps no history of such groups.
pub(crate) fn add_growth(ledger: &Ledger, by: By, since: Option<&Moment>, groups: &mut [Group]) -> Option<()> {
    let kind = match by {
        By::Site | By::Stack => GrowthKind::Site,
        By::Tag => GrowthKind::Tag,
        _ => return None,
    };
    let samples = Samples::of(ledger);
    let sites = if by == By::Site { Sites::of_allocs(ledger) } else { Sites::default() };
    let half = samples.points.last().map_or(0, |last| samples.before(last.time_ns, samples.span_ns() / 2));
    let from = since.map_or(half, |moment| moment.at_ns);
    let mut grown: FxHashMap<GroupKey, i64> = FxHashMap::default();
    for ((_, number), live) in numbered(ledger, &samples).into_iter().filter(|((of, _), _)| *of == kind) {
        let key = allocs::key(ledger, &sites, by, u32::try_from(number).unwrap_or(0).into());
        if let Some(then) = live.series.at(&samples, from) {
            let sum = grown.entry(key).or_default();
            *sum = sum.saturating_add(minus(live.bytes, then.bytes));
        }
    }
    groups.iter_mut().for_each(|group| group.growth = grown.get(&group.key).copied());
    Some(())
}

/// Returns the heap, without growth that call sites explain: the driver keeps graphs there, and a record of each
/// allocation.
fn outside(mut heap: Suspect, all: &[Suspect]) -> Suspect {
    let graphs = || all.iter().filter(|suspect| suspect.kind == GrowthKind::Graphs);
    heap.bytes_per_minute -= graphs().map(|graphs| graphs.bytes_per_minute.max(0.0)).sum::<f64>();
    for (place, grown) in heap.growth.iter_mut().enumerate() {
        let of_graphs = graphs().filter_map(|graphs| graphs.growth.get(place)).map(|grown| grown.bytes_change.max(0));
        grown.bytes_change = grown.bytes_change.saturating_sub(of_graphs.fold(0, i64::saturating_add));
    }
    let of_sites: f64 = growing(all).map(|site| site.bytes_per_minute).sum();
    let of_things: f64 = growing(all).filter_map(|site| site.count_per_minute).sum();
    let is_explained = heap.bytes_per_minute <= of_sites.max(0.0) / OF_RECORDS + of_things * OF_THING;
    let is_little = heap.since().is_some_and(|grown| grown.bytes_change < LITTLE_HEAP);
    if heap.grows() && (is_explained || is_little) {
        heap.verdict = Verdict::LevelledOff;
    }
    heap
}

/// Ranks call sites before tags and classes, which repeat the same bytes; then by the verdict.
fn rank(suspect: &Suspect) -> (bool, Verdict) {
    (!is_site(suspect), suspect.verdict)
}

/// True for a call site.
pub(crate) fn is_site(suspect: &Suspect) -> bool {
    use GrowthKind::*;
    !matches!(suspect.kind, Tag | Class | Heap)
}

fn worse(a: &Suspect, b: &Suspect) -> std::cmp::Ordering {
    let rate = |suspect: &Suspect| if suspect.grows() { suspect.bytes_per_minute } else { 0.0 };
    let young = |suspect: &Suspect| suspect.since().map_or(0, |grown| grown.bytes_change);
    rate(b).total_cmp(&rate(a)).then_with(|| match a.verdict {
        Verdict::TooLittle => young(b).cmp(&young(a)),
        _ => b.bytes.cmp(&a.bytes),
    })
}

/// Names of call sites.
struct SiteNames {
    sites: Sites,
    graphs: Sites,
    others: Sites,
}

impl SiteNames {
    fn name(&self, ledger: &Ledger, kind: GrowthKind, number: u64) -> Rc<str> {
        let reference = u32::try_from(number).unwrap_or(0);
        match kind {
            GrowthKind::Site => self.sites.name(reference),
            GrowthKind::Graphs => self.graphs.name(reference),
            GrowthKind::Code | GrowthKind::Streams | GrowthKind::Events | GrowthKind::Contexts => {
                self.others.name(reference)
            }
            GrowthKind::Tag => ledger.snapshot.name(reference).into(),
            GrowthKind::Class => hex(number).into(),
            GrowthKind::Heap => "the process's own heap".into(),
        }
    }
}

fn suspect(
    ledger: &Ledger,
    samples: &Samples,
    (since, active_ns): (Option<&Moment>, u64),
    kind: GrowthKind,
    name: &str,
    mut live: Live,
) -> Suspect {
    live.born.sort_unstable();
    let (bytes, count) = match kind {
        // For the heap there are only samples.
        GrowthKind::Heap => live.series.points.last().map_or((0, 0), |point| (point.bytes, point.count)),
        _ => (live.bytes, live.born.len() as u64),
    };
    let age = |born: Option<&(u64, u64)>| born.map_or(0, |&(time_ns, _)| ledger.age(time_ns));
    let seen = |ns: u64| Some(ns).filter(|&ns| ns > 0 && live.first_ns > 0).map(|ns| ledger.age(ns));
    // The newest allocation is in no sample yet.
    let last_ns = live.newest_ns();
    let now = Point { time_ns: ledger.status.now_ns, samples: 1, bytes, count };
    let Judged { verdict, has_paused, balance, bytes_per_minute, count_per_minute } =
        judged::judge(ledger, samples, active_ns, kind, &live, now);
    // Frees by tag and class are not counted.
    let counted = balance.map_or((live.ever, live.ever.saturating_sub(count)), |of| (of.made, of.destroyed));
    let counted = Some(counted).filter(|&(ever, _)| ever > 0);
    Suspect {
        kind,
        key: name.to_owned(),
        verdict,
        bytes,
        measured: live.is_measured && bytes > 0,
        live: count,
        peak_bytes: live.peak.max(bytes),
        oldest_age_ns: age(live.born.first()),
        newest_age_ns: age(live.born.last()),
        first_seen_age_ns: seen(live.first_ns),
        last_seen_age_ns: seen(last_ns),
        total_allocs: counted.map(|(ever, _)| ever),
        freed_share: counted.map(|(ever, freed)| freed as f64 / ever as f64),
        balance,
        ages: ages(ledger, &live.born),
        growth: grown(samples, &live.series, since, now),
        bytes_per_minute,
        count_per_minute,
        bytes_per_mark: per_mark(ledger, samples, &live.series).filter(|_| count_per_minute.is_none()),
        has_paused,
        samples: live.series.points.len(),
        sampled_ns: samples.unparked_over(&live.series.points),
        stack: live.stack,
        series: live.series,
    }
}

/// Returns the growth over the usual windows and the whole time, or since the requested moment.
fn grown(samples: &Samples, series: &Series, since: Option<&Moment>, now: Point) -> Vec<Grown> {
    let change = |name: String, at_ns: u64| {
        let then = series.at(samples, at_ns)?;
        Some(Grown {
            since: name,
            over_ns: samples.unparked_ns(then.time_ns, now.time_ns),
            bytes_change: minus(now.bytes, then.bytes),
            count_change: minus(now.count, then.count),
        })
    };
    if let Some(moment) = since {
        return change(moment.name.clone(), moment.at_ns).into_iter().collect();
    }
    let Some(first) = samples.points.first().map(|point| point.time_ns) else { return Vec::new() };
    let window = |minutes: &u64| {
        let at_ns = samples.before(now.time_ns, minutes * MINUTE_NS);
        (at_ns > first).then(|| change(format!("{minutes} min"), at_ns)).flatten()
    };
    let mut grown: Vec<Grown> = WINDOWS.iter().filter_map(window).collect();
    grown.extend(change("the first sample".into(), first));
    grown
}

/// Returns the mean growth per mark, from the first to the last mark that has samples.
fn per_mark(ledger: &Ledger, samples: &Samples, series: &Series) -> Option<f64> {
    let begin = samples.points.first()?.time_ns;
    let marks: Vec<u64> = marks::marks(ledger).map(|mark| mark.time_ns).filter(|&time| time >= begin).collect();
    let (first, last) = (*marks.first()?, *marks.last()?);
    let steps = marks.len().checked_sub(1).filter(|&steps| steps > 0)?;
    let held = |at| series.at(samples, at).map(|point| point.bytes);
    Some(minus(held(last)?, held(first)?) as f64 / steps as f64)
}
