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

/// A hold on a handle that is being released.
pub struct Release {
    handle: u64,
    id: u64,
}

/// A mapping that is being unmapped.
pub struct Unmap {
    start: u64,
    mapping: Mapping,
    entry: Option<Entry>,
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

    /// Takes one hold on a handle away before the real release: another thread may get the handle's
    /// number at once.
    pub fn vmm_releasing(&self, handle: u64) -> Option<Release> {
        let mut inner = self.registry.vmm.inner.lock().ok()?;
        let id = inner.handles.get(&handle).copied()?;
        let physical = inner.physical.get_mut(&id)?;
        physical.handles = physical.handles.saturating_sub(1);
        if physical.handles == 0 {
            inner.handles.remove(&handle);
        }
        Some(Release { handle, id })
    }

    /// The real release returned.
    pub fn vmm_released(&self, release: Release, succeeded: bool) {
        let over = {
            let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
            if !succeeded {
                if let Some(physical) = inner.physical.get_mut(&release.id) {
                    physical.handles += 1;
                }
                inner.handles.entry(release.handle).or_insert(release.id);
            }
            inner.over(release.id)
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

    /// Takes out all mappings that lie in a range before it is really unmapped.
    pub fn vmm_unmapping(&self, addr: u64, bytes: u64) -> Vec<Unmap> {
        let Ok(mut inner) = self.registry.vmm.inner.lock() else { return Vec::new() };
        let end = addr.saturating_add(bytes);
        let whole =
            inner.mappings.range(addr..end).filter(|(start, mapping)| start.saturating_add(mapping.bytes) <= end);
        let starts: Vec<u64> = whole.map(|(start, _)| *start).collect();
        let taken = starts.into_iter().filter_map(|start| {
            let mapping = inner.mappings.remove(&start)?;
            Some(Unmap { start, mapping, entry: self.registry.allocations.remove(Class::Mapping, start) })
        });
        taken.collect()
    }

    /// The real unmap returned.
    pub fn vmm_unmapped(&self, gone: Vec<Unmap>, succeeded: bool) {
        let mut over = Vec::new();
        {
            let Ok(mut inner) = self.registry.vmm.inner.lock() else { return };
            for Unmap { start, mapping, entry } in gone {
                if succeeded {
                    if let Some(physical) = inner.physical.get_mut(&mapping.physical) {
                        physical.mappings = physical.mappings.saturating_sub(1);
                    }
                    over.extend(entry);
                    over.extend(inner.over(mapping.physical));
                    continue;
                }
                inner.mappings.insert(start, mapping);
                if let Some(entry) = entry {
                    self.restore(Class::Mapping, start, entry);
                }
            }
        }
        for entry in over {
            self.ended(entry);
        }
    }
}
