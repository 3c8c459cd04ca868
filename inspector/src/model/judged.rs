//! The verdict on one holder of memory: the rule's, unless pauses make it unsure.

use super::Ledger;
use super::balance::Balance;
use super::history::{Samples, Series};
use super::live::Live;
use super::verdict::{self, Step, Turnover, Verdict};
use crate::source::liveness::Life;
use gpumem_wire::counters::DROPPED_RECORDS;
use gpumem_wire::kinds::GrowthKind;
use gpumem_wire::read::Point;

/// A verdict, with the rates that it is about.
pub(super) struct Judged {
    pub verdict: Verdict,
    /// True if a pause withdrew the verdict.
    pub has_paused: bool,
    /// Of graphs and classes: how many were made and destroyed.
    pub balance: Option<Balance>,
    pub bytes_per_minute: f64,
    /// `None` if the bytes are judged.
    pub count_per_minute: Option<f64>,
}

/// Judges a holder, which has `now` live, in a process that last made something at `active_ns`. Its births are sorted.
pub(super) fn judge(
    ledger: &Ledger,
    samples: &Samples,
    active_ns: u64,
    kind: GrowthKind,
    live: &Live,
    now: Point,
) -> Judged {
    let counts = is_counted(kind, now.bytes).then(|| live.series.counts());
    let judged = counts.as_ref().unwrap_or(&live.series);
    let newest_ns = live.newest_ns();
    let before = live.series.points.iter().filter(|point| point.time_ns < newest_ns);
    let turnover = Turnover {
        ever: live.ever.max(now.count),
        live: now.count,
        born_over: born_over(samples, &live.born),
        newest_at: before.map(|point| point.samples).fold(0, u64::saturating_add),
    };
    let bytes_per_minute = live.series.per_minute(samples);
    let count_per_minute = counts.as_ref().map(|counts| counts.per_minute(samples));
    let steps = steps(kind, judged);
    let verdict = verdict::judge(&steps, turnover).at_a_rate(count_per_minute.unwrap_or(bytes_per_minute));
    let has_paused = verdict == Verdict::GrowsSteadily && has_paused(samples, &live.born, now.time_ns);
    let verdict = if has_paused { Verdict::TooLittle } else { verdict };
    let is_graphs = matches!(kind, GrowthKind::Graphs | GrowthKind::Class);
    let (verdict, balance) = match is_graphs {
        true => live.count.judge(ledger, samples, &live.series, turnover, verdict),
        false => (verdict, None),
    };
    let has_stopped = |series: &Series| has_stopped(samples, kind, series, turnover, active_ns);
    let has_stopped =
        verdict == Verdict::LevelledOff && (has_stopped(judged) || is_graphs && has_stopped(&live.series.counts()));
    let verdict = if has_stopped { Verdict::TooLittle } else { verdict };
    let may_grow = matches!(verdict, Verdict::GrowsSteadily | Verdict::TooLittle);
    let verdict = if may_grow && is_freed_at_the_exit(ledger, turnover) { Verdict::HighWater } else { verdict };
    Judged { verdict, has_paused: has_paused || has_stopped, balance, bytes_per_minute, count_per_minute }
}

/// True if the program freed all of it before it exited, which may be after the last sample. If records were dropped, some
/// of it may be live and not listed.
fn is_freed_at_the_exit(ledger: &Ledger, Turnover { ever, live, .. }: Turnover) -> bool {
    live == 0 && ever > 0 && ledger.status.life == Life::Exited && ledger.snapshot.counter(DROPPED_RECORDS) == 0
}

/// True for a kind without bytes, which is judged by its count. A library that is loaded late has none at first.
fn is_counted(kind: GrowthKind, bytes: u64) -> bool {
    use GrowthKind::*;
    matches!(kind, Streams | Events | Contexts) || kind == Code && bytes == 0
}

/// True if nothing new came for twice as long as the longest pause before: growth may be over. What came after the last
/// sample is not known: the process may have been killed since.
fn has_paused(samples: &Samples, born: &[(u64, u64)], now_ns: u64) -> bool {
    /// With fewer, the longest pause is meaningless.
    const SOME: usize = 4;
    let until_ns = samples.points.last().map_or(now_ns, |last| last.time_ns.min(now_ns));
    let longest = born.windows(2).map(|pair| samples.unparked_ns(pair[0].0, pair[1].0)).max();
    let since = born.last().map_or(0, |&(last_ns, _)| samples.unparked_ns(last_ns, until_ns));
    born.len() >= SOME && longest.is_some_and(|longest| since > 2 * longest)
}

/// True if it grew steadily as long as the process made anything, and the process has been idle since, for less time than
/// it grew. That it stopped then shows nothing: an idle server loses nothing.
fn has_stopped(samples: &Samples, kind: GrowthKind, series: &Series, turnover: Turnover, active_ns: u64) -> bool {
    let before = series.points.iter().filter(|point| point.time_ns <= active_ns).copied().collect();
    let before = Series { points: before };
    let (Some(first), Some(last)) = (before.points.first(), samples.points.last()) else { return false };
    let (grew, idle) = (samples.unparked_ns(first.time_ns, active_ns), samples.unparked_ns(active_ns, last.time_ns));
    idle < grew && verdict::grew_steadily(&steps(kind, &before), turnover)
}

/// Returns the steps that a verdict is judged on.
fn steps(kind: GrowthKind, series: &Series) -> Vec<Step> {
    let mut steps = series.steps();
    if kind == GrowthKind::Heap {
        // The heap has no count, so its pages are counted instead.
        steps.iter_mut().for_each(|step| step.count = step.bytes >> 12);
    }
    steps
}

/// Returns the number of samples between the births of the older and the younger records, without a tenth at either
/// end.
fn born_over(samples: &Samples, born: &[(u64, u64)]) -> u64 {
    let tenth = born.len() / 10;
    let (Some(older), Some(younger)) = (born.get(tenth), born.get((born.len() - tenth).wrapping_sub(1))) else {
        return 0;
    };
    let between = samples.points.iter().filter(|point| (older.0..younger.0).contains(&point.time_ns));
    between.map(|point| point.samples).fold(0, u64::saturating_add)
}
