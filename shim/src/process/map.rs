//! Maps that threads share.

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use std::hash::Hash;

pub(crate) type Map<K, V> = DashMap<K, V, FxBuildHasher>;

/// Parts of a map, each with a lock of its own: more than threads usually meet in one place at a time. By itself a map
/// has four to each processor, which on large machines is 64 KiB for a map that holds nothing.
const PARTS: usize = 16;

/// A map that makes room when something comes into it.
pub(crate) fn new<K: Eq + Hash, V>() -> Map<K, V> {
    with_parts(PARTS)
}

/// The same in so many parts, a power of two.
pub(crate) fn with_parts<K: Eq + Hash, V>(parts: usize) -> Map<K, V> {
    DashMap::with_hasher_and_shard_amount(FxBuildHasher, parts)
}
