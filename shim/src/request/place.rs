//! The location of memory: read from the program's description, or asked of the driver afterwards.

use super::Request;
use crate::backend;
use crate::call::Call;
use crate::gate;
use crate::progress::queries;
use crate::records::driver_pools;
use crate::shim::Shim;
use gpumem_abi::types::MemLocation;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::location::Location;
use std::ffi::c_int;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
const MANAGED: c_int = 2;
/// `hipMemAllocationTypeUncached`: pinned memory that is not cached.
const UNCACHED: c_int = 0x4000_0000;
/// `CU_MEM_LOCATION_TYPE_DEVICE`. The next numbers are the host and its NUMA nodes.
pub(crate) const DEVICE: c_int = 1;

/// Returns the location that a program names for memory of an allocation type (`CUmemAllocationType`,
/// `CUmemLocationType`; HIP has the same numbers). Returns `Unknown` for an unknown type or location, which
/// [`tell_unknown`] reports.
pub(crate) fn named(kind: c_int, at: MemLocation) -> Location {
    let number = u16::try_from(at.id);
    let place = match at.kind {
        DEVICE => number.map_or(Location::Unknown, Location::Device),
        2 => Location::Host,
        3 => number.map_or(Location::Host, Location::HostNode),
        4 => current_node().map_or(Location::Host, Location::HostNode),
        _ => Location::Unknown,
    };
    match kind {
        MANAGED if place != Location::Unknown => Location::Managed,
        PINNED | UNCACHED => place,
        _ => Location::Unknown,
    }
}

/// Returns the NUMA node of the calling thread.
fn current_node() -> Option<u16> {
    let (mut processor, mut node) = (0_u32, 0_u32);
    let unused = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: both locals take the kernel's numbers, and it does not use the third argument.
    let status = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut node, unused) };
    u16::try_from(node).ok().filter(|_| status == 0)
}

/// Reports once that the program named an unknown location, after the driver has accepted it.
pub(crate) fn tell_unknown(shim: &Shim, kind: c_int, at: MemLocation) {
    if named(kind, at) == Location::Unknown {
        shim.met(&format!("memory of type {kind} at a location of type {}", at.kind));
    }
}

/// Returns the location of stream-ordered memory, from the current pool of the stream's device.
#[inline]
pub(crate) fn of_stream(call: &Call, stream: u64) -> Location {
    match gate::shim() {
        Some(shim) if driver_pools::may_lie_elsewhere(shim) => {
            gate::note(|shim| driver_pools::location_of_stream(shim, call.vendor, stream)).unwrap_or_default()
        }
        _ => Location::OwnDevice,
    }
}

/// Returns the location of a driver pool's memory.
pub(crate) fn of_pool(call: &Call, pool: u64) -> Location {
    gate::note(|shim| driver_pools::location(shim, call.vendor, pool)).unwrap_or(Location::Unknown)
}

/// Asks the driver for the location of memory from a driver pool whose creation was not seen. Does not ask during a
/// capture.
#[inline]
pub(super) fn complete(shim: &Shim, call: &Call, request: &mut Request, addr: u64) {
    if request.kind == AllocKind::Async && request.location == Location::Unknown {
        ask(shim, call, request, addr);
    }
}

#[cold]
fn ask(shim: &Shim, call: &Call, request: &mut Request, addr: u64) {
    if let Some(Some(location)) = queries::unless_capturing(|| backend::of(call.vendor).location_of(addr)) {
        request.location = location;
        driver_pools::known(shim, call.vendor, request.extra, location);
    }
}
