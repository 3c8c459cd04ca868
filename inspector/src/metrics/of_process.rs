//! The samples of one process.

use super::page::Page;
use super::table as t;
use super::{holders, of_device};
use crate::model::cache::Cache;
use crate::model::overview::Overview;
use crate::model::totals::{self, KindTotal};
use crate::model::{Head, Ledger, graphs};
use crate::source::liveness::Life;
use crate::source::nvml::Books;
use crate::source::world::World;
use gpumem_wire::kinds::Space;

pub(super) fn add(page: &mut Page, world: &World, ledger: &Ledger, books: &Books, top: usize) {
    let head = Head::of(ledger);
    page.whose(head.pid, &head.name);
    page.add(&t::UP, &[], 1.0);
    let container = ledger.process.as_ref().and_then(|process| process.container(world)).unwrap_or_default();
    let info = [
        ("version", &*head.shim_version),
        ("mode", head.mode),
        ("interception", head.interception),
        ("uid", &head.uid.to_string()),
        ("container", &container),
    ];
    page.add(&t::PROCESS_INFO, &info, 1.0);
    page.add(&t::INTERCEPTION_COMPLETE, &[], f64::from(head.interception == "complete"));
    page.add(&t::RECORDED_SECONDS, &[], seconds(head.recorded_ns));
    page.add(&t::PARKED, &[], f64::from(ledger.status.is_parked()));
    page.add(&t::PARKED_BYTES, &[], head.parked_bytes as f64);
    let overview = Overview::of(ledger, books);
    let host = totals::host(world, ledger);
    for (metric, bytes) in [(&t::RESIDENT_BYTES, host.rss_bytes), (&t::HOST_UNEXPLAINED_BYTES, host.unexplained_bytes)]
    {
        if let Some(bytes) = bytes {
            page.add(metric, &[], bytes as f64);
        }
    }
    let kinds = &overview.kinds;
    let of_memory = |kind: &&KindTotal| kind.space != Space::None.name();
    for kind in kinds.iter().filter(of_memory) {
        let of = [("kind", kind.kind), ("memory", kind.space)];
        let is_elsewhere = ledger.status.is_parked() && kind.space == Space::Device.name();
        page.add(&t::LIVE_BYTES, &of, if is_elsewhere { 0.0 } else { kind.live_bytes as f64 });
        page.add(&t::LIVE_ALLOCATIONS, &of, kind.live as f64);
    }
    for kind in kinds.iter().filter(|kind| !of_memory(kind)) {
        page.add(&t::ADDRESS_BYTES, &[("kind", kind.kind)], kind.live_bytes as f64);
    }
    counted(page, ledger, kinds);
    of_device::add(page, ledger, &overview);
    holders::add(page, ledger, top);
    of_graphs(page, &overview.graphs);
    of_cache(page, &overview.cache);
    page.add(&t::POOL_ON, &[], f64::from(overview.pool.state == "on"));
    page.add(&t::STRANDED_BYTES, &[], overview.pool.stranded_bytes as f64);
    page.nobodys();
}

/// Adds the counters of a process that has ended, or whose ledger is not read as a whole.
pub(super) fn add_counters(page: &mut Page, ledger: &Ledger) {
    let (head, life) = (Head::of(ledger), ledger.status.life);
    page.whose(head.pid, &head.name);
    page.add(&t::UP, &[], f64::from(!life.is_over()));
    if life.is_over() {
        let how = match life {
            Life::Exited => "exited",
            Life::Replaced => "replaced",
            _ => "killed",
        };
        page.add(&t::ENDED_SECONDS, &[("how", how)], seconds(ledger.status.ago_ns));
    }
    counted(page, ledger, &totals::kinds(ledger));
    page.nobodys();
}

/// Adds the counters of the ledger, also by kind.
fn counted(page: &mut Page, ledger: &Ledger, kinds: &[KindTotal]) {
    for kind in kinds {
        let of = [("kind", kind.kind), ("memory", kind.space)];
        if kind.space != Space::None.name() {
            page.add(&t::ALLOCATIONS, &of, kind.allocs as f64);
            page.add(&t::ALLOCATED_BYTES, &of, kind.alloc_bytes as f64);
        }
        page.add(&t::FAILURES, &of, kind.failures as f64);
    }
    for (index, metric, is_time) in t::of_ledger() {
        let value = ledger.snapshot.counter(*index);
        page.add(metric, &[], if *is_time { seconds(value) } else { value as f64 });
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn of_graphs(page: &mut Page, total: &graphs::Group) {
    page.add(&t::GRAPHS, &[], total.graphs as f64);
    page.add(&t::GRAPH_EXECS, &[], total.execs as f64);
    page.add(&t::GRAPH_HOST_BYTES, &[], total.host_bytes as f64);
    page.add(&t::GRAPH_DEVICE_BYTES, &[], total.device_bytes as f64);
}

fn of_cache(page: &mut Page, cache: &Cache) {
    page.add(&t::CACHE_ON, &[], f64::from(cache.state == "on"));
    for (state, n) in [("resident", cache.resident), ("folded", cache.folded), ("gone", cache.gone)] {
        page.add(&t::HANDLES, &[("state", state)], n as f64);
    }
    for (reason, &n) in &cache.pinned_by {
        page.add(&t::PINNED, &[("reason", reason)], n as f64);
    }
    for (metric, value) in [
        (&t::CLASSES, cache.classes),
        (&t::REAL_EXECS, cache.real_execs),
        (&t::REAL_EXECS_MAX, cache.max_execs),
        (&t::PARKED_EXECS, cache.parked_execs),
        (&t::REAL_BYTES, cache.real_bytes_estimated),
        (&t::REAL_BYTES_MAX, cache.max_bytes),
        (&t::SOURCE_BYTES, cache.source_bytes),
        (&t::FOLDED, cache.folded_graphs),
        (&t::FOLDED_BYTES, cache.folded_graph_bytes),
    ] {
        page.add(metric, &[], value as f64);
    }
}
