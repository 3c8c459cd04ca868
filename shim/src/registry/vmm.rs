//! Virtual memory management: physical memory lives until it is released by all who hold its
//! handle and unmapped everywhere.

use super::allocations::Entry;
use super::live::Class;
use crate::call::Call;
use crate::shim::Shim;
use gpumem_wire::kinds::AllocKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

/// Physical memory that is held by handles, by mappings, or by both.
struct Physical {
    entry: Entry,
    handles: u32,
    mappings: u32,
}

struct Mapping {
    bytes: u64,
    physical: u64,
}

/// Who holds what. These calls take microseconds in the driver, so one lock will do; it is never
/// held over one of them.
#[derive(Default)]
pub struct Vmm {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By a number of our own: a handle's number may come back while the memory is still mapped.
    physical: HashMap<u64, Physical>,
    handles: HashMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    next: u64,
}

impl Inner {
    /// Takes out physical memory that nothing holds any more.
    fn over(&mut self, id: u64) -> Option<Entry> {
        let physical = self.physical.get(&id)?;
        if physical.handles > 0 || physical.mappings > 0 {
            return None;
        }
        self.physical.remove(&id).map(|physical| physical.entry)
    }
}

impl Shim {
    /// Physical memory was created, or imported from another process.
    pub fn vmm_created(&'static self, call: &Call, kind: AllocKind, handle: u64, bytes: u64) {
        self.allocated(call, Class::Vmm, kind, handle, bytes, 0, 0);
        let Some(entry) = self.registry.allocations.remove(Class::Vmm, handle) else { return };
        let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
        let id = inner.next;
        inner.next += 1;
        inner.physical.insert(id, Physical { entry, handles: 1, mappings: 0 });
        inner.handles.insert(handle, id);
    }

    /// The program holds a handle once more.
    pub fn vmm_retained(&self, handle: u64) {
        let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
        let Some(id) = inner.handles.get(&handle).copied() else { return };
        if let Some(physical) = inner.physical.get_mut(&id) {
            physical.handles += 1;
        }
    }

    /// A handle was released.
    pub fn vmm_released(&self, handle: u64) {
        let over = {
            let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
            let Some(id) = inner.handles.get(&handle).copied() else { return };
            let left = inner.physical.get_mut(&id).map_or(0, |physical| {
                physical.handles = physical.handles.saturating_sub(1);
                physical.handles
            });
            if left == 0 {
                inner.handles.remove(&handle);
            }
            inner.over(id)
        };
        if let Some(entry) = over {
            self.ended(entry);
        }
    }

    /// Physical memory got an address.
    pub fn vmm_mapped(&'static self, call: &Call, addr: u64, bytes: u64, handle: u64) {
        self.allocated(call, Class::Mapping, AllocKind::VmmMapping, addr, bytes, 0, handle);
        let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
        let physical = inner.handles.get(&handle).copied().unwrap_or(u64::MAX);
        if let Some(physical) = inner.physical.get_mut(&physical) {
            physical.mappings += 1;
        }
        inner.mappings.insert(addr, Mapping { bytes, physical });
    }

    /// A range was unmapped: all mappings that begin in it.
    pub fn vmm_unmapped(&self, addr: u64, bytes: u64) {
        let (gone, over) = {
            let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
            let end = addr.saturating_add(bytes);
            let gone: Vec<u64> = inner
                .mappings
                .range(addr..end)
                .filter(|(start, mapping)| start.saturating_add(mapping.bytes) <= end)
                .map(|(start, _)| *start)
                .collect();
            let mut over = Vec::new();
            for start in &gone {
                let Some(mapping) = inner.mappings.remove(start) else { continue };
                if let Some(physical) = inner.physical.get_mut(&mapping.physical) {
                    physical.mappings = physical.mappings.saturating_sub(1);
                }
                over.extend(inner.over(mapping.physical));
            }
            (gone, over)
        };
        for start in gone {
            if let Some(entry) = self.registry.allocations.remove(Class::Mapping, start) {
                self.ended(entry);
            }
        }
        for entry in over {
            self.ended(entry);
        }
    }
}
