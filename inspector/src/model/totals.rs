//! Sums, and the part of host memory that they explain.

use super::execs::held;
use super::{Ledger, cache};
use crate::source::liveness::Status;
use crate::source::process::Resident;
use crate::source::world::World;
use gpumem_wire::counters;
use gpumem_wire::kinds::{AllocKind, Space};
use gpumem_wire::layout::GraphSlot;
use gpumem_wire::location::Tally;
use gpumem_wire::read::Snapshot;
use serde::Serialize;
use std::collections::BTreeMap;

/// One kind of allocation in one memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KindTotal {
    pub kind: &'static str,
    /// The memory that it takes.
    pub space: &'static str,
    /// Allocations minus frees, by the counters.
    pub live: u64,
    pub live_bytes: u64,
    /// Rows in the table of live allocations: fewer than `live` if records were dropped.
    pub listed: u64,
    pub(super) listed_bytes: u64,
    pub allocs: u64,
    pub frees: u64,
    pub alloc_bytes: u64,
    pub free_bytes: u64,
    pub failures: u64,
}

/// Returns the number and the bytes of the listed allocations of each kind in each memory.
fn listed(snapshot: &Snapshot) -> BTreeMap<(AllocKind, Space), (u64, u64)> {
    let mut listed = BTreeMap::new();
    for alloc in &snapshot.allocs {
        let Some(kind) = AllocKind::from_u8(alloc.kind) else { continue };
        let sum: &mut (u64, u64) = listed.entry((kind, alloc.space())).or_default();
        *sum = (sum.0 + 1, sum.1.saturating_add(alloc.bytes));
    }
    listed
}

/// Returns every kind that was ever used.
pub(crate) fn kinds(ledger: &Ledger) -> Vec<KindTotal> {
    let listed = listed(&ledger.snapshot);
    let counter = |index| ledger.snapshot.counter(index);
    let all = Tally::all().map(|row| {
        let (allocs, frees) = (counter(row.allocs()), counter(row.frees()));
        let (alloc_bytes, free_bytes) = (counter(row.alloc_bytes()), counter(row.free_bytes()));
        let (listed, listed_bytes) = listed.get(&(row.kind, row.space)).copied().unwrap_or_default();
        KindTotal {
            kind: row.kind.name(),
            space: row.space.name(),
            // Shards are read one after another: a free may be seen before its allocation.
            live: allocs.saturating_sub(frees),
            live_bytes: alloc_bytes.saturating_sub(free_bytes),
            listed,
            listed_bytes,
            allocs,
            frees,
            alloc_bytes,
            free_bytes,
            failures: counter(row.alloc_failures()),
        }
    });
    all.filter(|total| total.allocs > 0 || total.failures > 0 || total.listed > 0).collect()
}

/// Live bytes by the memory they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Live {
    pub device: u64,
    pub host: u64,
    pub managed: u64,
    /// Bytes whose location is unknown.
    pub unknown: u64,
    /// Device bytes that are on the host, since the process is parked. Then there are none on the device.
    pub parked: u64,
    /// Live allocations that take memory.
    pub count: u64,
}

impl Live {
    /// Returns the bytes in each memory, with the memory's name.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let all = [
            (self.device, "device"),
            (self.managed, "managed"),
            (self.host, "host"),
            (self.unknown, "in unknown places"),
            (self.parked, "on the host while parked"),
        ];
        all.into_iter().filter(|(bytes, _)| *bytes > 0)
    }

    /// Returns the sum of all memories.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(bytes))
    }
}

/// Returns the live bytes by the counters: cheap, because no table is needed.
pub(crate) fn live(snapshot: &Snapshot, status: &Status) -> Live {
    let mut live = Live::default();
    for row in Tally::all() {
        let counter = |index| snapshot.counter(index);
        let bytes = counter(row.alloc_bytes()).saturating_sub(counter(row.free_bytes()));
        let count = counter(row.allocs()).saturating_sub(counter(row.frees()));
        let sum = match row.space {
            Space::Device => &mut live.device,
            Space::Host => &mut live.host,
            Space::Managed => &mut live.managed,
            Space::Unknown => &mut live.unknown,
            Space::None => continue,
        };
        *sum = sum.saturating_add(bytes);
        live.count = live.count.saturating_add(count);
    }
    if status.is_parked() {
        (live.device, live.parked) = (0, snapshot.header.parked_bytes);
    }
    live
}

/// Returns the counters as the table of live allocations has it. The process goes on while both are read, so that the
/// counters may be of another moment by some allocations and frees. If records were dropped, the counters know more.
pub(crate) fn counters_of_listed(ledger: &Ledger) -> Vec<u64> {
    let snapshot = &ledger.snapshot;
    let mut counters = snapshot.counters.clone();
    if snapshot.counter(counters::DROPPED_RECORDS) > 0 || snapshot.cut.is_some() {
        return counters;
    }
    let listed = listed(snapshot);
    for row in Tally::all_of_memory() {
        let (count, bytes) = listed.get(&(row.kind, row.space)).copied().unwrap_or_default();
        for (made, freed, live) in [(row.allocs(), row.frees(), count), (row.alloc_bytes(), row.free_bytes(), bytes)] {
            let (Some(ever), Some(gone)) = (counters.get(made).copied(), counters.get(freed).copied()) else {
                continue;
            };
            match ever.checked_sub(live) {
                Some(frees) if frees >= gone => counters[freed] = frees,
                _ => counters[made] = live.saturating_add(gone),
            }
        }
    }
    counters
}

/// Host memory: the part of the process's resident memory that the GPU runtime's objects explain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Host {
    /// Resident bytes; `None` if they were never read.
    pub rss_bytes: Option<u64>,
    /// Source of that number: `now`, `dump`, `last-sample`.
    pub rss_source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<Resident>,
    /// Pinned memory that the driver allocated.
    pub pinned_bytes: u64,
    /// Pinned memory of the program.
    pub registered_bytes: u64,
    /// Estimated bytes of graphs, folded or not, and of real execs, parked ones included.
    pub graph_bytes: u64,
    pub exec_bytes: u64,
    /// Sources of folded handles, and of resident ones if those are kept.
    pub source_bytes: u64,
    /// Resident bytes of gpumem's own memory at the last sample, without the sources and folded graphs.
    pub own_bytes: u64,
    pub explained_bytes: u64,
    /// The rest: the program's own memory, the driver's, caches.
    pub unexplained_bytes: Option<u64>,
}

/// Returns the host memory of a ledger's process.
pub(crate) fn host(world: &World, ledger: &Ledger) -> Host {
    let running = ledger.process.as_ref().filter(|_| ledger.status.running());
    let resident = running.and_then(|process| process.resident(world));
    let dumped = Some(ledger.snapshot.header.dumped_rss).filter(|&rss| rss > 0);
    let sampled = ledger.snapshot.samples.last().map(|sample| sample.rss).filter(|&rss| rss > 0);
    let (rss_bytes, rss_source) = match (resident, dumped, sampled) {
        (Some(resident), _, _) => (Some(resident.rss), "now"),
        (None, Some(rss), _) => (Some(rss), "dump"),
        (None, None, Some(rss)) => (Some(rss), "last-sample"),
        (None, None, None) => (None, "unknown"),
    };
    let mut host = Host { rss_bytes, rss_source, resident, ..Host::default() };
    for alloc in ledger.snapshot.allocs.iter().filter(|alloc| alloc.space() == Space::Host) {
        let is_registered = alloc.kind == AllocKind::HostRegistered as u8;
        let sum = if is_registered { &mut host.registered_bytes } else { &mut host.pinned_bytes };
        *sum = sum.saturating_add(alloc.bytes);
    }
    let fold = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0_u64, u64::saturating_add);
    let cache = cache::of(ledger);
    host.graph_bytes = fold(&mut ledger.snapshot.graphs.iter().map(GraphSlot::held_bytes));
    host.exec_bytes = fold(&mut ledger.snapshot.execs.iter().map(|exec| held(exec).host))
        .saturating_add(cache.parked_host_bytes_estimated);
    host.source_bytes = cache.source_bytes;
    let own = ledger.snapshot.samples.last().map_or(0, |sample| sample.own);
    host.own_bytes = own.saturating_sub(cache.source_bytes).saturating_sub(cache.folded_graph_bytes);
    let Host { pinned_bytes, registered_bytes, graph_bytes, exec_bytes, source_bytes, own_bytes, .. } = host;
    host.explained_bytes =
        fold(&mut [pinned_bytes, registered_bytes, graph_bytes, exec_bytes, source_bytes, own_bytes].into_iter());
    host.unexplained_bytes = rss_bytes.map(|rss| rss.saturating_sub(host.explained_bytes));
    host
}
