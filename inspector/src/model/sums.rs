//! Bytes added up by a key.

use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Returns the sum of the bytes of each key.
pub(crate) fn by<K: Eq + Hash>(all: impl Iterator<Item = (K, u64)>) -> FxHashMap<K, u64> {
    let mut sums = FxHashMap::default();
    for (key, bytes) in all {
        let sum: &mut u64 = sums.entry(key).or_default();
        *sum = sum.saturating_add(bytes);
    }
    sums
}
