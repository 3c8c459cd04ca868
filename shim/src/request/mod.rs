//! A request for memory, from the hook to its record. The only place where pool and graphs meet.
//!
//! A hook describes what the program asks for ([`Request`]) and hands it to [`get`]. From there on all requests go one
//! way: limit, idle block or real call, again after giving back, spill, record. The pool's hit comes before: it builds
//! no request.
//!
//! * This file: the way, and the way back of memory that is freed.
//! * [`block`]: the part of the pool in it. [`ladder`]: what is tried before memory runs out, in which order.
//! * [`place`]: where memory lies, as the program describes it.
//! * [`ran_out`]: nothing is left to try; who holds what is reported.
//! * [`freed_in_graph`]: frees of memory that a live graph refers to.

mod block;
mod freed_in_graph;
mod ladder;
pub(crate) mod place;
mod ran_out;

pub(crate) use crate::records::allocations::Request;
pub(crate) use freed_in_graph::{look_for_block_in_graphs, look_for_memory_in_graphs};
pub(crate) use ladder::{flush_here, has_limit};
pub(crate) use ran_out::ran_out;

use crate::call::Call;
use crate::gate;
use crate::pool::quota::Reserved;
use crate::process::threads;
use crate::progress::queries;
use crate::records::registry::live::Class;
use crate::records::{allocations, graph_memory, shared, vmm};
use crate::shim::Above;
use crate::{pool, stranded};
use block::Outcome;
use gpumem_abi::types::{DevicePtr, OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::{AllocKind, Space};

/// Gets memory for the program by `real`, the program's call, and records it. `found` is given the call's
/// status, completes the description by what the call answered, and tells the address or handle that the call has
/// written; `None`: there is none. `above`: the rooms that the shim may ask, if it starts with this.
#[inline]
pub(crate) fn get(
    above: &'static dyn Above,
    call: &Call,
    request: Request,
    real: impl FnMut() -> Status,
    found: impl FnOnce(&mut Request, Status) -> Option<u64>,
) -> Status {
    let (status, _room) = within_limit(call, &request, real);
    record(above, call, status, request, found)
}

/// Gets plain device memory, which the pool may serve. `real` asks the driver for so many bytes at `out`.
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
        let in_pool = pool::open(call.vendor).map(|pool| block::get(pool, call, &request, out, &mut real));
        match in_pool {
            Some(Outcome::Done(status)) => return status,
            Some(Outcome::Failed(status)) => return record(above, call, status, request, |_, _| None),
            Some(Outcome::Aside) | None => {}
        }
        // The pool steps aside, but the limit still holds. Where the driver may refuse the request for another reason, it
        // is left to the driver.
        let asks = !out.is_null() && bytes != 0 && !queries::capturing();
        let mut room = Reserved::none();
        let limited = || {
            let (status, reserved) = match asks {
                true => within_limit(call, &request, || real(bytes)),
                false => (ladder::again(call, request.bytes, || real(bytes)), Reserved::none()),
            };
            room = reserved;
            status
        };
        let status = stranded::watched(call, request.bytes, out, limited);
        record(above, call, status, request, |_, status| if status == SUCCESS { out.as_ref().copied() } else { None })
    }
}

/// Runs a call for which the driver takes memory of the device that is no allocation of the program's: a context, a
/// stream, code. If there is no memory, it is made again after giving back.
#[inline]
pub(crate) fn for_driver(call: &Call, real: impl FnMut() -> Status) -> Status {
    ladder::again(call, 0, real)
}

/// Runs the program's call if the limit has room, and again after giving back. The room is to be held until the bytes
/// are counted.
#[inline]
fn within_limit(call: &Call, request: &Request, mut real: impl FnMut() -> Status) -> (Status, Reserved) {
    match request.space() {
        Space::Device => match ladder::room_for(call, request) {
            Some(room) => (ladder::again(call, request.bytes, real), room),
            None => (OUT_OF_MEMORY, Reserved::none()),
        },
        // Managed memory needs room on the device, too, and so may memory of other processes.
        Space::Managed | Space::Unknown => (ladder::again(call, request.bytes, real), Reserved::none()),
        Space::None if request.kind == AllocKind::IpcImport => (ladder::again(call, 0, real), Reserved::none()),
        Space::Host | Space::None => (real(), Reserved::none()),
    }
}

/// Records what the program's call answered.
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
        gate::note(|shim| allocations::failed(shim, call, &request, status));
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

/// Ends what need not have a record: takes it out if there is one, calls the real function, and puts it back if the call
/// failed.
pub(crate) fn end(class: Class, handle: u64, real: impl FnOnce() -> Status) -> Status {
    let entry = gate::note(|shim| allocations::freeing(shim, class, handle)).flatten();
    let status = real();
    if let Some(entry) = entry {
        gate::note(|shim| match status {
            SUCCESS => allocations::ended(shim, entry),
            _ => allocations::restore(shim, class, handle, entry),
        });
    }
    status
}

/// Frees: takes the record out, calls the real function, and puts the record back if the call failed.
#[inline]
pub(crate) fn free(class: Class, addr: u64, real: impl FnOnce() -> Status) -> Status {
    let entry = gate::note(|shim| allocations::freeing(shim, class, addr)).flatten();
    let status = real();
    gate::note(|shim| match status {
        // It ends what a launch has allocated, and not the node.
        SUCCESS if entry.is_none() && graph_memory::freed(shim, addr) => {}
        SUCCESS => allocations::freed(shim, entry, addr),
        _ => allocations::free_failed(shim, class, addr, entry, status),
    });
    status
}
