//! Live memory by call stack, for profile viewers.

use crate::model::Ledger;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::layout::StackRef;
use std::collections::BTreeMap;

/// Memory of one kind that one call stack holds.
pub(super) struct StackBytes {
    pub(super) kind: AllocKind,
    pub(super) stack: StackRef,
    /// Live now.
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

/// Returns the live allocations by kind and stack, of kinds that take memory of their own; most bytes first.
pub(super) fn held(ledger: &Ledger) -> Vec<StackBytes> {
    let mut found = BTreeMap::<(AllocKind, StackRef), (u64, u64)>::new();
    for alloc in &ledger.snapshot.allocs {
        if let Some(kind) = AllocKind::from_u8(alloc.kind).filter(|_| alloc.takes_memory()) {
            let (bytes, blocks) = found.entry((kind, alloc.stack)).or_default();
            *bytes = bytes.saturating_add(alloc.bytes);
            *blocks += 1;
        }
    }
    let mut held: Vec<StackBytes> =
        found.into_iter().map(|((kind, stack), (bytes, blocks))| StackBytes { kind, stack, bytes, blocks }).collect();
    held.sort_by_key(|held| std::cmp::Reverse(held.bytes));
    held
}

/// Name in viewers for an allocation whose stack was not recorded.
pub(super) const NO_STACK: &str = "(no stack)";
