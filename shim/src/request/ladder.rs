//! The steps before a call runs out of device memory. Idle memory goes back first, then memory that graphs hold. Then
//! an allocation is placed outside the device's memory, if the user allows it.
//!
//! Between the two, a process that shares a card asks for memory of others ([`short`]).
//!
//! The ladder has one entry, [`again`]: it makes the program's call, and repeats it after each step that gave something
//! back. Two callers cannot use [`again`] as it is. The pool asks for a block in two sizes and may place it elsewhere:
//! [`obtain`]. The graph cache is below this folder and makes calls of its own: `ExecStore::again`, which gives back
//! the pool's blocks through [`crate::shim::Above`].

use super::Request;
use crate::call::Call;
use crate::gate;
use crate::guard;
use crate::pool::block::{HOST, MANAGED};
use crate::pool::context_pool::ContextPool;
use crate::pool::in_transit::{Tries, are_unchanged};
use crate::pool::private;
use crate::pool::quota::{LimitRefused, Reserved};
use crate::pool::{self, Obtained, Pool};
use crate::progress::queries;
use crate::records;
use crate::share::short;
use crate::{backend, graphs};
use gpumem_abi::types::{OUT_OF_MEMORY, SUCCESS, Status};
use gpumem_wire::kinds::Vendor;
use gpumem_wire::location::Location;
use gpumem_wire::settings::OomFallback;

/// Asks for a block of `rounded` bytes until there is nothing more to try, then for one of `asked` bytes. `room` has to
/// be held until the bytes are counted.
///
/// # Errors
/// The driver's status, or its code for out of memory if the quota refuses.
#[inline]
pub(super) fn obtain(
    pool: &'static Pool,
    call: &Call,
    owner: &'static ContextPool,
    rounded: u64,
    asked: u64,
    real: &mut impl FnMut(u64) -> Status,
    room: &mut Option<Reserved>,
) -> Result<Obtained, Status> {
    if pool.quota.is_limited() {
        return climb(pool, call, owner, (rounded, asked), None, real, room);
    }
    // Usually there is memory. The rest is a separate function, so that this path touches little code.
    let ended = owner.in_transit.blocks.ended();
    match real(rounded) {
        OUT_OF_MEMORY => climb(pool, call, owner, (rounded, asked), Some(ended), real, room),
        SUCCESS => Ok(Obtained { addr: None, bytes: rounded, flags: 0 }),
        status => Err(status),
    }
}

/// The rest of [`obtain`]. `refused` is set if the driver had no memory for `rounded` bytes: the number of blocks that
/// had ended their transit before the driver was asked.
///
/// # Errors
/// As [`obtain`].
#[cold]
#[inline(never)]
fn climb(
    pool: &'static Pool,
    call: &Call,
    owner: &'static ContextPool,
    (rounded, asked): (u64, u64),
    refused: Option<u64>,
    real: &mut dyn FnMut(u64) -> Status,
    room: &mut Option<Reserved>,
) -> Result<Obtained, Status> {
    let mut status = OUT_OF_MEMORY;
    let mut bytes = rounded;
    let mut admitted = pool.quota.admits(&pool.releaser, owner, bytes);
    if admitted.is_err() && asked < rounded {
        bytes = asked;
        admitted = pool.quota.admits(&pool.releaser, owner, bytes);
    }
    let limited = admitted.as_ref().err().copied();
    *room = admitted.ok();
    if let Some(limited) = limited {
        gate::note(|shim| records::pooled::limit_refused(shim, asked, limited == LimitRefused::Group));
    } else {
        let first = refused.filter(|_| bytes == rounded).map(|ended| (OUT_OF_MEMORY, ended));
        status = until_there_is_room(pool, owner, bytes, first, &mut || real(bytes));
        // The rounded size does not fit; the size that was asked for may.
        if status == OUT_OF_MEMORY && asked < bytes {
            bytes = asked;
            status = real(bytes);
        }
        status = after_graphs(owner, status, &mut || real(bytes));
        let (vendor, device) = (owner.vendor, Some(owner.device));
        status = short::with_memory_of_others(vendor, device, bytes, status, &mut || real(bytes));
        if status != OUT_OF_MEMORY {
            return if status == SUCCESS { Ok(Obtained { addr: None, bytes, flags: 0 }) } else { Err(status) };
        }
    }
    let fallback = gate::shim().map_or(OomFallback::None, |shim| shim.in_force.all().oom_fallback);
    if let Ok(obtained) = spill(call, owner, asked, fallback) {
        return Ok(obtained);
    }
    Err(status)
}

/// Asks for `bytes` until the driver has them or nothing more can be given back. `first`: the driver's last answer, and
/// the number of blocks that had ended their transit before it.
fn until_there_is_room(
    pool: &'static Pool,
    owner: &'static ContextPool,
    bytes: u64,
    mut first: Option<(Status, u64)>,
    real: &mut dyn FnMut() -> Status,
) -> Status {
    let mut status = OUT_OF_MEMORY;
    // Tries again: another thread may take the memory that this thread gave back, or give back memory that this one
    // needs.
    let mut tries = Tries::default();
    while tries.go_on() {
        let blocks = &owner.in_transit.blocks;
        let before;
        (status, before) = first.take().unwrap_or_else(|| {
            let ended = blocks.ended();
            (real(), ended)
        });
        // If nothing or not enough can be given back, the driver's answer is final.
        if status != OUT_OF_MEMORY
            || !make_room(pool, owner, bytes)
                && are_unchanged(&[(blocks, before)], pool.releaser.longest_transit(owner))
        {
            break;
        }
    }
    status
}

/// Gives back all idle memory if `bytes` may fit then. Returns true if anything went back.
fn make_room(pool: &'static Pool, owner: &'static ContextPool, bytes: u64) -> bool {
    private::give_back(owner.device)
        || pool.releaser.may_flush(owner) && may_fit(pool, owner, bytes) && pool.releaser.flush(owner.device) > 0
}

/// Returns true if giving back all idle memory could make room for `bytes`, or if that is unknown.
fn may_fit(pool: &'static Pool, owner: &'static ContextPool, bytes: u64) -> bool {
    let free = owner.within(|| owner.calls.free_bytes());
    free.is_none_or(|free| free + pool.idle_on(owner.device) >= bytes)
}

/// Places an allocation outside the device's memory.
///
/// # Errors
/// The driver's status; its code for out of memory if this is not allowed.
pub(super) fn spill(call: &Call, owner: &'static ContextPool, bytes: u64, to: OomFallback) -> Result<Obtained, Status> {
    if to == OomFallback::None {
        return Err(OUT_OF_MEMORY);
    }
    let host = || owner.calls.host(bytes as usize).map(|addr| (addr, HOST));
    let managed = || owner.calls.managed(owner.device, bytes as usize).map(|addr| (addr, MANAGED));
    // Devices that cannot share managed memory with a running host use host memory.
    let place = || if to == OomFallback::Managed { managed().or_else(|_| host()) } else { host() };
    let (addr, flags) = owner.within(place)?;
    gate::note(|shim| records::pooled::spilled(shim, call, bytes));
    Ok(Obtained { addr: Some(addr), bytes, flags })
}

/// Gives back unused memory that graphs hold. Returns true if anything went back.
fn give_back_graphs(owner: &ContextPool) -> bool {
    graphs::cache(owner.vendor).is_some_and(|cache| owner.within(|| cache.give_back_all()).is_some())
}

/// Last step of a call that found no memory although all idle blocks went back: repeats the call if graphs gave back
/// memory. `status`: the call's answer so far.
fn after_graphs(owner: &ContextPool, status: Status, real: &mut dyn FnMut() -> Status) -> Status {
    // HIP keeps the answer of the last call as the thread's last error. So this call has to be the last one.
    let once_more = status == OUT_OF_MEMORY && (give_back_graphs(owner) || owner.vendor == Vendor::Hip);
    if once_more { real() } else { status }
}

/// Gives back all idle blocks of the current device, or of all devices if the thread has no context. Returns the bytes.
pub(crate) fn flush_here(vendor: Vendor) -> u64 {
    match (pool::of(vendor), backend::of(vendor).current_device()) {
        (Some(pool), Some(device)) => pool.releaser.flush(device),
        _ => flush_all(vendor),
    }
}

/// Gives back all idle blocks of a vendor's devices. Returns the bytes.
fn flush_all(vendor: Vendor) -> u64 {
    let Some(pool) = pool::of(vendor) else { return 0 };
    let mut devices: Vec<i32> = pool.context_pools().iter().map(|owner| owner.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.into_iter().map(|device| pool.releaser.flush(device)).sum()
}

/// Returns true if this process has a limit on a vendor's devices.
pub(crate) fn has_limit(vendor: Vendor) -> bool {
    pool::of_limited(vendor, guard::new).is_some_and(|pool| pool.quota.is_limited())
}

/// Returns the pool with the context pool of this thread's context.
fn of_thread(pool: Option<&'static Pool>) -> Option<(&'static Pool, &'static ContextPool)> {
    let pool = pool?;
    Some((pool, gate::note(|shim| pool.context_pool_of_thread(shim)).flatten()?))
}

/// Reserves room in the limit for a request, on the device that its memory will be on. Returns `None`, and records the
/// refusal, if there is no room.
pub(super) fn room_for(call: &Call, request: &Request) -> Option<Reserved> {
    let limited = pool::of_limited(call.vendor, guard::new).filter(|pool| pool.quota.is_limited());
    let Some((pool, owner)) = of_thread(limited) else { return Some(Reserved::default()) };
    let owner = match request.location {
        Location::Device(device) if owner.device != device.into() => {
            let on = |other: &&'static ContextPool| other.device == device.into();
            let Some(there) = pool.context_pools().into_iter().find(on) else { return Some(Reserved::default()) };
            there
        }
        _ => owner,
    };
    let room = pool.quota.admits(&pool.releaser, owner, request.bytes);
    if let Err(refused) = room {
        gate::note(|shim| records::pooled::limit_refused(shim, request.bytes, refused == LimitRefused::Group));
    }
    room.ok()
}

/// Runs a call that takes `bytes` (0: unknown) of the device of `place`, or else of this thread's context. If there is no memory, gives back unused memory and
/// repeats the call: once all idle blocks are back, and once graphs gave back what they hold.
#[inline]
pub(super) fn again(call: &Call, bytes: u64, place: Location, mut real: impl FnMut() -> Status) -> Status {
    match real() {
        OUT_OF_MEMORY => once_more(call, bytes, place, &mut real),
        status => status,
    }
}

#[cold]
#[inline(never)]
fn once_more(call: &Call, bytes: u64, place: Location, real: &mut dyn FnMut() -> Status) -> Status {
    let status = match of_thread(pool::of(call.vendor)) {
        Some((pool, owner)) => {
            let said = (OUT_OF_MEMORY, owner.in_transit.blocks.ended());
            let status = until_there_is_room(pool, owner, bytes, Some(said), real);
            after_graphs(owner, status, real)
        }
        None if !queries::capturing() && flush_all(call.vendor) > 0 => real(),
        None => OUT_OF_MEMORY,
    };
    let device = match place {
        Location::Device(device) => Some(device.into()),
        _ => None,
    };
    short::with_memory_of_others(call.vendor, device, bytes, status, real)
}
