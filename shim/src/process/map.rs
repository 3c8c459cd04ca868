//! Maps that threads share.

use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use std::hash::Hash;

pub(crate) type Map<K, V> = DashMap<K, V, FxBuildHasher>;

/// The parts of a map, each with a lock of its own. There are more parts than threads that usually use the map at one
/// time. By default a map would have four parts for each processor, which on large machines is 64 KiB for an empty map.
const PARTS: usize = 16;

/// A map that makes room when something comes into it.
pub(crate) fn new<K: Eq + Hash, V>() -> Map<K, V> {
    with_parts(PARTS)
}

/// The same in so many parts, a power of two.
pub(crate) fn with_parts<K: Eq + Hash, V>(parts: usize) -> Map<K, V> {
    DashMap::with_hasher_and_shard_amount(FxBuildHasher, parts)
}
