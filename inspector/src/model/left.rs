//! Memory left behind by destroyed graphs: allocations that their launches did not free.

use super::Ledger;
use super::sites::Sites;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use serde::Serialize;
use std::collections::BTreeMap;

/// Allocations left by graph nodes of one call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeftByGraphs {
    pub site: String,
    pub bytes: u64,
    pub live: u64,
}

/// True for memory that a graph left.
pub(crate) fn is_left(alloc: &AllocSlot) -> bool {
    alloc.kind == AllocKind::GraphLeft as u8
}

/// Returns the bytes that the driver holds for the memory nodes of all graphs, at the last look.
pub(crate) fn held_by_driver(ledger: &Ledger) -> u64 {
    // Contexts on a device repeat its number. One without a look has 0.
    let mut newest: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for context in ledger.snapshot.contexts.values().filter(|context| context.graph_bytes > 0) {
        let known = newest.entry((context.vendor, context.device)).or_default();
        *known = (*known).max((context.used_ns, context.graph_bytes));
    }
    newest.values().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

/// Returns the memory left, by call site, largest first.
pub(crate) fn by_graphs(ledger: &Ledger) -> Vec<LeftByGraphs> {
    let left = || ledger.snapshot.allocs.iter().filter(|alloc| is_left(alloc));
    if left().next().is_none() {
        return Vec::new();
    }
    let sites = Sites::of_allocs(ledger);
    let mut rows = BTreeMap::new();
    for alloc in left() {
        let site = sites.name(alloc.stack);
        let row =
            rows.entry(site.clone()).or_insert_with(|| LeftByGraphs { site: site.to_string(), bytes: 0, live: 0 });
        row.bytes = row.bytes.saturating_add(alloc.bytes);
        row.live += 1;
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.cmp(&b.site)));
    rows
}
