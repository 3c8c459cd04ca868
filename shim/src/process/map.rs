//! Maps shared by threads.

use super::heap;
use dashmap::{DashMap, SharedValue};
use rustc_hash::FxBuildHasher;
use std::hash::Hash;

pub(crate) type Map<K, V> = DashMap<K, V, FxBuildHasher>;

/// Number of parts of a map, each with its own lock: more than the number of threads that usually use the map at once.
/// The default would be four parts per processor, which on large machines is 64 KiB for an empty map.
const PARTS: usize = 16;

/// Creates a map that allocates when its first entry is added.
pub(crate) fn new<K: Eq + Hash, V>() -> Map<K, V> {
    with_parts(PARTS)
}

/// As [`new`], with a given number of parts, a power of two.
pub(crate) fn with_parts<K: Eq + Hash, V>(parts: usize) -> Map<K, V> {
    DashMap::with_hasher_and_shard_amount(FxBuildHasher, parts)
}

/// There is no memory for another entry, or the key is taken.
pub(crate) struct Refused;

/// Puts a value into a map. An existing value is replaced and returned if `replaces`; otherwise the call is refused. If
/// a part of the map is full and there is no memory for a larger one, the call is refused and the map stays unchanged:
/// many threads may find their parts full at once. (The map's own functions would end the process.)
#[inline]
pub(crate) fn put<K: Eq + Hash, V>(map: &Map<K, V>, key: K, value: V, replaces: bool) -> Result<Option<V>, Refused> {
    let hash_of = |key: &K| map.hash_usize(key) as u64;
    let hash = hash_of(&key);
    let mut part = map.shards()[map.determine_shard(hash as usize)].write();
    if part.len() == part.capacity() {
        heap::softly(|| part.try_reserve(1, |(key, _)| hash_of(key))).map_err(|_| Refused)?;
    }
    match part.find_or_find_insert_slot(hash, |(its, _)| *its == key, |(key, _)| hash_of(key)) {
        Ok(_) if !replaces => Err(Refused),
        // SAFETY: the bucket is one of this part, whose lock this thread holds for writing.
        Ok(bucket) => Ok(Some(std::mem::replace(unsafe { bucket.as_mut() }.1.get_mut(), value))),
        Err(place) => {
            // SAFETY: `find_or_find_insert_slot` gave the place for this hash, and the part has not changed since: this
            // thread holds its lock for writing.
            unsafe { part.insert_in_slot(hash, place, (key, SharedValue::new(value))) };
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If several threads find no memory for a larger part at once, none of them ends the process.
    #[test]
    fn what_finds_no_memory_is_left_out() {
        const MANY: u64 = 20_000;
        let map: Map<u64, u64> = with_parts(64);
        let add = |from: u64| (from..from + MANY).filter(|&key| put(&map, key, key, true).is_ok()).count() as u64;
        assert_eq!(add(0), MANY);
        let refused = |thread: u64| heap::refused(|| add(thread * MANY));
        let added: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=8).map(|thread| scope.spawn(move || refused(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(added < 8 * MANY, "all had room");
        assert_eq!(map.len() as u64, MANY + added);
        assert!((0..MANY).all(|key| map.get(&key).is_some_and(|value| *value == key)));
        assert!(put(&map, 0, 7, false).is_err() && matches!(put(&map, 0, 8, true), Ok(Some(0))));
        assert_eq!(add(9 * MANY), MANY, "there is memory again");
    }
}
