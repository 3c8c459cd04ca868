//! One row per counter. A counter only grows; its value is the sum over all shards, wrapping.
//!
//! A live amount is a difference (`allocs - frees`), so that nothing can underflow and everything balances to zero when
//! a program frees all.

use crate::kinds::AllocKind;

/// Shards that threads are spread over, so that they do not share a cache line. The first threads of
/// a process have one each and may count without atomic additions.
pub const SHARDS: usize = 64;
/// Counters in a shard; the rest of it is room for later versions.
pub const PER_SHARD: usize = 288;

/// The first shards, each of which has one thread to itself.
pub const OWN_SHARDS: usize = SHARDS / 4 * 3;

/// The first of the words in which an own shard counts the allocations of its thread's last call stacks, two words a
/// stack. So threads that allocate at one call site do not all write to that stack's record. The total of a stack is
/// its record plus all such places. A thread's stacks share the places by their number. When another stack takes a
/// place, its counts are added to the record of the stack that had it.
pub const SITES: usize = 256;
/// Places for stacks in a shard.
pub const SITE_WAYS: usize = (PER_SHARD - SITES) / 2;

/// Returns the first word of such a place: a stack's reference, and its number of allocations, which is less than
/// `u32::MAX`. The second word has the bytes of these allocations.
pub const fn site(stack: u32, allocs: u32) -> u64 {
    (stack as u64) << 32 | allocs as u64
}

/// Room for kinds in each per-kind block, so that a new kind does not move the others.
pub(crate) const KINDS: usize = 32;

/// Counters of a kind where its memory usually lies: indexes into a shard.
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
    /// Execs instantiated by the program.
    EXECS_CREATED = 4, "execs_created";
    /// Execs destroyed by the program.
    EXECS_DESTROYED = 5, "execs_destroyed";
    /// Instantiates that failed.
    INSTANTIATE_FAILURES = 6, "instantiate_failures";
    /// Nanoseconds spent in instantiates of the program that succeeded.
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
    /// Panics of gpumem's own code that gpumem caught.
    PANICS = 19, "panics";
    /// Allocations that ended because their context was destroyed or reset.
    ENDED_WITH_CONTEXT = 20, "ended_with_context";
    /// Nodes in all graphs ever instantiated.
    NODES_INSTANTIATED = 21, "nodes_instantiated";
    /// Exec handles of gpumem's own that the program was given.
    HANDLES_MADE = 22, "handles_made";
    /// Exec handles of gpumem's own that were destroyed.
    HANDLES_ENDED = 23, "handles_ended";
    /// Handles that became pinned: the driver's own, or handles that keep one real exec for good.
    PINNED_MADE = 24, "pinned_made";
    /// Pinned handles that were destroyed.
    PINNED_ENDED = 25, "pinned_ended";
    /// Real execs that entered the graph cache. Real execs of pinned handles are not in it.
    REAL_EXECS_MADE = 26, "real_execs_made";
    /// Real execs that left the graph cache: destroyed, or pinned to their handle.
    REAL_EXECS_ENDED = 27, "real_execs_ended";
    /// Estimated host and device bytes of real execs that entered the graph cache.
    REAL_BYTES_ADDED = 28, "real_bytes_added";
    /// Estimated host and device bytes of real execs that left the graph cache.
    REAL_BYTES_REMOVED = 29, "real_bytes_removed";
    /// Host bytes of sources that were made.
    SOURCE_BYTES_ADDED = 30, "source_bytes_added";
    /// Host bytes of sources that were dropped.
    SOURCE_BYTES_REMOVED = 31, "source_bytes_removed";
    /// Real execs turned from one handle's graph into another's.
    RETARGETS = 32, "retargets";
    /// Nanoseconds spent in retargets that succeeded.
    RETARGET_NS = 33, "retarget_ns";
    /// Nodes that were set in retargets.
    NODES_SET = 34, "nodes_set";
    /// Real execs of destroyed handles that a new handle got.
    RECYCLED = 35, "recycled";
    /// Real execs that were destroyed to make room.
    EVICTIONS = 36, "evictions";
    /// Real execs instantiated above a bound, because none could be taken at that moment.
    OVER_BOUND = 37, "over_bound";
    /// Retargets that the driver refused, so that an instantiate took their place.
    FALLBACK_INSTANTIATES = 38, "fallback_instantiates";
    /// Launches that ran node by node, because no real exec could be made or taken.
    ONE_BY_ONE = 39, "one_by_one";
    /// Nanoseconds of instantiates that the graph cache avoided, estimated. The time that launches took to get a real exec is not subtracted.
    SAVED_NS = 40, "saved_ns";
    /// Graphs folded to their source.
    FOLDS = 41, "folds";
    /// Folded graphs that were built again.
    UNFOLDS = 42, "unfolds";
    /// Times the graph cache was seen thrashing: at a bound, execs are destroyed and made again.
    THRASHES = 43, "thrashes";
    /// Graph calls that ran out of memory and were tried again after memory was given back.
    OOM_RETRIES = 44, "oom_retries";
    /// Times the memory that the driver keeps for graphs was trimmed.
    GRAPH_TRIMS = 45, "graph_trims";
    /// Allocations that a block of the pool served.
    POOL_HITS = 46, "pool_hits";
    /// Allocations for which the pool had no block, so that the driver made one.
    POOL_MISSES = 47, "pool_misses";
    /// Allocations that went to the driver because the pool had to step aside.
    POOL_PASSED = 48, "pool_passed";
    /// Frees that kept the block.
    POOL_KEPT = 49, "pool_kept";
    /// Idle blocks that the pool gave back to the driver.
    POOL_RELEASED = 50, "pool_released";
    /// Bytes of the idle blocks that the pool gave back to the driver.
    POOL_RELEASED_BYTES = 51, "pool_released_bytes";
    /// Frees whose barrier needed a call to the driver.
    POOL_BARRIERS = 52, "pool_barriers";
    /// Frees that needed no barrier: nothing had been submitted since the last one.
    POOL_BARRIERS_FREE = 53, "pool_barriers_free";
    /// Times the pool was emptied because memory ran out.
    POOL_FLUSHES = 54, "pool_flushes";
    /// Allocations that were placed outside of the device's memory.
    SPILLS = 55, "spills";
    /// Bytes of the allocations that were placed outside of the device's memory.
    SPILLED_BYTES = 56, "spilled_bytes";
    /// Allocations that were refused at GPUMEM_LIMIT or GPUMEM_LIMIT_GROUP.
    LIMIT_REFUSALS = 57, "limit_refusals";
    /// Allocations that were refused once so that the program frees its stranded memory.
    PRESS_REFUSALS = 58, "press_refusals";
    /// Allocations that were freed while a live graph refers to them. Counted under GPUMEM_FREED_IN_GRAPH=1.
    FREED_IN_GRAPH = 59, "freed_in_graph";
    /// How often the command gpumem trim emptied the pool.
    TRIMS = 60, "trims";
    /// Bytes that became stranded: older blocks of a call site that keeps asking for more.
    STRANDED_ADDED = 61, "stranded_bytes_added";
    /// Bytes that were stranded and no longer are.
    STRANDED_REMOVED = 62, "stranded_bytes_removed";
    /// Nanoseconds that launches took to get a real exec for their handle. Natively a launch has its exec.
    MISS_NS = 63, "miss_ns";
    /// Real execs instantiated while the device still had work to do, because the exec that could have been taken had
    /// become slower.
    MADE_ANEW = 64, "made_anew";
    /// Allocations that failed because memory ran out, after everything that can be given back was given back.
    OUT_OF_MEMORY = 65, "out_of_memory";
    /// Ranges of memory that the guard read: zones behind and in front of allocations, and freed memory.
    GUARD_CHECKS = 66, "guard_checks";
    /// Ranges that the guard could not read: the device did not do so in time, or the driver refused.
    GUARD_UNCHECKED = 67, "guard_unchecked";
    /// Allocations for which the guard found a write outside of their bounds.
    GUARD_OUTSIDE = 68, "guard_written_outside";
    /// Allocations to which the guard found a write after their free.
    GUARD_FREED = 69, "guard_written_after_free";
    /// Launches of graphs that refer to freed memory, which the guard found before they ran.
    GUARD_GRAPHS = 70, "guard_freed_graph_launches";
    /// Allocations that the guard does not watch: GPUMEM_GUARD_MAX was reached, or memory was short.
    GUARD_WITHOUT = 71, "guard_without";
    /// Bytes that the guard began to hold: zones, and freed memory that is kept from use.
    GUARD_BYTES_ADDED = 72, "guard_bytes_added";
    /// Bytes that the guard held and no longer holds.
    GUARD_BYTES_REMOVED = 73, "guard_bytes_removed";
    /// Bytes of device memory that gpumem's own kernels, streams and buffers came to take.
    OWN_DEVICE_ADDED = 74, "own_device_added";
    /// Device bytes of gpumem's own kernels, streams and buffers that were freed when their contexts ended.
    OWN_DEVICE_REMOVED = 75, "own_device_removed";
    /// Pinned host memory that gpumem allocated for its reads of device memory (guard, search for references), in bytes.
    OWN_PINNED_ADDED = 76, "own_pinned_added";
    /// The part of that pinned memory that was freed when its contexts ended, in bytes.
    OWN_PINNED_REMOVED = 77, "own_pinned_removed";
    /// Allocations that were freed before a launch of an exec that refers to them, once for each exec and allocation.
    LAUNCHED_AFTER_FREE = 78, "launched_after_free";
}

const _: () = assert!(SCALARS + 96 <= SITES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_counters_share_a_place() {
        let mut seen = std::collections::HashSet::new();
        for &(index, name, doc) in ALL {
            assert!(seen.insert(index) && index >= SCALARS, "{name} shares its place");
            assert!(index < SITES && !doc.is_empty());
        }
    }
}
