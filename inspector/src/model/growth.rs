//! The samples of the control thread: one by one, and the growth of each column.

use super::Ledger;
use super::changes::minus;
use super::history::{Samples, Series, parked_times};
use gpumem_wire::layout::SampleSlot;
use gpumem_wire::read::Point;
use serde::Serialize;
use std::collections::BTreeMap;

/// Growth of one number over the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Growth {
    pub what: &'static str,
    pub first: u64,
    pub last: u64,
    pub peak: u64,
    /// Change per minute over the later half of the samples ([`Series::per_minute`], as in every view): memory taken at
    /// the beginning and kept since is no growth.
    pub per_minute: f64,
    /// Change over the last minute, or since the first sample if that is younger.
    pub last_minute: i64,
    #[serde(skip)]
    pub series: Series,
}

/// Its name, its heading, and its value.
type SampleColumn = (&'static str, &'static str, fn(&SampleSlot) -> u64);

/// The columns of samples.
pub(crate) const COLUMNS: &[SampleColumn] = &[
    ("device_live_bytes", "device", |sample| sample.device_live),
    ("host_live_bytes", "host", |sample| sample.host_live),
    ("managed_live_bytes", "managed", |sample| sample.managed_live),
    ("unknown_live_bytes", "unknown", |sample| sample.unknown_live),
    ("allocs_live", "allocs", |sample| sample.allocs_live),
    ("graphs_live", "graphs", |sample| sample.graphs_live),
    ("execs_live", "execs", |sample| sample.execs_live),
    ("graph_host_bytes", "graph host~", |sample| sample.graph_host_bytes),
    ("rss_bytes", "rss", |sample| sample.rss),
    ("own_bytes", "gpumem", |sample| sample.own),
    ("rss_of_program_bytes", "rest of rss", |sample| sample.rss.saturating_sub(sample.own)),
    ("device_used_bytes", "device used", |sample| sample.device_used),
    ("device_idle_bytes", "idle", |sample| sample.device_idle),
];

/// Returns every sample as a map from column names to values.
pub(crate) fn samples(ledger: &Ledger) -> Vec<BTreeMap<&'static str, u64>> {
    let row = |sample| {
        let mut row: BTreeMap<_, _> = COLUMNS.iter().map(|&(name, _, column)| (name, column(sample))).collect();
        row.insert("age_ns", ledger.age(sample.time_ns));
        row
    };
    ledger.snapshot.samples.iter().map(row).collect()
}

/// Columns that are polled instead of counted: 0 means "not polled yet".
const LOOKED_AT: [&str; 3] = ["rss_bytes", "rss_of_program_bytes", "device_used_bytes"];

/// Returns the samples that were taken while the process was not parked, and the times at which it was. Parked, a
/// process has the copy of its device memory among its resident pages.
pub(crate) fn taken_running(ledger: &Ledger) -> (Vec<SampleSlot>, Vec<(u64, u64)>) {
    let parked = parked_times(&ledger.snapshot, &ledger.status);
    let is_running = |sample: &&SampleSlot| !parked.iter().any(|&(begin, end)| (begin..end).contains(&sample.time_ns));
    (ledger.snapshot.samples.iter().filter(is_running).copied().collect(), parked)
}

/// Returns one number over time, from samples in any order. A polled column is 0 until the first poll.
pub(crate) fn series(samples: &[SampleSlot], column: impl Fn(&SampleSlot) -> u64, is_looked_at: bool) -> Series {
    let point = |sample: &SampleSlot| Point { time_ns: sample.time_ns, samples: 1, bytes: column(sample), count: 0 };
    Series::in_order(samples.iter().map(point).skip_while(|point| is_looked_at && point.bytes == 0).collect())
}

/// Returns all live bytes at a sample, wherever they lie.
pub(crate) fn held_bytes(sample: &SampleSlot) -> u64 {
    let parts = [sample.device_live, sample.host_live, sample.managed_live, sample.unknown_live];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Growth of every number over the samples.
#[derive(Serialize)]
pub(crate) struct AllGrowth {
    pub span_ns: u64,
    pub samples: usize,
    pub rows: Vec<Growth>,
}

/// Returns the growth of every column; `None` with fewer than two samples.
pub(crate) fn growth(ledger: &Ledger) -> Option<AllGrowth> {
    let (samples, parked) = taken_running(ledger);
    let (first, last) = (samples.first()?, samples.last()?);
    last.time_ns.checked_sub(first.time_ns).filter(|&span| span > 0)?;
    let times = Samples::without_gaps(&[], parked);
    let span_ns = times.unparked_ns(first.time_ns, last.time_ns);
    let recent = times.before(last.time_ns, 60_000_000_000);
    let minute_ago = samples.iter().rfind(|sample| sample.time_ns <= recent).unwrap_or(first);
    let rows = COLUMNS.iter().map(|&(what, _, column)| {
        let is_looked_at = LOOKED_AT.contains(&what);
        let first = samples.iter().find(|sample| !is_looked_at || column(sample) > 0).unwrap_or(first);
        let minute_ago = if minute_ago.time_ns < first.time_ns { first } else { minute_ago };
        let series = series(&samples, column, is_looked_at);
        Growth {
            what,
            first: column(first),
            last: column(last),
            peak: samples.iter().map(column).max().unwrap_or(0),
            per_minute: series.per_minute(&times),
            last_minute: minus(column(last), column(minute_ago)),
            series,
        }
    });
    Some(AllGrowth { span_ns, samples: ledger.snapshot.samples.len(), rows: rows.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(device: &[u64]) -> f64 {
        let sample = |(second, &device_live)| SampleSlot {
            time_ns: (second as u64 + 1) * 1_000_000_000,
            device_live,
            ..Default::default()
        };
        let samples: Vec<_> = device.iter().enumerate().map(sample).collect();
        series(&samples, |sample| sample.device_live, false).per_minute(&Samples::default())
    }

    /// A program that has just started takes its memory within its first samples.
    #[test]
    fn what_was_taken_at_the_beginning_does_not_grow() {
        assert_eq!(rate(&[0, 64, 64, 64, 64, 64]), 0.0);
        assert_eq!(rate(&[7; 60]), 0.0);
        assert_eq!(rate(&(0..60).collect::<Vec<_>>()).round(), 60.0);
    }
}
