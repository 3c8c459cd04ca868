//! The samples that the control thread takes: one by one, and how each number moved over them.

use super::Ledger;
use super::changes::minus;
use gpumem_wire::layout::SampleSlot;
use serde::Serialize;
use std::collections::BTreeMap;

/// How a number moved over the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Growth {
    pub what: &'static str,
    pub first: u64,
    pub last: u64,
    pub peak: u64,
    /// Change per minute between the first and the last sample.
    pub per_minute: f64,
    /// Change over the last minute, or since the first sample if that is younger.
    pub last_minute: i64,
}

type Column = (&'static str, fn(&SampleSlot) -> u64);

/// What samples hold, by name.
pub(crate) const COLUMNS: &[Column] = &[
    ("device_live_bytes", |sample| sample.device_live),
    ("host_live_bytes", |sample| sample.host_live),
    ("managed_live_bytes", |sample| sample.managed_live),
    ("allocs_live", |sample| sample.allocs_live),
    ("graphs_live", |sample| sample.graphs_live),
    ("execs_live", |sample| sample.execs_live),
    ("graph_host_bytes", |sample| sample.graph_host_bytes),
    ("rss_bytes", |sample| sample.rss),
    ("own_bytes", |sample| sample.own),
    ("rss_of_program_bytes", |sample| sample.rss.saturating_sub(sample.own)),
    ("device_used_bytes", |sample| sample.device_used),
    ("device_idle_bytes", |sample| sample.device_idle),
];

/// Every sample, by the names of its columns.
pub(crate) fn samples(ledger: &Ledger) -> Vec<BTreeMap<&'static str, u64>> {
    let row = |sample| {
        let mut row: BTreeMap<_, _> = COLUMNS.iter().map(|&(name, column)| (name, column(sample))).collect();
        row.insert("age_ns", ledger.age(sample.time_ns));
        row
    };
    ledger.snapshot.samples.iter().map(row).collect()
}

/// Columns of what is looked at rather than counted: 0 is "not seen yet", and no value to grow from.
const LOOKED_AT: [&str; 3] = ["rss_bytes", "rss_of_program_bytes", "device_used_bytes"];

/// Growth of everything that samples hold; `None` with fewer than two samples.
pub(crate) fn growth(ledger: &Ledger) -> Option<(u64, Vec<Growth>)> {
    let (first, last) = (ledger.snapshot.samples.first()?, ledger.snapshot.samples.last()?);
    let span_ns = last.time_ns.checked_sub(first.time_ns).filter(|&span| span > 0)?;
    let recent = last.time_ns.saturating_sub(60_000_000_000);
    let minute_ago = ledger.snapshot.samples.iter().rfind(|sample| sample.time_ns <= recent).unwrap_or(first);
    let rows = COLUMNS.iter().map(|&(what, column)| {
        let seen = |sample: &&SampleSlot| !LOOKED_AT.contains(&what) || column(sample) > 0;
        let first = ledger.snapshot.samples.iter().find(seen).unwrap_or(first);
        let minute_ago = if minute_ago.time_ns < first.time_ns { first } else { minute_ago };
        let span_ns = last.time_ns.saturating_sub(first.time_ns).max(1);
        let (from, to) = (column(first), column(last));
        Growth {
            what,
            first: from,
            last: to,
            peak: ledger.snapshot.samples.iter().map(column).max().unwrap_or(0),
            per_minute: (to as f64 - from as f64) * 60e9 / span_ns as f64,
            last_minute: minus(to, column(minute_ago)),
        }
    });
    Some((span_ns, rows.collect()))
}
