//! A request for memory, from the hook to its record. Pool and graphs meet only in this folder.
//!
//! A hook describes what the program asks for ([`Request`]) and hands it to [`get`]. From there on all requests take
//! one path: limit, idle block or real call, another call after giving memory back, spill, record. A hit in the pool's
//! fast path comes before this path and builds no request.
//!
//! * This file: the path of a request, and of a free.
//! * [`block`]: the pool's part in it. [`ladder`]: the steps before memory runs out, in order.
//! * [`place`]: the location of memory, as the program describes it.
//! * [`ran_out`]: the report of the largest holders once nothing is left to try.

mod block;
mod ladder;
pub(crate) mod place;
mod ran_out;

pub(crate) use crate::records::allocations::Request;
pub(crate) use ladder::{flush_here, has_limit};

use crate::call::Call;
use crate::gate;
use crate::guard;
use crate::pool::quota::Reserved;
use crate::process::device_calls::DeviceCall;
use crate::process::threads;
use crate::progress::queries;
use crate::records::registry::live::Class;
use crate::records::{allocations, graph_memory, shared, vmm};
use crate::shim::Above;
use crate::{pool, stranded};
use block::Outcome;
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::{AllocKind, Space};
use gpumem_wire::location::Location;

/// Gets memory for the program by `real`, the program's call, and records it. `found` takes the call's status,
/// completes the description from the call's answer, and returns the address or handle that the call has written, or
/// `None` if there is none. `above`: the components that the shim may ask if this call starts it.
#[inline]
pub(crate) fn get(
    above: &'static dyn Above,
    call: &Call,
    request: Request,
    real: impl FnMut() -> Status,
    found: impl FnOnce(&mut Request, Status) -> Option<u64>,
) -> Status {
    // Until it is recorded: memory of the host is no device's, and an address range takes none.
    let _call = (!matches!(request.space(), Space::Host | Space::None)).then(DeviceCall::begin);
    let (status, _room) = within_limit(call, &request, real);
    record(above, call, status, request, found)
}

/// Gets plain device memory, which the pool may serve. `real` asks the driver for a number of bytes and writes `out`.
///
/// # Safety
/// `out` is the program's out-parameter: NULL, or valid for a write. `real` has written it when it succeeds.
#[inline]
pub(crate) unsafe fn get_block(
    above: &'static dyn Above,
    call: &Call,
    bytes: usize,
    out: *mut DevicePtr,
    mut real: impl FnMut(usize) -> Status,
) -> Status {
    let request = Request::new(AllocKind::Device, bytes as u64);
    // SAFETY: our caller vouches for `out` and for what `real` leaves there.
    unsafe {
        let in_pool = pool::open(call.vendor, guard::new).map(|pool| block::get(pool, call, &request, out, &mut real));
        match in_pool {
            Some(Outcome::Done(status)) => return status,
            Some(Outcome::Failed(status)) => return record(above, call, status, request, |_, _| None),
            Some(Outcome::Aside) | None => {}
        }
        let _call = DeviceCall::begin();
        // The pool steps aside, but the limit still holds. If the driver may refuse the request for another reason, the
        // driver decides.
        let asks = !out.is_null() && bytes != 0 && !queries::capturing();
        let mut room = Reserved::default();
        let limited = || {
            let (status, reserved) = match asks {
                true => within_limit(call, &request, || real(bytes)),
                false => (ladder::again(call, request.bytes, request.location, || real(bytes)), Reserved::default()),
            };
            room = reserved;
            status
        };
        let status = stranded::watched(call, request.bytes, out, limited);
        record(above, call, status, request, |_, status| if status == SUCCESS { out.as_ref().copied() } else { None })
    }
}

/// Runs a call for which the driver takes device memory that is not an allocation of the program: a context, a stream,
/// code. If there is no memory, repeats the call after giving memory back.
#[inline]
pub(crate) fn for_driver(call: &Call, place: Location, real: impl FnMut() -> Status) -> Status {
    let _call = DeviceCall::begin();
    ladder::again(call, 0, place, real)
}

/// Runs the program's call if the limit has room, and repeats it after giving memory back. The room has to be held
/// until the bytes are counted.
#[inline]
fn within_limit(call: &Call, request: &Request, mut real: impl FnMut() -> Status) -> (Status, Reserved) {
    let (bytes, room) = match request.space() {
        Space::Device => (request.bytes, ladder::room_for(call, request)),
        // Managed memory needs room on the device, too. So may memory of other processes.
        Space::Managed | Space::Unknown => (request.bytes, Some(Reserved::default())),
        Space::None if request.kind == AllocKind::IpcImport => (0, Some(Reserved::default())),
        Space::Host | Space::None => return (real(), Reserved::default()),
    };
    match room {
        Some(room) => (ladder::again(call, bytes, request.location, real), room),
        None => (OUT_OF_MEMORY, Reserved::default()),
    }
}

/// Records the answer of the program's call.
#[inline]
fn record(
    above: &'static dyn Above,
    call: &Call,
    status: Status,
    mut request: Request,
    found: impl FnOnce(&mut Request, Status) -> Option<u64>,
) -> Status {
    let addr = found(&mut request, status);
    if status != SUCCESS {
        failed(call, &request, status);
    } else if let Some(addr) = addr {
        threads::local(|local| local.recorded());
        gate::record(above, |shim| {
            place::complete(shim, call, &mut request, addr);
            match request.class {
                Class::Vmm => vmm::created(shim, call, &request, addr),
                Class::Node => graph_memory::added(shim, call, &request, addr),
                Class::Mapping => vmm::mapped(shim, call, &request, addr),
                Class::Import => shared::opened(shim, call, &request, addr),
                _ => allocations::made(shim, call, &request, addr),
            }
        });
    }
    status
}

#[cold]
fn failed(call: &Call, request: &Request, status: Status) {
    gate::note(|shim| {
        let stack = allocations::failed(shim, call, request, status);
        if status == OUT_OF_MEMORY && request.space() == Space::Device {
            ran_out::ran_out(shim, call, request.kind, request.bytes, stack);
        }
    });
}

/// Ends an object that may have no record: takes the record out if there is one, calls the real function, and puts the
/// record back if the call failed.
pub(crate) fn end(class: Class, handle: u64, real: impl FnOnce() -> Status) -> Status {
    let entry = gate::note(|shim| allocations::freeing(shim, class, handle)).flatten();
    let _call = DeviceCall::begin();
    let status = real();
    if let Some(entry) = entry {
        gate::note(|shim| match status {
            SUCCESS => allocations::ended(shim, entry),
            _ => allocations::restore(shim, class, handle, entry),
        });
    }
    status
}

/// Frees memory: takes the record out, calls the real function, and puts the record back if the call failed.
#[inline]
pub(crate) fn free(class: Class, addr: u64, real: impl FnOnce() -> Status) -> Status {
    let taken = gate::note(|shim| {
        let entry = allocations::freeing(shim, class, addr);
        if class == Class::Address {
            // This memory goes back to the driver at once, whatever the free returns.
            stranded::freed(shim, addr, || Some((entry?.bytes, entry?.slot)));
        }
        entry
    });
    let entry = taken.flatten();
    let status = real();
    gate::note(|shim| match status {
        // This free ends memory that a launch has allocated. The graph's node stays.
        SUCCESS if entry.is_none() && graph_memory::freed(shim, addr) => {}
        SUCCESS => allocations::freed(shim, entry, addr),
        _ => allocations::free_failed(shim, class, addr, entry, status),
    });
    status
}
