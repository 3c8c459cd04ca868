//! One row per counter. A counter only grows; it is the sum over all shards, wrapping.
//!
//! What is live is a difference (`allocs - frees`), so that nothing can underflow and everything
//! balances to zero when a program frees all.

use crate::kinds::AllocKind;

/// Shards that threads are spread over, so that they do not share a cache line.
pub const SHARDS: usize = 32;
/// Counters in a shard; the rest of it is room for later versions.
pub const PER_SHARD: usize = 256;

/// Room for kinds in each per-kind block, so that a new kind does not move the others.
const KINDS: usize = 24;

/// Per-kind counters: `allocs(kind)` and so on are indexes into a shard.
pub const fn allocs(kind: AllocKind) -> usize {
    kind as usize
}
/// Frees of this kind.
pub const fn frees(kind: AllocKind) -> usize {
    KINDS + kind as usize
}
/// Bytes ever allocated of this kind.
pub const fn alloc_bytes(kind: AllocKind) -> usize {
    2 * KINDS + kind as usize
}
/// Bytes ever freed of this kind.
pub const fn free_bytes(kind: AllocKind) -> usize {
    3 * KINDS + kind as usize
}
/// Allocations of this kind that failed.
pub const fn alloc_failures(kind: AllocKind) -> usize {
    4 * KINDS + kind as usize
}

const SCALARS: usize = 5 * KINDS;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $id:ident = $n:literal, $name:literal;)*) => {
        $($(#[doc = $doc])+ pub const $id: usize = SCALARS + $n;)*
        /// `(index, name, what it counts)` of every counter that has no kind.
        pub const ALL: &[(usize, &str, &str)] = &[$(($id, $name, concat!($($doc),+)),)*];
    };
}

counters! {
    /// Frees of pointers that no recorded allocation explains and that the driver accepted.
    UNKNOWN_FREES = 0, "unknown_frees";
    /// Frees that the driver refused.
    FREE_FAILURES = 1, "free_failures";
    /// Graphs that came to be: created, captured, cloned.
    GRAPHS_CREATED = 2, "graphs_created";
    /// Graphs destroyed.
    GRAPHS_DESTROYED = 3, "graphs_destroyed";
    /// Execs instantiated.
    EXECS_CREATED = 4, "execs_created";
    /// Execs destroyed.
    EXECS_DESTROYED = 5, "execs_destroyed";
    /// Instantiates that failed.
    INSTANTIATE_FAILURES = 6, "instantiate_failures";
    /// Nanoseconds spent in successful instantiates.
    INSTANTIATE_NS = 7, "instantiate_ns";
    /// Graph launches that the driver accepted.
    LAUNCHES = 8, "launches";
    /// Graph launches that failed.
    LAUNCH_FAILURES = 9, "launch_failures";
    /// Whole-graph updates that succeeded.
    UPDATES = 10, "updates";
    /// Whole-graph updates that failed.
    UPDATE_FAILURES = 11, "update_failures";
    /// Per-node changes of execs (setters, enables) that succeeded.
    NODE_SETS = 12, "node_sets";
    /// Captures begun.
    CAPTURES_BEGUN = 13, "captures_begun";
    /// Captures that ended with a graph.
    CAPTURES_ENDED = 14, "captures_ended";
    /// Captures that ended without one.
    CAPTURES_FAILED = 15, "captures_failed";
    /// Records dropped because a table was full or the ledger could not grow.
    DROPPED_RECORDS = 16, "dropped_records";
    /// Stacks cut at the configured depth.
    STACKS_CUT = 17, "stacks_cut";
    /// Frees that were recorded although the allocation happened in a context since destroyed.
    LATE_FREES = 18, "late_frees";
    /// Bookkeeping that panicked and was contained.
    PANICS = 19, "panics";
    /// Allocations that ended because their context was destroyed or reset.
    ENDED_WITH_CONTEXT = 20, "ended_with_context";
    /// Nodes in all graphs ever instantiated.
    NODES_INSTANTIATED = 21, "nodes_instantiated";
}

const _: () = assert!(SCALARS + 32 <= PER_SHARD);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_counters_share_a_place() {
        let mut seen = std::collections::HashSet::new();
        for &kind in AllocKind::ALL {
            for index in [allocs(kind), frees(kind), alloc_bytes(kind), free_bytes(kind), alloc_failures(kind)] {
                assert!(seen.insert(index), "{kind} shares counter {index}");
            }
        }
        for &(index, name, doc) in ALL {
            assert!(seen.insert(index), "{name} shares its place");
            assert!(index < PER_SHARD && !doc.is_empty());
        }
    }
}
