//! Memory left behind by destroyed graphs: allocations that their launches did not free.

use super::Ledger;
use super::sites::Sites;
use gpumem_wire::layout::{ALLOC_LEFT, AllocSlot};
use serde::Serialize;
use std::collections::BTreeMap;

/// Allocations left by graph nodes of one call site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeftByGraphs {
    pub site: String,
    pub bytes: u64,
    pub live: u64,
}

/// Returns the memory left, by call site, largest first.
pub(crate) fn by_graphs(ledger: &Ledger) -> Vec<LeftByGraphs> {
    let left = || ledger.snapshot.allocs.iter().filter(|alloc: &&AllocSlot| alloc.flags & ALLOC_LEFT != 0);
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
