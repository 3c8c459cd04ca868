//! Live things by pointer or handle. Values are copied out: no reference into the map leaves it, so none of its locks
//! can be held over a driver call.

use crate::process::map::{self, Map, Refused};

/// Meaning of a key's number. One number may be both a device address and a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Class {
    /// An address in the address space that hosts and devices share.
    Address,
    /// `CUmemGenericAllocationHandle`.
    Vmm,
    /// Array handle.
    Array,
    /// External memory handle.
    External,
    /// Address of a reservation: its first mapping has the same address.
    Reservation,
    /// Address of a mapping: memory allocated there has the same address.
    Mapping,
    /// Graph handle.
    Graph,
    /// Exec handle.
    Exec,
    /// Registered host address: it may lie in memory that was allocated.
    Registered,
    /// Address at which another process's memory was opened.
    Import,
    /// Module handle.
    Module,
    /// Library handle. A library belongs to no context.
    Library,
    /// Event handle.
    Event,
    /// A graph node that allocates. Its graph owns it ([`super::graph_memory`]).
    Node,
    /// A part of an allocation that the program reported, by its pool.
    Reported(u32),
}

/// A map that hands out owned values only.
pub(crate) struct Live<V: Copy> {
    map: Map<(u64, Class), V>,
}

impl<V: Copy> Live<V> {
    pub(crate) fn new() -> Self {
        // Every allocation that the pool does not serve is recorded here.
        Self { map: map::with_parts(64) }
    }

    /// Adds an entry; returns the one it replaced, if any. If there is no memory the entry is left out: recording has
    /// ended by then.
    #[inline]
    pub(crate) fn insert(&self, class: Class, key: u64, value: V) -> Option<V> {
        map::put(&self.map, (key, class), value, true).unwrap_or(None)
    }

    /// Adds an entry unless its place is taken.
    ///
    /// # Errors
    /// Its place is taken, or there is no memory for it.
    pub(crate) fn insert_if_absent(&self, class: Class, key: u64, value: V) -> Result<(), Refused> {
        map::put(&self.map, (key, class), value, false).map(|_| ())
    }

    /// Removes an entry.
    #[inline]
    pub(crate) fn remove(&self, class: Class, key: u64) -> Option<V> {
        self.map.remove(&(key, class)).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get(&self, class: Class, key: u64) -> Option<V> {
        self.map.get(&(key, class)).map(|value| *value)
    }

    /// Removes all entries for which `wanted` is true.
    pub(crate) fn drain(&self, wanted: impl Fn(&V) -> bool) -> Vec<V> {
        let mut taken = Vec::new();
        self.map.retain(|_, value| {
            let take = wanted(value);
            if take {
                taken.push(*value);
            }
            !take
        });
        taken
    }

    /// True if `wanted` is true for an entry.
    pub(crate) fn any(&self, wanted: impl Fn(&V) -> bool) -> bool {
        self.map.iter().any(|entry| wanted(entry.value()))
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}
