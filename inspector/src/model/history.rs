//! Live memory over time, as the shim sampled it: plausible times, gaps, rates.

use super::Ledger;
use super::verdict::Step;
use crate::source::liveness::Status;
use gpumem_wire::kinds::{EventKind, Parking};
use gpumem_wire::layout::GrowthSlot;
use gpumem_wire::read::{Point, Snapshot};

/// Samples that are further apart than this many usual distances have a gap between them, unless the distance is short
/// in absolute terms.
const GAP: u64 = 10;
const SHORTEST_GAP_NS: u64 = 2_000_000_000;

/// Times of the samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    /// Oldest first.
    pub points: Vec<Point>,
    /// Times without samples: the process, its control thread or the machine was stopped.
    pub gaps: Vec<(u64, u64)>,
    /// Times at which the process was parked, oldest first.
    pub parked: Vec<(u64, u64)>,
    /// Number of points with impossible times: before the ledger began, or after its last sign of life.
    pub unbelievable: usize,
}

impl Samples {
    /// Returns the samples of a ledger.
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let mut points = ledger.snapshot.growth.samples();
        let all = points.len();
        points.retain(|point| believable(ledger, point));
        let parked = parked_times(&ledger.snapshot, &ledger.status);
        let interval = ledger.settings().growth_interval;
        // Without an interval only marks cause samples, at any time.
        // A slow control thread takes every sample late. Then distances before are long, too.
        let mut before = [interval; 2];
        let gap = |pair: &[Point]| {
            let apart = without(&parked, pair[0].time_ns, pair[1].time_ns);
            let usual = interval.max(before[0].min(before[1])).saturating_mul(pair[0].samples);
            before = [before[1], apart / pair[0].samples.max(1)];
            let is = interval > 0 && apart > usual.saturating_mul(GAP) && apart > usual.saturating_add(SHORTEST_GAP_NS);
            is.then(|| (pair[1].time_ns - (apart - usual), pair[1].time_ns))
        };
        let gaps = points.windows(2).filter_map(gap).collect();
        Self { unbelievable: all - points.len(), points, gaps, parked }
    }

    /// Returns samples without gaps.
    pub(crate) fn without_gaps(points: &[Point], parked: Vec<(u64, u64)>) -> Self {
        Self { points: points.to_vec(), parked, ..Self::default() }
    }

    /// Returns the time from the first sample to the last in which the process was not parked, nanoseconds.
    pub(crate) fn span_ns(&self) -> u64 {
        self.unparked_over(&self.points)
    }

    /// As [`span_ns`](Self::span_ns), for these points.
    pub(super) fn unparked_over(&self, points: &[Point]) -> u64 {
        match (points.first(), points.last()) {
            (Some(first), Some(last)) => self.unparked_ns(first.time_ns, last.time_ns),
            _ => 0,
        }
    }

    /// Returns the time between two moments in which the process was not parked.
    pub(super) fn unparked_ns(&self, from: u64, to: u64) -> u64 {
        without(&self.parked, from, to)
    }

    /// Returns the moment before another by so much time in which the process was not parked.
    pub(super) fn before(&self, moment_ns: u64, unparked_ns: u64) -> u64 {
        let mut from = moment_ns.saturating_sub(unparked_ns);
        for &(begin, end) in self.parked.iter().rev().filter(|(begin, _)| *begin < moment_ns) {
            if end > from {
                from = from.saturating_sub(end.min(moment_ns) - begin);
            }
        }
        from
    }

    /// Returns the time between two moments, without gaps and without the times at which the process was parked.
    fn running_ns(&self, from: u64, to: u64) -> u64 {
        without(&self.gaps, from, to).saturating_sub(to.saturating_sub(from) - self.unparked_ns(from, to))
    }

    /// Returns the points of a row.
    pub(crate) fn row(&self, ledger: &Ledger, row: u32, slot: &GrowthSlot) -> Series {
        let mut points = ledger.snapshot.growth.points(row, slot);
        points.retain(|point| believable(ledger, point));
        Series { points }
    }
}

/// Returns the time between two moments, without these times.
fn without(times: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let inside = times.iter().map(|&(begin, end)| end.min(to).saturating_sub(begin.max(from)));
    to.saturating_sub(from).saturating_sub(inside.fold(0, u64::saturating_add))
}

/// Returns the times at which a process was parked, oldest first. It did not run then.
pub(crate) fn parked_times(snapshot: &Snapshot, status: &Status) -> Vec<(u64, u64)> {
    let header = &snapshot.header;
    let resumed = snapshot.events.iter().filter(|event| event.kind == EventKind::Resumed as u8);
    let is_parked = header.parking == Parking::Parked as u64;
    let now = is_parked.then_some((header.parking_ns, status.now_ns.max(header.parking_ns)));
    let mut times: Vec<_> =
        resumed.map(|event| (event.time_ns.saturating_sub(event.b), event.time_ns)).chain(now).collect();
    times.sort_unstable();
    // A damaged ledger may name a time twice.
    let mut last_end = 0;
    for (begin, end) in &mut times {
        *begin = (*begin).max(last_end).min(*end);
        last_end = last_end.max(*end);
    }
    times
}

fn believable(ledger: &Ledger, point: &Point) -> bool {
    (ledger.snapshot.header.created_ns..=ledger.status.now_ns).contains(&point.time_ns)
}

/// Live bytes and counts at samples, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    pub points: Vec<Point>,
}

impl Series {
    /// Sorts points by time, since a ledger may have any times.
    pub(crate) fn in_order(mut points: Vec<Point>) -> Self {
        points.sort_by_key(|point| point.time_ns);
        Self { points }
    }

    /// Adds another series, sample by sample.
    pub(crate) fn add(&mut self, other: Self) {
        if self.points.is_empty() {
            self.points = other.points;
            return;
        }
        let mut all = std::mem::take(&mut self.points);
        all.extend(other.points);
        all.sort_by_key(|point| point.time_ns);
        for point in all {
            match self.points.last_mut().filter(|last| last.time_ns == point.time_ns) {
                Some(last) => {
                    last.bytes = last.bytes.saturating_add(point.bytes);
                    last.count = last.count.saturating_add(point.count);
                }
                None => self.points.push(point),
            }
        }
    }

    /// Returns the live bytes at this many moments at equal distances, from `from_ns` to `to_ns`. Each is the value of
    /// the last sample before it.
    pub(crate) fn at_moments(&self, from_ns: u64, to_ns: u64, moments: u64) -> Vec<u64> {
        let Some(first) = self.points.first() else { return Vec::new() };
        let from = from_ns.max(first.time_ns.min(to_ns));
        let step = to_ns.saturating_sub(from) / moments.max(1);
        let (mut values, mut next) = (Vec::new(), 0);
        for moment in 1..=moments {
            let time = if moment == moments { to_ns } else { from + step * moment };
            while self.points.get(next + 1).is_some_and(|point| point.time_ns <= time) {
                next += 1;
            }
            values.push(self.points[next].bytes);
        }
        values
    }

    /// Returns the same series with counts in place of bytes.
    pub(crate) fn counts(&self) -> Self {
        let point = |point: &Point| Point { bytes: point.count, ..*point };
        Self { points: self.points.iter().map(point).collect() }
    }

    /// Returns the steps that a verdict is judged on.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let step = |point: &Point| Step { samples: point.samples, bytes: point.bytes, count: point.count };
        self.points.iter().map(step).collect()
    }

    /// Returns the live value at a moment, from the nearest sample. Before the ledger's first sample it is unknown;
    /// from then to the first sample of this series it is 0.
    pub(crate) fn at(&self, samples: &Samples, moment_ns: u64) -> Option<Point> {
        let first = self.points.first()?;
        let begin = samples.points.first()?.time_ns;
        if moment_ns < first.time_ns && begin < first.time_ns {
            return (moment_ns >= begin).then_some(Point { time_ns: moment_ns, samples: 1, bytes: 0, count: 0 });
        }
        let nearest = self.points.iter().min_by_key(|point| point.time_ns.abs_diff(moment_ns))?;
        // The first sample comes a moment after the first record.
        let before = first.time_ns.saturating_sub(moment_ns);
        (before <= samples.span_ns() / 16).then_some(*nearest)
    }

    /// Returns the bytes per minute over the later half: the slope of the line fitted to its points.
    pub(crate) fn per_minute(&self, samples: &Samples) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return 0.0 };
        let middle = samples.before(last.time_ns, samples.unparked_ns(first.time_ns, last.time_ns) / 2);
        let late = || self.points.iter().filter(|point| point.time_ns >= middle);
        let at = |point: &Point| samples.running_ns(middle, point.time_ns) as f64 / 60e9;
        let number = late().count().max(1) as f64;
        let mean = |of: &dyn Fn(&Point) -> f64| late().map(of).sum::<f64>() / number;
        let (time, bytes) = (mean(&at), mean(&|point| point.bytes as f64));
        let spread = late().map(|point| (at(point) - time).powi(2)).sum::<f64>();
        let along = late().map(|point| (at(point) - time) * (point.bytes as f64 - bytes)).sum::<f64>();
        if spread > 0.0 { along / spread } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_parked_is_left_out_of_spans() {
        let point = |time_ns| Point { time_ns, samples: 1, bytes: 0, count: 0 };
        let samples = Samples::without_gaps(&[point(0), point(100)], vec![(20, 30), (60, 90)]);
        assert_eq!(samples.span_ns(), 60);
        assert_eq!([(0, 20), (25, 95), (70, 80)].map(|(from, to)| samples.unparked_ns(from, to)), [20, 35, 0]);
        assert_eq!([0, 10, 11, 40, 41, 60, 70].map(|ns| samples.before(100, ns)), [100, 90, 59, 30, 19, 0, 0]);
        assert_eq!(samples.before(80, 5), 55);
        assert_eq!(samples.running_ns(0, 100), 60);
    }

    /// A sample whose time is before the sample in front of it.
    #[test]
    fn times_that_go_back_are_put_in_order() {
        let point = |(time_ns, bytes)| Point { time_ns, samples: 1, bytes, count: 0 };
        let series = Series::in_order([(60_000_000_000, 7), (0, 1), (30_000_000_000, 4)].map(point).to_vec());
        let samples = Samples { points: series.points.clone(), ..Samples::default() };
        assert_eq!(series.points.iter().map(|point| point.bytes).collect::<Vec<_>>(), [1, 4, 7]);
        assert_eq!(series.per_minute(&samples).round(), 6.0);
        assert_eq!(series.at_moments(0, 60_000_000_000, 2), [4, 7]);
        assert_eq!(series.at_moments(50, 10, 2), [1, 1], "nor does a time that begins behind its end");
    }
}
