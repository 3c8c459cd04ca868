//! Live things by pointer or handle. Values are copied out: no reference into the map leaves it,
//! so no lock of it can be held over a call to the driver.

use crate::process::map::{self, Map, Refused};

/// What a key's number means. One number may be a device address and also a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Class {
    /// An address of the one address space that hosts and devices share.
    Address,
    /// `CUmemGenericAllocationHandle`.
    Vmm,
    /// Array handle.
    Array,
    /// External memory handle.
    External,
    /// Address of a reservation: its first mapping has the same address.
    Reservation,
    /// Address of a mapping: memory allocated there is the same address.
    Mapping,
    /// Graph handle.
    Graph,
    /// Exec handle.
    Exec,
    /// Host address that was registered: it may lie in memory that was allocated.
    Registered,
    /// Address that another process's memory was opened at.
    Import,
    /// Module handle.
    Module,
    /// Library handle. A library is of no context.
    Library,
    /// Event handle.
    Event,
    /// A node of a graph that allocates. Its graph has it ([`super::graph_memory`]).
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
        // Every allocation that the pool does not serve comes here.
        Self { map: map::with_parts(64) }
    }

    /// Adds an entry; the one that had its place, if any. Where there is no memory it is left out: recording has ended
    /// by then.
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

    /// Takes an entry out.
    #[inline]
    pub(crate) fn remove(&self, class: Class, key: u64) -> Option<V> {
        self.map.remove(&(key, class)).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get(&self, class: Class, key: u64) -> Option<V> {
        self.map.get(&(key, class)).map(|value| *value)
    }

    /// Takes out all entries that `wanted` names.
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

    /// Whether `wanted` names an entry.
    pub(crate) fn any(&self, wanted: impl Fn(&V) -> bool) -> bool {
        self.map.iter().any(|entry| wanted(entry.value()))
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}
