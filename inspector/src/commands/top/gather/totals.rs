//! The totals of a process, by name.

use crate::model::Ledger;
use crate::model::overview::Overview;
use crate::source::nvml::Books;
use gpumem_wire::layout::SampleSlot;
use rustc_hash::FxHashMap;

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
