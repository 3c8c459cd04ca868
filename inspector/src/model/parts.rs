//! Parts of allocations that the program itself reported (`gpumem.h`), by the allocation that contains them.

use super::Ledger;
use super::sites::Sites;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::{AllocSlot, StrRef};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::hash::Hash;
use std::rc::Rc;

/// Memory that the program's own allocator handed out at one call site, from one allocation or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Part {
    /// The name that the program gave its allocator.
    pub pool: String,
    pub site: String,
    pub live: u64,
    /// Bytes of each part that lie inside its allocation.
    pub bytes: u64,
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
}

/// Every part that lies in an allocation.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    /// The allocation, and the part.
    inside: Vec<(&'a AllocSlot, &'a AllocSlot)>,
    sites: Sites,
}

impl<'a> Parts<'a> {
    pub(crate) fn of(ledger: &'a Ledger) -> Self {
        let allocs = &ledger.snapshot.allocs;
        let parts = || allocs.iter().filter(|alloc| alloc.kind == AllocKind::Reported as u8);
        if parts().next().is_none() {
            return Self::default();
        }
        let mut around: Vec<&AllocSlot> = allocs.iter().filter(|alloc| has_addresses(alloc)).collect();
        around.sort_unstable_by_key(|alloc| alloc.addr);
        let inside = |part: &'a AllocSlot| {
            let before = around.partition_point(|alloc| alloc.addr <= part.addr);
            let alloc = *around[..before].last()?;
            (part.addr - alloc.addr < alloc.bytes).then_some((alloc, part))
        };
        Self { inside: parts().filter_map(inside).collect(), sites: Sites::of_allocs(ledger) }
    }

    pub(crate) fn are_any(&self) -> bool {
        !self.inside.is_empty()
    }

    /// Returns the parts in each group of allocations, most bytes first. Skips allocations without a key.
    pub(crate) fn by<K: Eq + Hash>(
        &self,
        ledger: &Ledger,
        mut key: impl FnMut(&AllocSlot) -> Option<K>,
    ) -> FxHashMap<K, Vec<Part>> {
        let mut groups: FxHashMap<K, FxHashMap<(StrRef, Rc<str>), Part>> = FxHashMap::default();
        for (alloc, part) in &self.inside {
            let Some(key) = key(alloc) else { continue };
            let (pool, site) = (part.pool_name(), self.sites.name(part.stack));
            let age = ledger.age(part.time_ns);
            let sum = groups.entry(key).or_default().entry((pool, Rc::clone(&site))).or_insert_with(|| Part {
                pool: ledger.snapshot.name(pool).into_owned(),
                site: site.to_string(),
                live: 0,
                bytes: 0,
                oldest_age_ns: age,
                newest_age_ns: age,
            });
            sum.live += 1;
            sum.bytes = sum.bytes.saturating_add(part.bytes.min(alloc.bytes - (part.addr - alloc.addr)));
            (sum.oldest_age_ns, sum.newest_age_ns) = (sum.oldest_age_ns.max(age), sum.newest_age_ns.min(age));
        }
        let sorted = |parts: FxHashMap<_, Part>| {
            let mut parts: Vec<Part> = parts.into_values().collect();
            parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.pool, &a.site).cmp(&(&b.pool, &b.site))));
            parts
        };
        groups.into_iter().map(|(key, parts)| (key, sorted(parts))).collect()
    }
}

/// True if the allocation's record has its start address.
fn has_addresses(alloc: &AllocSlot) -> bool {
    use AllocKind::*;
    let kind = AllocKind::from_u8(alloc.kind);
    kind.is_some_and(|kind| match kind {
        Device | Pitch | Async | HostPinned | HostRegistered | Managed => true,
        VmmMapping | IpcImport | ExternalMapping | GraphNode | GraphLeft => true,
        VmmPhysical | VmmReservation | VmmImport | Array | MipmappedArray | ExternalMemory | Multicast => false,
        Reported | Code | Event => false,
    })
}
