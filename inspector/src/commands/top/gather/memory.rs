//! Data kept from one look to the next, and the totals of a process by name.

use super::super::look::Ask;
use crate::model::allocs::{self, By, Filter};
use crate::model::key::GroupKey;
use crate::model::overview::Overview;
use crate::model::sites::Sites;
use crate::model::verdict::Verdict;
use crate::model::{Ledger, graphs, suspects};
use crate::source::nvml::Books;
use clap::ValueEnum;
use gpumem_wire::kinds::GrowthKind;
use gpumem_wire::layout::SampleSlot;
use rustc_hash::FxHashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// All kept data.
#[derive(Default)]
pub(in super::super) struct Memory {
    /// Counters of the last two looks, with the times of reading.
    counts: Option<Counts>,
    before: Option<Counts>,
    baseline: Option<Baseline>,
    judged: Option<Judged>,
}

struct Counts {
    at_ns: u64,
    by_index: Vec<u64>,
}

/// Numbers of groups, by key.
type NumbersByKey<const N: usize> = FxHashMap<GroupKey, [u64; N]>;

/// Reference values for differences.
pub(super) struct Baseline {
    number: u64,
    pub at: Instant,
    /// Bytes and number of live allocations, for each grouping. Call sites are kept as stacks, which get names later.
    allocs: Vec<NumbersByKey<2>>,
    /// Execs, graphs, and their device and host bytes.
    graphs: Vec<NumbersByKey<4>>,
    /// Totals, by name.
    pub numbers: FxHashMap<&'static str, u64>,
    counters: Vec<u64>,
}

/// Verdicts on call sites. They are not made at every look, since they read every allocation.
struct Judged {
    at: Instant,
    took: Duration,
    of_ns: u64,
    verdicts: FxHashMap<Rc<str>, Verdict>,
}

/// Most of the time that verdicts may take, as a share.
const JUDGING: u32 = 50;
/// Shortest time between verdicts.
const JUDGED: Duration = Duration::from_secs(2);

impl Memory {
    /// Keeps a look's data for the next ones.
    pub(super) fn remember(&mut self, ledger: &Ledger, ask: &Ask) {
        let at_ns = ledger.status.now_ns;
        if self.counts.as_ref().is_none_or(|counts| counts.at_ns != at_ns) {
            self.before = self.counts.replace(Counts { at_ns, by_index: ledger.snapshot.counters.clone() });
        }
        match ask.baseline {
            0 => self.baseline = None,
            number if self.baseline.as_ref().is_none_or(|baseline| baseline.number != number) => {
                self.baseline = Some(Baseline::of(ledger, number));
            }
            _ => {}
        }
        self.judge(ledger);
    }

    /// Returns the increase of a counter per second between the last two looks.
    pub(super) fn per_second(&self, indices: &[usize]) -> Option<f64> {
        let (before, now) = (self.before.as_ref()?, self.counts.as_ref()?);
        let seconds = now.at_ns.checked_sub(before.at_ns).filter(|&ns| ns > 0)? as f64 / 1e9;
        let counted = |counts: &Counts| {
            let of = |&index: &usize| counts.by_index.get(index).copied().unwrap_or(0);
            indices.iter().map(of).fold(0, u64::wrapping_add)
        };
        Some(counted(now).saturating_sub(counted(before)) as f64 / seconds)
    }

    pub(super) fn baseline(&self) -> Option<&Baseline> {
        self.baseline.as_ref()
    }

    /// Returns the verdict on a call site.
    pub(super) fn verdict(&self, site: &str) -> Option<Verdict> {
        self.judged.as_ref()?.verdicts.get(site).copied()
    }

    fn judge(&mut self, ledger: &Ledger) {
        let due = |judged: &Judged| {
            judged.of_ns != ledger.status.now_ns && judged.at.elapsed() > (judged.took * JUDGING).max(JUDGED)
        };
        if self.judged.as_ref().is_some_and(|judged| !due(judged)) {
            return;
        }
        let at = Instant::now();
        let found = suspects::find(ledger, None);
        let verdicts = found.all.iter().filter(|suspect| suspect.kind == GrowthKind::Site);
        let verdicts = verdicts.map(|suspect| (suspect.key.as_str().into(), suspect.verdict)).collect();
        self.judged = Some(Judged { at, took: at.elapsed(), of_ns: ledger.status.now_ns, verdicts });
    }
}

impl Baseline {
    fn of(ledger: &Ledger, number: u64) -> Self {
        let (sites, filter, graph_filter) = (Sites::default(), Filter::default(), graphs::Filter::default());
        let of_allocs = |&by: &By| {
            let by = if by == By::Site { By::Stack } else { by };
            let groups = allocs::group_named(ledger, &sites, &filter, by, false);
            groups.into_iter().map(|group| (group.key, [group.bytes, group.live])).collect()
        };
        let of_graphs = |&by: &graphs::By| {
            let by = if by == graphs::By::Site { graphs::By::Stack } else { by };
            graphs::group(ledger, &graph_filter, by).into_iter().map(|(key, group)| (key, held(&group))).collect()
        };
        Self {
            number,
            at: Instant::now(),
            allocs: By::value_variants().iter().map(of_allocs).collect(),
            graphs: graphs::By::value_variants().iter().map(of_graphs).collect(),
            numbers: totals(ledger, &gathered(ledger)),
            counters: ledger.snapshot.counters.clone(),
        }
    }

    /// Returns the baseline of a counter.
    pub(super) fn counter(&self, index: usize) -> u64 {
        self.counters.get(index).copied().unwrap_or(0)
    }

    /// Returns the baseline of groups of allocations; call sites under their present names.
    pub(super) fn allocs(&self, by: By, sites: &Sites) -> NumbersByKey<2> {
        named(&self.allocs[by as usize], by == By::Site, sites)
    }

    /// Returns the baseline of groups of graphs; call sites under their present names.
    pub(super) fn graphs(&self, by: graphs::By, sites: &Sites) -> NumbersByKey<4> {
        named(&self.graphs[by as usize], by == graphs::By::Site, sites)
    }
}

fn named<const N: usize>(held: &NumbersByKey<N>, is_by_site: bool, sites: &Sites) -> NumbersByKey<N> {
    let mut named = NumbersByKey::default();
    for (key, numbers) in held {
        let key = match key {
            GroupKey::Stack(stack) if is_by_site => GroupKey::Site(sites.name(*stack)),
            key => key.clone(),
        };
        let sums: &mut [u64; N] = named.entry(key).or_insert([0; N]);
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum = sum.saturating_add(*number));
    }
    named
}

/// Returns the numbers of a group of graphs that have differences.
pub(super) fn held(group: &graphs::Group) -> [u64; 4] {
    [group.execs, group.graphs, group.device_bytes, group.host_bytes]
}

pub(super) const DEVICE_LIVE: &str = "device memory, live";

/// A number of a process over time: its name, true if it is bytes, its value in a sample, and its present value, if that
/// is known better than from the last sample.
pub(super) struct Total(pub &'static str, pub bool, pub fn(&SampleSlot) -> u64, pub Option<fn(&Overview) -> u64>);

pub(super) const TOTALS: &[Total] = &[
    Total(DEVICE_LIVE, true, |sample| sample.device_live, Some(|now| now.live.device)),
    Total("managed memory, live", true, |sample| sample.managed_live, Some(|now| now.live.managed)),
    Total("pinned host memory", true, |sample| sample.host_live, Some(|now| now.live.host)),
    Total("memory in unknown places", true, |sample| sample.unknown_live, Some(|now| now.live.unknown)),
    Total("idle in the pool", true, |sample| sample.device_idle, Some(|now| now.pool.idle_bytes)),
    Total("allocations", false, |sample| sample.allocs_live, Some(|now| now.live.count)),
    Total("graphs", false, |sample| sample.graphs_live, Some(|now| now.graphs.graphs)),
    Total("execs", false, |sample| sample.execs_live, Some(|now| now.graphs.execs)),
    Total("graphs' host memory ~", true, |sample| sample.graph_host_bytes, Some(|now| now.graphs.host_bytes)),
    Total("resident memory", true, |sample| sample.rss, None),
    Total("devices, all users", true, |sample| sample.device_used, None),
];

/// Returns the present totals, by name.
pub(super) fn totals(ledger: &Ledger, overview: &Overview) -> FxHashMap<&'static str, u64> {
    let last = ledger.snapshot.samples.last();
    let now = |&Total(name, _, sampled, now): &Total| {
        (name, now.map_or_else(|| last.map_or(0, sampled), |now| now(overview)))
    };
    TOTALS.iter().map(now).collect()
}

/// Returns the data behind the totals. NVML is not asked, because no tab shows its counts.
pub(super) fn gathered(ledger: &Ledger) -> Overview {
    Overview::of(ledger, &Books::closed())
}
