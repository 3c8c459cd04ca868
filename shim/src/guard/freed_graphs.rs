//! Launches of graphs that refer to freed memory.

use super::{Guard, of, report};
use crate::gate;
use crate::graphs::memory_use::exec_refers_to;
use crate::process::lock::lock;
use gpumem_abi::types::GraphExec;
use gpumem_wire::kinds::Vendor;
use std::ops::Range;
use std::sync::atomic::Ordering::*;

impl Guard {
    /// Returns the freed memory that live graphs referred to when it was freed, sorted.
    fn freed_in_graphs(&self) -> Vec<Range<u64>> {
        let all = lock(&self.freed);
        let of_graphs = all.iter().filter(|(_, freed)| freed.in_graph);
        let mut ranges: Vec<_> = of_graphs.map(|(&addr, freed)| addr..addr + freed.asked.saturating_sub(1)).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }
}

/// Notes that a graph is about to run, and reports it if it refers to freed memory.
#[cold]
pub(crate) fn of_launched_graph(vendor: Vendor, exec: GraphExec) {
    let Some((_, guard)) = of(vendor).filter(|(_, guard)| guard.in_graphs.load(Relaxed)) else { return };
    let ranges = guard.freed_in_graphs();
    if !exec_refers_to(exec, &ranges) {
        return;
    }
    for range in ranges.iter().filter(|range| exec_refers_to(exec, std::slice::from_ref(range))) {
        gate::note(|shim| {
            if let Some(freed) = lock(&guard.freed).get(&range.start) {
                report::tell_of_graph(shim, range.start, freed);
            }
        });
    }
}
