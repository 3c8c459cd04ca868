//! Virtual memory management. Physical memory lives until every holder of its handle has released it and it is unmapped
//! everywhere.

use super::allocations::Entry;
use std::collections::{BTreeMap, HashMap};

/// Physical memory held by handles, by mappings, or by both.
pub(crate) struct Physical {
    pub(crate) entry: Entry,
    pub(crate) handles: u32,
    pub(crate) mappings: u32,
}

pub(crate) struct Mapping {
    pub(crate) bytes: u64,
    pub(crate) physical: u64,
}

/// A hold on a handle that is being released.
pub(crate) struct Release {
    pub(crate) handle: u64,
    pub(crate) id: u64,
}

/// A mapping that is being unmapped.
pub(crate) struct Unmap {
    pub(crate) start: u64,
    pub(crate) mapping: Mapping,
    pub(crate) entry: Option<Entry>,
}

/// Handles, mappings and their memory. These calls take microseconds in the driver, so one lock suffices; it is never
/// held over one of them.
#[derive(Default)]
pub(crate) struct Vmm {
    /// By a number of our own, because a handle's number may be reused while the memory is still mapped.
    pub(crate) physical: HashMap<u64, Physical>,
    pub(crate) handles: HashMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) next: u64,
}

impl Vmm {
    /// Removes physical memory that nothing holds any more.
    pub(crate) fn take_unheld(&mut self, id: u64) -> Option<Entry> {
        let physical = self.physical.get(&id)?;
        if physical.handles > 0 || physical.mappings > 0 {
            return None;
        }
        self.physical.remove(&id).map(|physical| physical.entry)
    }
}
