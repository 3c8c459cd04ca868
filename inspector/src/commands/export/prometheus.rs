//! Prometheus' text format.

use crate::model::{Ledger, cache, graphs, pool, totals};
use gpumem_wire::counters;
use std::fmt::Write as _;

type Sample = (Vec<(&'static str, String)>, f64);

/// A metric with its samples, in the order in which they were added.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<Sample>,
}

/// All of them in one text.
pub(super) fn text(ledgers: &[Ledger]) -> String {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut add = |name, kind, help, labels: Vec<(&'static str, String)>, value: f64| match metrics
        .iter_mut()
        .find(|metric| metric.name == name)
    {
        Some(metric) => metric.samples.push((labels, value)),
        None => metrics.push(Metric { name, kind, help, samples: vec![(labels, value)] }),
    };
    for ledger in ledgers {
        let head = ledger.head();
        let who = vec![("pid", head.pid.to_string()), ("process", head.name.clone())];
        let with = |name, value: &str| [who.clone(), vec![(name, value.to_owned())]].concat();
        let complete = f64::from(u8::from(head.interception == "complete"));
        add(
            "gpumem_interception_complete",
            "gauge",
            "1 if every call of the process is known to be recorded.",
            who.clone(),
            complete,
        );
        for kind in totals::kinds(ledger) {
            let of = || with("kind", kind.kind);
            add("gpumem_live_bytes", "gauge", "Live bytes by kind.", of(), kind.live_bytes as f64);
            add("gpumem_live_allocations", "gauge", "Live allocations by kind.", of(), kind.live as f64);
            add("gpumem_allocations_total", "counter", "Allocations by kind.", of(), kind.allocs as f64);
            add(
                "gpumem_allocated_bytes_total",
                "counter",
                "Bytes ever allocated by kind.",
                of(),
                kind.alloc_bytes as f64,
            );
            add(
                "gpumem_allocation_failures_total",
                "counter",
                "Failed allocations by kind.",
                of(),
                kind.failures as f64,
            );
        }
        let nvml = totals::driver_books(ledger);
        for device in totals::devices(ledger, nvml.as_ref()) {
            let of = || with("device", &device.device.to_string());
            add(
                "gpumem_device_tracked_bytes",
                "gauge",
                "Live device bytes of recorded allocations.",
                of(),
                device.tracked_bytes as f64,
            );
            add(
                "gpumem_device_peak_bytes",
                "gauge",
                "Highest live device bytes of recorded allocations.",
                of(),
                device.peak_bytes as f64,
            );
            add(
                "gpumem_device_pool_idle_bytes",
                "gauge",
                "Bytes that the driver keeps for the default stream-ordered pool beyond live allocations.",
                of(),
                device.pool_idle_bytes as f64,
            );
            add(
                "gpumem_device_graph_memory_bytes",
                "gauge",
                "Bytes that the driver keeps for the memory nodes of graphs.",
                of(),
                device.graph_memory_bytes as f64,
            );
            if device.used_bytes > 0 {
                add(
                    "gpumem_device_used_bytes",
                    "gauge",
                    "Bytes in use on the device by all processes.",
                    of(),
                    device.used_bytes as f64,
                );
            }
            if let Some(unexplained) = device.unexplained_bytes {
                add(
                    "gpumem_device_unexplained_bytes",
                    "gauge",
                    "Bytes in use that this process's records do not explain.",
                    of(),
                    unexplained as f64,
                );
            }
        }
        let pool = pool::of(ledger);
        let on = f64::from(u8::from(pool.state == "on"));
        add("gpumem_pool_on", "gauge", "1 if the pool serves a context.", who.clone(), on);
        for context in &pool.in_contexts {
            let of = || {
                let numbers = [("context", context.context.to_string()), ("device", context.device.to_string())];
                [who.clone(), numbers.to_vec()].concat()
            };
            for (name, help, value) in [
                ("gpumem_pool_live_bytes", "Live device bytes of recorded allocations.", context.live_bytes),
                ("gpumem_pool_idle_bytes", "Bytes that the pool keeps for later allocations.", context.idle_bytes),
                ("gpumem_pool_idle_peak_bytes", "Highest bytes that the pool kept.", context.idle_peak_bytes),
                ("gpumem_pool_idle_blocks", "Blocks that the pool keeps for later allocations.", context.idle_blocks),
                (
                    "gpumem_pool_spilled_bytes",
                    "Live bytes asked for as device memory that lie outside of it.",
                    context.spilled_live_bytes,
                ),
                (
                    "gpumem_pool_limit_bytes",
                    "What the process may take of the device; 0: no limit.",
                    context.limit_bytes,
                ),
            ] {
                add(name, "gauge", help, of(), value as f64);
            }
        }
        for site in &pool.stranded {
            let help =
                "Bytes in older buffers that lay unused at the last report of their call site, which asks for more.";
            add("gpumem_pool_stranded_bytes", "gauge", help, with("site", &site.site), site.bytes as f64);
        }
        let cache = cache::of(ledger);
        let total = graphs::total(ledger, &cache);
        add("gpumem_graphs", "gauge", "Live graphs.", who.clone(), total.graphs as f64);
        add("gpumem_graph_execs", "gauge", "Live graph execs.", who.clone(), total.execs as f64);
        add(
            "gpumem_graph_host_bytes_estimated",
            "gauge",
            "Estimated host bytes held by graphs, execs, their sources and parked real execs.",
            who.clone(),
            total.host_bytes as f64,
        );
        add(
            "gpumem_graph_device_bytes_estimated",
            "gauge",
            "Estimated device bytes held by execs, parked ones included.",
            who.clone(),
            total.device_bytes as f64,
        );
        let on = f64::from(u8::from(cache.state == "on"));
        add("gpumem_graph_cache_on", "gauge", "1 if graph execs are under the graph cache.", who.clone(), on);
        for (state, n) in [("resident", cache.resident), ("folded", cache.folded), ("gone", cache.gone)] {
            let of = with("state", state);
            add("gpumem_graph_handles", "gauge", "Live virtual exec handles by state.", of, n as f64);
        }
        for (reason, n) in &cache.pinned_by {
            let of = with("reason", reason);
            add("gpumem_graph_pinned", "gauge", "Live execs that are not under the graph cache.", of, *n as f64);
        }
        for (name, help, value) in [
            ("gpumem_graph_classes", "Classes of the live handles.", cache.classes),
            ("gpumem_graph_real_execs", "Real execs of the graph cache, parked ones included.", cache.real_execs),
            ("gpumem_graph_real_execs_max", "Real execs that the graph cache keeps at most.", cache.max_execs),
            ("gpumem_graph_parked_execs", "Real execs of no handle.", cache.parked_execs),
            (
                "gpumem_graph_real_bytes_estimated",
                "Estimated host and device bytes of the graph cache's real execs.",
                cache.real_bytes_estimated,
            ),
            ("gpumem_graph_real_bytes_max", "Bytes that they may take; 0: no bound.", cache.max_bytes),
            ("gpumem_graph_source_bytes", "Host bytes of the sources behind handles.", cache.source_bytes),
            ("gpumem_graphs_folded", "Live graphs that are folded to recipes.", cache.folded_graphs),
            ("gpumem_graphs_folded_bytes", "Host bytes of those recipes.", cache.folded_graph_bytes),
        ] {
            add(name, "gauge", help, who.clone(), value as f64);
        }
        for &(index, name, _) in counters::ALL {
            let value = ledger.snapshot.counter(index) as f64;
            add("gpumem_events_total", "counter", "The ledger's counters, by name.", with("counter", name), value);
        }
    }
    let mut out = String::new();
    for metric in &metrics {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", metric.name, metric.help, metric.name, metric.kind);
        for (labels, value) in &metric.samples {
            let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
            let _ = writeln!(out, "{}{{{}}} {value}", metric.name, labels.join(","));
        }
    }
    out
}

/// A label's value: backslash, quote and line break escaped, other control characters written out.
fn label(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    // What cleaning writes as \xNN is no escape of the format, so its backslash is doubled.
    let cleaned = crate::text::clean(&escaped);
    if cleaned == escaped { escaped } else { cleaned.replace("\\x", "\\\\x").replace("\\u", "\\\\u") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(label("\x1b"), "\\\\x1b");
    }
}
