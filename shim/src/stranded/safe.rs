//! Checks that no graph needs what a refusal would make the program free.
//!
//! A program that is out of memory empties its whole cache, not only the blocks of one call site. So the check covers
//! all blocks that the same function has requested from the runtime, however small. Only blocks of sites that are known
//! not to be scratch are left out, because the program's working memory is not in a cache.

use super::state::sites::Asker;
use crate::graphs::memory_use;
use crate::records::site_text::{frames_of, is_runtime};
use crate::shim::Shim;
use crate::stacks::modules;
use gpumem_wire::counters;
use gpumem_wire::kinds::{Mode, Space};
use gpumem_wire::layout::StackRef;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// True if more than recording is allowed.
pub(super) fn may_change(shim: &Shim) -> bool {
    shim.ledger.header().mode().load(std::sync::atomic::Ordering::Relaxed) == Mode::Active as u32
}

/// Returns the innermost return address of a stack that is not in a GPU library.
pub(super) fn caller(shim: &Shim, stack: StackRef) -> Option<u64> {
    let modules = modules::refresh();
    let own = |pc: &u64| modules.find(*pc).is_some_and(|module| !is_runtime(module.path()));
    frames_of(shim, stack).into_iter().find(own)
}

/// True if a live graph may refer to a block of the site's allocator.
pub(super) fn graph_needs(shim: &Shim, site: &Asker) -> bool {
    if shim.registry.graphs.len() + shim.registry.execs.len() == 0 {
        return false;
    }
    match blocks_beside(shim, site) {
        Some(ranges) => memory_use::may_refer_to(shim, &ranges),
        None => true,
    }
}

/// Returns the ranges of the blocks that the same function requested, sorted; `None` if they are unknown.
fn blocks_beside(shim: &Shim, site: &Asker) -> Option<Vec<Range<u64>>> {
    if shim.ledger.counter(counters::DROPPED_RECORDS) > 0 {
        return None;
    }
    let own = caller(shim, site.stack)?;
    let kept = shim.stranded.sites().kept();
    let mut beside: FxHashMap<StackRef, bool> = FxHashMap::default();
    let mut ranges = Vec::new();
    // A block without a stack may belong to any function.
    let is_beside = |stack: StackRef| stack == 0 || caller(shim, stack) == Some(own);
    shim.ledger.allocs.each(|slot| {
        let device = slot.space() != Space::Host;
        let may = slot.context == site.context && device && !kept.contains(&slot.stack);
        if may && *beside.entry(slot.stack).or_insert_with(|| is_beside(slot.stack)) {
            ranges.push(slot.addr..slot.addr.saturating_add(slot.bytes.max(1)));
        }
    });
    ranges.sort_unstable_by_key(|range| range.start);
    Some(ranges)
}
