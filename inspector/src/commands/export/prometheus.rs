//! Prometheus' text format.

use crate::model::cache::Cache;
use crate::model::pool::Pool;
use crate::model::{Ledger, cache, graphs, pool, totals};
use crate::text::clean;
use gpumem_wire::counters;
use std::fmt::Write as _;

type Labels = Vec<(&'static str, String)>;

/// A metric with its samples, in the order in which they were added.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(Labels, f64)>,
}

/// The metrics of all processes. New samples are those of the process at hand.
#[derive(Default)]
struct Page {
    metrics: Vec<Metric>,
    /// Labels of the process at hand.
    who: Labels,
}

impl Page {
    fn add(&mut self, kind: &'static str, name: &'static str, help: &'static str, more: Labels, value: u64) {
        let sample = ([self.who.clone(), more].concat(), value as f64);
        match self.metrics.iter_mut().find(|metric| metric.name == name) {
            Some(metric) => metric.samples.push(sample),
            None => self.metrics.push(Metric { name, kind, help, samples: vec![sample] }),
        }
    }

    /// Adds a sample of a value that goes up and down; `more`: its labels besides the process.
    fn gauge(&mut self, name: &'static str, help: &'static str, more: Labels, value: u64) {
        self.add("gauge", name, help, more, value);
    }

    /// Adds a sample of a value that only grows.
    fn counter(&mut self, name: &'static str, help: &'static str, more: Labels, value: u64) {
        self.add("counter", name, help, more, value);
    }

    /// The format: for each metric its help and its type, then its samples.
    fn text(&self) -> String {
        let mut out = String::new();
        for metric in &self.metrics {
            let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", metric.name, metric.help, metric.name, metric.kind);
            for (labels, value) in &metric.samples {
                let labels: Vec<_> =
                    labels.iter().map(|(name, value)| format!("{name}=\"{}\"", label(value))).collect();
                let _ = writeln!(out, "{}{{{}}} {value}", metric.name, labels.join(","));
            }
        }
        out
    }
}

/// All of them in one text.
pub(super) fn text(ledgers: &[Ledger]) -> String {
    let mut page = Page::default();
    for ledger in ledgers {
        let head = ledger.head();
        page.who = vec![("pid", head.pid.to_string()), ("process", head.name.clone())];
        let help = "1 if every call of the process is known to be recorded.";
        page.gauge("gpumem_interception_complete", help, vec![], u64::from(head.interception == "complete"));
        kinds(&mut page, ledger);
        devices(&mut page, ledger);
        of_pool(&mut page, &pool::of(ledger));
        let cache = cache::of(ledger);
        of_graphs(&mut page, &graphs::total(ledger, &cache));
        of_cache(&mut page, &cache);
        for &(index, name, _) in counters::ALL {
            let labels = vec![("counter", name.to_owned())];
            page.counter(
                "gpumem_events_total",
                "The ledger's counters, by name.",
                labels,
                ledger.snapshot.counter(index),
            );
        }
    }
    page.text()
}

fn kinds(page: &mut Page, ledger: &Ledger) {
    for kind in totals::kinds(ledger) {
        let of = || vec![("kind", kind.kind.to_owned())];
        page.gauge("gpumem_live_bytes", "Live bytes by kind.", of(), kind.live_bytes);
        page.gauge("gpumem_live_allocations", "Live allocations by kind.", of(), kind.live);
        page.counter("gpumem_allocations_total", "Allocations by kind.", of(), kind.allocs);
        page.counter("gpumem_allocated_bytes_total", "Bytes ever allocated by kind.", of(), kind.alloc_bytes);
        page.counter("gpumem_allocation_failures_total", "Failed allocations by kind.", of(), kind.failures);
    }
}

fn devices(page: &mut Page, ledger: &Ledger) {
    let nvml = totals::driver_books(ledger);
    for device in totals::devices(ledger, nvml.as_ref()) {
        for (name, help, value) in [
            ("gpumem_device_tracked_bytes", "Live device bytes of recorded allocations.", Some(device.tracked_bytes)),
            ("gpumem_device_peak_bytes", "Highest live device bytes of recorded allocations.", Some(device.peak_bytes)),
            (
                "gpumem_device_pool_idle_bytes",
                "Bytes that the driver keeps for the default stream-ordered pool beyond live allocations.",
                Some(device.pool_idle_bytes),
            ),
            (
                "gpumem_device_graph_memory_bytes",
                "Bytes that the driver keeps for the memory nodes of graphs.",
                Some(device.graph_memory_bytes),
            ),
            (
                "gpumem_device_used_bytes",
                "Bytes in use on the device by all processes.",
                Some(device.used_bytes).filter(|&used| used > 0),
            ),
            (
                "gpumem_device_unexplained_bytes",
                "Bytes in use that this process's records do not explain.",
                device.unexplained_bytes,
            ),
        ] {
            if let Some(value) = value {
                page.gauge(name, help, vec![("device", device.device.to_string())], value);
            }
        }
    }
}

fn of_pool(page: &mut Page, pool: &Pool) {
    page.gauge("gpumem_pool_on", "1 if the pool serves a context.", vec![], u64::from(pool.state == "on"));
    for context in &pool.in_contexts {
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
                "Bytes that the process may take of the device; 0: no limit.",
                context.limit_bytes,
            ),
        ] {
            let of = vec![("context", context.context.to_string()), ("device", context.device.to_string())];
            page.gauge(name, help, of, value);
        }
    }
    let help = "Bytes in older buffers that lay unused at the last report of their call site, which asks for more.";
    for site in &pool.stranded {
        page.gauge("gpumem_pool_stranded_bytes", help, vec![("site", site.site.clone())], site.bytes);
    }
}

fn of_graphs(page: &mut Page, total: &graphs::Group) {
    for (name, help, value) in [
        ("gpumem_graphs", "Live graphs.", total.graphs),
        ("gpumem_graph_execs", "Live graph execs.", total.execs),
        (
            "gpumem_graph_host_bytes_estimated",
            "Estimated host bytes held by graphs, execs, their sources and parked real execs.",
            total.host_bytes,
        ),
        (
            "gpumem_graph_device_bytes_estimated",
            "Estimated device bytes held by execs, parked ones included.",
            total.device_bytes,
        ),
    ] {
        page.gauge(name, help, vec![], value);
    }
}

fn of_cache(page: &mut Page, cache: &Cache) {
    let on = u64::from(cache.state == "on");
    page.gauge("gpumem_graph_cache_on", "1 if graph execs are under the graph cache.", vec![], on);
    for (state, n) in [("resident", cache.resident), ("folded", cache.folded), ("gone", cache.gone)] {
        let of = vec![("state", state.to_owned())];
        page.gauge("gpumem_graph_handles", "Live virtual exec handles by state.", of, n);
    }
    for (reason, &n) in &cache.pinned_by {
        let of = vec![("reason", (*reason).to_owned())];
        page.gauge("gpumem_graph_pinned", "Live execs that are not under the graph cache.", of, n);
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
        (
            "gpumem_graph_real_bytes_max",
            "Bytes that the graph cache's real execs may take; 0: no bound.",
            cache.max_bytes,
        ),
        ("gpumem_graph_source_bytes", "Host bytes of the sources behind handles.", cache.source_bytes),
        ("gpumem_graphs_folded", "Live graphs that are folded to recipes.", cache.folded_graphs),
        ("gpumem_graphs_folded_bytes", "Host bytes of the recipes of folded graphs.", cache.folded_graph_bytes),
    ] {
        page.gauge(name, help, vec![], value);
    }
}

/// A label's value: backslash, quote and line break escaped, other control characters written out.
fn label(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    // What cleaning writes as \xNN is no escape of the format, so its backslash is doubled.
    let cleaned = clean(&escaped);
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
