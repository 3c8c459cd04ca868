//! Every metric: one row each.

use gpumem_wire::counters;
use std::borrow::Cow;
use std::sync::LazyLock;

/// The types of metrics in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only grows while the process runs.
    Counter,
}

/// Definition of one metric.
#[derive(Clone, Debug)]
pub struct Metric {
    pub name: Cow<'static, str>,
    pub kind: Kind,
    /// Labels besides `pid` and `process`.
    pub labels: &'static str,
    pub help: Cow<'static, str>,
}

macro_rules! metrics {
    ($($kind:ident $id:ident = $name:literal [$labels:literal] $help:literal;)*) => {
        $(pub(crate) const $id: Metric = Metric {
            name: Cow::Borrowed($name), kind: Kind::$kind, labels: $labels, help: Cow::Borrowed($help),
        };)*
        /// All metrics except those that [`counter`] makes.
        const ROWS: &[Metric] = &[$($id),*];
    };
}

metrics! {
    Gauge BUILD_INFO = "gpumem_build_info" ["version"] "1; the label has the version of gpumem.";
    Gauge PROCESSES = "gpumem_processes" ["status"] "Processes that have libgpumem.so, by status.";
    Gauge PROCESSES_LEFT_OUT = "gpumem_processes_left_out" [""] "Running processes of which this page has nothing, or only the counters.";
    Gauge WARNINGS = "gpumem_search_warnings" [""] "Places that could not be searched for ledgers; gpumem ps names them.";
    Gauge COLLECT_SECONDS = "gpumem_collect_seconds" [""] "How long it took to read the ledgers for this page.";

    Counter OTLP_PROFILES = "gpumem_otlp_profiles_total" ["outcome"] "Profiles for the receiver of OTLP: accepted, refused by it, or dropped because newer ones took their room.";
    Counter OTLP_FAILED_TRIES = "gpumem_otlp_failed_tries_total" [""] "Times that the receiver of OTLP did not answer or wanted to be asked later.";
    Gauge OTLP_WAITING_BYTES = "gpumem_otlp_waiting_bytes" [""] "Bytes of profiles that wait for the receiver of OTLP.";

    Counter SHARE_PARKS = "gpumem_share_parks_total" ["name"] "Programs that gpumem share has parked.";
    Counter SHARE_RESUMES = "gpumem_share_resumes_total" ["name"] "Programs that gpumem share has resumed.";
    Counter SHARE_MOVED_BYTES = "gpumem_share_moved_bytes_total" ["name, to"] "Device bytes that gpumem share has moved, to the host and to the card.";
    Counter SHARE_MOVE_SECONDS = "gpumem_share_move_seconds_total" ["name"] "Time that gpumem share spent on moving memory.";
    Counter SHARE_FAILED = "gpumem_share_failed_total" ["name"] "Parks and resumes that failed.";
    Counter SHARE_GRANTED = "gpumem_share_granted_total" ["name"] "Requests that members made and that were granted.";
    Counter SHARE_REFUSED = "gpumem_share_refused_total" ["name"] "Requests that members made and that were refused.";
    Counter SHARE_WAIT_SECONDS = "gpumem_share_wait_seconds_total" ["name"] "Time that granted requests waited.";

    Gauge UP = "gpumem_up" [""] "1 if the process runs, is recorded, and its ledger can be read; 0 otherwise.";
    Gauge ENDED_SECONDS = "gpumem_ended_seconds" ["how"] "Seconds since the process ended. A process that ended within the last five minutes has only this metric, gpumem_up and its counters.";
    Gauge PROCESS_INFO = "gpumem_process_info" ["version, mode, interception, uid, container"] "1; the labels have the version of the shim, its mode, the interception, the user, and the container's id.";
    Gauge INTERCEPTION_COMPLETE = "gpumem_interception_complete" [""] "1 if every call of the process is known to be recorded.";
    Gauge RECORDED_SECONDS = "gpumem_recorded_seconds" [""] "How long the process has been recorded.";
    Gauge PARKED = "gpumem_parked" [""] "1 if the process is parked: its device memory is on the host.";
    Gauge PARKED_BYTES = "gpumem_parked_bytes" [""] "Device bytes that are on the host because the process is parked.";
    Gauge RESIDENT_BYTES = "gpumem_resident_bytes" [""] "Resident memory of the process.";
    Gauge HOST_UNEXPLAINED_BYTES = "gpumem_host_unexplained_bytes" [""] "Resident memory that neither recorded calls nor estimates of graphs explain.";

    Gauge LIVE_BYTES = "gpumem_live_bytes" ["kind, memory"] "Live bytes by kind, and by where they lie.";
    Gauge LIVE_ALLOCATIONS = "gpumem_live_allocations" ["kind, memory"] "Live allocations by kind, and by where they lie.";
    Gauge ADDRESS_BYTES = "gpumem_address_bytes" ["kind"] "Bytes of addresses, mappings, imports, nodes of graphs and parts: their memory is counted elsewhere.";
    Counter ALLOCATIONS = "gpumem_allocations_total" ["kind, memory"] "Allocations by kind, and by where they lie.";
    Counter ALLOCATED_BYTES = "gpumem_allocated_bytes_total" ["kind, memory"] "Bytes ever allocated by kind, and by where they lie.";
    Counter FAILURES = "gpumem_allocation_failures_total" ["kind, memory"] "Failed allocations by kind, and by where they were to lie.";

    Gauge SITE_LIVE_BYTES = "gpumem_site_live_bytes" ["site"] "Live bytes of the call sites that hold most; the site (other) has the rest.";
    Gauge TAG_LIVE_BYTES = "gpumem_tag_live_bytes" ["tag"] "Live bytes of the tags that hold most; (other) has the rest, (untagged) the allocations without a tag.";
    Gauge GROWING_SITES = "gpumem_growing_sites" [""] "Call sites that grow steadily by the verdict of gpumem leaks.";
    Gauge GROWING_RATE = "gpumem_growing_bytes_per_second" [""] "Bytes by which the call sites that grow steadily grow each second.";

    Gauge DEVICE_LIVE_BYTES = "gpumem_device_live_bytes" ["device, uuid, device_name, kind"] "Live bytes on the device by kind, as far as allocations are listed.";
    Gauge DEVICE_TRACKED_BYTES = "gpumem_device_tracked_bytes" ["device, uuid, device_name"] "Live device bytes of recorded allocations.";
    Gauge DEVICE_PEAK_BYTES = "gpumem_device_peak_bytes" ["device, uuid, device_name"] "Highest live device bytes of recorded allocations.";
    Gauge DEVICE_MANAGED_BYTES = "gpumem_device_managed_bytes" ["device, uuid, device_name"] "Live bytes of managed memory.";
    Gauge DEVICE_SPILLED_BYTES = "gpumem_device_spilled_bytes" ["device, uuid, device_name"] "Live bytes that were asked for as device memory and lie outside of it.";
    Gauge DEVICE_IDLE_BYTES = "gpumem_device_idle_bytes" ["device, uuid, device_name"] "Bytes that gpumem's pool keeps for later allocations.";
    Gauge DEVICE_GRAPH_BYTES = "gpumem_device_graph_bytes" ["device, uuid, device_name"] "Estimated device bytes of graph execs, parked ones included.";
    Gauge DEVICE_POOL_IDLE_BYTES = "gpumem_device_pool_idle_bytes" ["device, uuid, device_name"] "Bytes that the driver keeps for the default stream-ordered pool beyond live allocations.";
    Gauge DEVICE_GRAPH_MEMORY_BYTES = "gpumem_device_graph_memory_bytes" ["device, uuid, device_name"] "Bytes that the driver keeps for the memory nodes of graphs, without live memory of the kind graph-left.";
    Gauge DEVICE_TAKEN_BYTES = "gpumem_device_taken_bytes" ["device, uuid, device_name"] "Bytes that the driver took for itself, measured: how much free memory fell during calls that do not ask for memory.";
    Gauge DEVICE_LIMIT_BYTES = "gpumem_device_limit_bytes" ["device, uuid, device_name"] "Bytes that the process may take of the device, if GPUMEM_LIMIT is set.";
    Gauge DEVICE_TOTAL_BYTES = "gpumem_device_total_bytes" ["device, uuid, device_name"] "Memory of the device.";
    Gauge DEVICE_USED_BYTES = "gpumem_device_used_bytes" ["device, uuid, device_name"] "Bytes in use on the device by all processes: as NVML reports them, else as the process saw them within the last minute, with its own changes since.";
    Gauge DEVICE_UNEXPLAINED_BYTES = "gpumem_device_unexplained_bytes" ["device, uuid, device_name"] "Bytes of device memory that this process's records do not explain. They are a part of NVML's count for this process, or, without that count, of all memory in use on the device.";
    Gauge USED_BYTES = "gpumem_device_process_bytes" [""] "Device memory of this process on all devices, if NVML reports it.";

    Gauge POOL_ON = "gpumem_pool_on" [""] "1 if the pool serves a context.";
    Gauge POOL_LIVE_BYTES = "gpumem_pool_live_bytes" ["context, device"] "Live device bytes of recorded allocations.";
    Gauge POOL_IDLE_BYTES = "gpumem_pool_idle_bytes" ["context, device"] "Bytes that the pool keeps for later allocations.";
    Gauge POOL_IDLE_PEAK_BYTES = "gpumem_pool_idle_peak_bytes" ["context, device"] "Highest bytes that the pool kept.";
    Gauge POOL_IDLE_BLOCKS = "gpumem_pool_idle_blocks" ["context, device"] "Blocks that the pool keeps for later allocations.";
    Gauge STRANDED_BYTES = "gpumem_stranded_bytes" [""] "Bytes in older buffers that lie unused, at call sites that keep asking for more.";

    Gauge GRAPHS = "gpumem_graphs" [""] "Live graphs.";
    Gauge GRAPH_EXECS = "gpumem_graph_execs" [""] "Live graph execs of the program.";
    Gauge GRAPH_HOST_BYTES = "gpumem_graph_host_bytes" [""] "Estimated host bytes held by graphs, execs, their sources and parked real execs.";
    Gauge GRAPH_DEVICE_BYTES = "gpumem_graph_device_bytes" [""] "Estimated device bytes held by execs, parked ones included.";
    Gauge CACHE_ON = "gpumem_graph_cache_on" [""] "1 if graph execs are under the graph cache.";
    Gauge HANDLES = "gpumem_graph_handles" ["state"] "Live exec handles that gpumem gave the program, by state.";
    Gauge PINNED = "gpumem_graph_pinned" ["reason"] "Live execs that are not under the graph cache.";
    Gauge CLASSES = "gpumem_graph_classes" [""] "Classes of the live handles.";
    Gauge REAL_EXECS = "gpumem_graph_real_execs" [""] "Real execs of the graph cache, parked ones included.";
    Gauge REAL_EXECS_MAX = "gpumem_graph_real_execs_max" [""] "Real execs that the graph cache keeps at most.";
    Gauge PARKED_EXECS = "gpumem_graph_parked_execs" [""] "Real execs that no handle has.";
    Gauge REAL_BYTES = "gpumem_graph_real_bytes" [""] "Estimated host and device bytes of the graph cache's real execs.";
    Gauge REAL_BYTES_MAX = "gpumem_graph_real_max_bytes" [""] "Bytes that the graph cache's real execs may take; 0: no bound.";
    Gauge SOURCE_BYTES = "gpumem_graph_source_bytes" [""] "Host bytes of the sources behind handles.";
    Gauge FOLDED = "gpumem_graphs_folded" [""] "Live graphs that are folded: gpumem keeps only their source.";
    Gauge FOLDED_BYTES = "gpumem_graphs_folded_bytes" [""] "Host bytes of the sources of folded graphs.";
}

/// Returns the metric of one of the ledger's counters: `pool_hits` is `gpumem_pool_hits_total`.
fn counter(name: &str, doc: &str) -> Metric {
    let name = match name.strip_suffix("_ns") {
        Some(name) => format!("gpumem_{name}_seconds_total"),
        None => format!("gpumem_{name}_total"),
    };
    let help = doc.trim().replace("Nanoseconds", "Seconds").into();
    Metric { name: name.into(), kind: Kind::Counter, labels: "", help }
}

/// A counter of the ledger: its index, its metric, and true if it counts nanoseconds.
type CounterMetric = (usize, Metric, bool);

/// Returns the counters of the ledger.
pub(super) fn of_ledger() -> &'static [CounterMetric] {
    static ALL: LazyLock<Vec<CounterMetric>> = LazyLock::new(|| {
        counters::ALL.iter().map(|&(index, name, doc)| (index, counter(name, doc), name.ends_with("_ns"))).collect()
    });
    &ALL
}

/// Returns every metric, in the order of the documentation.
pub fn all() -> Vec<Metric> {
    ROWS.iter().chain(of_ledger().iter().map(|(_, metric, _)| metric)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_collectors_want_them() {
        let all = all();
        for (index, metric) in all.iter().enumerate() {
            let name = &*metric.name;
            assert!(name.starts_with("gpumem_") && !name.contains("__"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
            assert!(!["_count", "_sum", "_bucket", "_ns", "_ms"].iter().any(|end| name.ends_with(end)), "{name}");
            assert!(!metric.help.contains('\n') && metric.help.ends_with('.'), "{name}: {}", metric.help);
            assert!(all[..index].iter().all(|other| other.name != metric.name), "{name} is there twice");
        }
    }
}
