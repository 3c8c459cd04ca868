//! Physical memory without an address: only handles hold it.

use super::Ledger;
use super::sites::Sites;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::AllocSlot;
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;

/// Returns the number of such handles, by the name of the call site that made them. A mapping keeps the number of its
/// handle.
pub(crate) fn by_site(ledger: &Ledger) -> FxHashMap<Rc<str>, u64> {
    let of = |kind: AllocKind| ledger.snapshot.allocs.iter().filter(move |alloc| alloc.kind == kind as u8);
    let mut unmapped = FxHashMap::default();
    if of(AllocKind::VmmPhysical).next().is_none() {
        return unmapped;
    }
    let mapped: FxHashSet<u64> = of(AllocKind::VmmMapping).map(|mapping| mapping.extra).collect();
    let sites = Sites::of_allocs(ledger);
    for handle in of(AllocKind::VmmPhysical).filter(|handle: &&AllocSlot| !mapped.contains(&handle.addr)) {
        *unmapped.entry(sites.name(handle.stack)).or_default() += 1;
    }
    unmapped
}
