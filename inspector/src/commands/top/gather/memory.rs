//! Data kept from one look to the next.

use super::super::look::Ask;
use crate::model::allocs::{self, By, Filter, Key};
use crate::model::sites::Sites;
use crate::model::suspects;
use crate::model::verdict::Verdict;
use crate::model::{Ledger, graphs};
use gpumem_wire::layout::StackRef;
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

/// Reference values for differences.
pub(super) struct Baseline {
    number: u64,
    pub at: Instant,
    /// Bytes and number of live allocations.
    by_stack: FxHashMap<StackRef, (u64, u64)>,
    by_key: FxHashMap<Key, (u64, u64)>,
    /// Totals, by name.
    pub numbers: FxHashMap<&'static str, u64>,
    counters: Vec<u64>,
    /// Execs, graphs, and their device and host bytes.
    graphs: FxHashMap<graphs::Key, [u64; 4]>,
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
        let of_memory = |suspect: &suspects::Suspect| suspect.kind == gpumem_wire::kinds::GrowthKind::Site.name();
        let verdicts = found.all.iter().filter(|suspect| of_memory(suspect));
        let verdicts = verdicts.map(|suspect| (suspect.key.as_str().into(), suspect.verdict)).collect();
        self.judged = Some(Judged { at, took: at.elapsed(), of_ns: ledger.status.now_ns, verdicts });
    }
}

impl Baseline {
    fn of(ledger: &Ledger, number: u64) -> Self {
        let filter = Filter::default();
        let groups = |by| allocs::group_named(ledger, &Sites::default(), &filter, by, false);
        let by_stack = groups(By::Stack).into_iter().map(|group| (group.stack, (group.bytes, group.live))).collect();
        let others = [By::Kind, By::Size, By::Thread, By::Tag, By::Context, By::Device];
        let by_key = others.into_iter().flat_map(groups).map(|group| (group.key, (group.bytes, group.live))).collect();
        Self {
            number,
            at: Instant::now(),
            by_stack,
            by_key,
            numbers: super::overview::totals(ledger, &super::overview::gathered(ledger)),
            counters: ledger.snapshot.counters.clone(),
            graphs: graphs_of(ledger),
        }
    }

    /// Returns the baseline of a counter.
    pub(super) fn counter(&self, index: usize) -> u64 {
        self.counters.get(index).copied().unwrap_or(0)
    }

    /// Returns the baseline of groups of graphs; call sites under their present names.
    pub(super) fn graphs(&self, by: graphs::By, sites: &Sites) -> FxHashMap<graphs::Key, [u64; 4]> {
        if by != graphs::By::Site {
            return self.graphs.clone();
        }
        let mut groups: FxHashMap<graphs::Key, [u64; 4]> = FxHashMap::default();
        for (key, held) in &self.graphs {
            let graphs::Key::Stack(stack) = key else { continue };
            let sums = groups.entry(graphs::Key::Site(sites.name(*stack))).or_default();
            sums.iter_mut().zip(held).for_each(|(sum, held)| *sum = sum.saturating_add(*held));
        }
        groups
    }

    /// Returns the baseline of groups; call sites under their present names.
    pub(super) fn groups(&self, by: By, sites: &Sites) -> FxHashMap<Key, (u64, u64)> {
        let of = |key: &Key| match key {
            Key::Site(_) => By::Site,
            Key::Stack(_) => By::Stack,
            Key::Kind(_) => By::Kind,
            Key::Size(_) => By::Size,
            Key::Thread(_) => By::Thread,
            Key::Tag(_) => By::Tag,
            Key::Context(_) => By::Context,
            Key::Device(_) => By::Device,
        };
        if !matches!(by, By::Site | By::Stack) {
            let all = self.by_key.iter().filter(|(key, _)| of(key) == by);
            return all.map(|(key, held)| (key.clone(), *held)).collect();
        }
        let mut groups: FxHashMap<Key, (u64, u64)> = FxHashMap::default();
        for (&stack, &(bytes, live)) in &self.by_stack {
            let key = if by == By::Site { Key::Site(sites.name(stack)) } else { Key::Stack(stack) };
            let sum = groups.entry(key).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1 + live);
        }
        groups
    }
}

/// Returns the numbers of a group of graphs that have differences.
pub(super) fn held(group: &graphs::Group) -> [u64; 4] {
    [group.execs, group.graphs, group.device_bytes, group.host_bytes]
}

fn graphs_of(ledger: &Ledger) -> FxHashMap<graphs::Key, [u64; 4]> {
    use graphs::By;
    let filter = graphs::Filter::default();
    let all = [By::Stack, By::Thread, By::Tag, By::Context, By::Class, By::State];
    let groups = all.into_iter().flat_map(|by| graphs::group(ledger, &filter, by));
    groups.map(|(key, group)| (key, held(&group))).collect()
}
