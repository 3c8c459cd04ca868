//! Records virtual memory: creation, mapping, unmapping and release of physical memory.

use super::allocations::{self, Request};
use crate::call::Call;
use crate::records::registry::live::Class;
use crate::records::registry::vmm::{Mapping, Physical, Release, Unmap};
use crate::shim::Shim;

/// Records physical memory that was created, or imported from another process.
pub(crate) fn created(shim: &'static Shim, call: &Call, request: &Request, handle: u64) {
    allocations::made(shim, call, request, handle);
    let Some(entry) = shim.registry.allocations.remove(Class::Vmm, handle) else { return };
    let Ok(mut inner) = shim.registry.vmm.lock() else { return };
    let id = inner.next;
    inner.next += 1;
    inner.physical.insert(id, Physical { entry, handles: 1, mappings: 0 });
    inner.handles.insert(handle, id);
}

/// Records another hold on a handle.
pub(crate) fn retained(shim: &Shim, handle: u64) {
    let Ok(mut inner) = shim.registry.vmm.lock() else { return };
    let Some(id) = inner.handles.get(&handle).copied() else { return };
    if let Some(physical) = inner.physical.get_mut(&id) {
        physical.handles += 1;
    }
}

/// Removes one hold on a handle before the real release, because another thread may get the handle's number at once.
pub(crate) fn releasing(shim: &Shim, handle: u64) -> Option<Release> {
    let mut inner = shim.registry.vmm.lock().ok()?;
    let id = inner.handles.get(&handle).copied()?;
    let physical = inner.physical.get_mut(&id)?;
    physical.handles = physical.handles.saturating_sub(1);
    if physical.handles == 0 {
        inner.handles.remove(&handle);
    }
    Some(Release { handle, id })
}

/// Records that the real release returned.
pub(crate) fn released(shim: &Shim, release: Release, succeeded: bool) {
    let ended = {
        let Ok(mut inner) = shim.registry.vmm.lock() else { return };
        if !succeeded {
            if let Some(physical) = inner.physical.get_mut(&release.id) {
                physical.handles += 1;
            }
            inner.handles.entry(release.handle).or_insert(release.id);
        }
        inner.take_unheld(release.id)
    };
    if let Some(entry) = ended {
        allocations::ended(shim, entry);
    }
}

/// Records that physical memory was mapped.
pub(crate) fn mapped(shim: &'static Shim, call: &Call, request: &Request, addr: u64) {
    allocations::made(shim, call, request, addr);
    let (bytes, handle) = (request.bytes, request.extra);
    let Ok(mut inner) = shim.registry.vmm.lock() else { return };
    let physical = inner.handles.get(&handle).copied().unwrap_or(u64::MAX);
    if let Some(physical) = inner.physical.get_mut(&physical) {
        physical.mappings += 1;
    }
    inner.mappings.insert(addr, Mapping { bytes, physical });
}

/// Removes all mappings in a range before it is really unmapped.
pub(crate) fn unmapping(shim: &Shim, addr: u64, bytes: u64) -> Vec<Unmap> {
    let Ok(mut inner) = shim.registry.vmm.lock() else { return Vec::new() };
    let end = addr.saturating_add(bytes);
    let whole = inner.mappings.range(addr..end).filter(|(start, mapping)| start.saturating_add(mapping.bytes) <= end);
    let starts: Vec<u64> = whole.map(|(start, _)| *start).collect();
    let taken = starts.into_iter().filter_map(|start| {
        let mapping = inner.mappings.remove(&start)?;
        Some(Unmap { start, mapping, entry: shim.registry.allocations.remove(Class::Mapping, start) })
    });
    taken.collect()
}

/// Records that the real unmap returned.
pub(crate) fn unmapped(shim: &Shim, gone: Vec<Unmap>, succeeded: bool) {
    let mut ended = Vec::new();
    {
        let Ok(mut inner) = shim.registry.vmm.lock() else { return };
        for Unmap { start, mapping, entry } in gone {
            if succeeded {
                if let Some(physical) = inner.physical.get_mut(&mapping.physical) {
                    physical.mappings = physical.mappings.saturating_sub(1);
                }
                ended.extend(entry);
                ended.extend(inner.take_unheld(mapping.physical));
                continue;
            }
            inner.mappings.insert(start, mapping);
            if let Some(entry) = entry {
                allocations::restore(shim, Class::Mapping, start, entry);
            }
        }
    }
    for entry in ended {
        allocations::ended(shim, entry);
    }
}
