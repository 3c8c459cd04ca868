//! The driver's pools for stream-ordered memory: the location of each pool's memory. Allocations from them are in
//! [`super::memory`].

use super::{parameter, props_of, written};
use crate::call::{Call, Real};
use crate::gate;
use crate::records::driver_pools;
use crate::request::place;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::location::Location;
use std::ffi::c_int;

/// The program makes a pool.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut MemPool, Opaque)>) -> Status {
    let (pool, props) = real.args;
    // SAFETY: rule of out-parameters: `pool` is read only after success.
    unsafe {
        let status = real.call();
        known(&call, written(status, pool), || props_of(props));
        status
    }
}

/// Records a pool that a call has given the program, with memory of that type at that location.
fn known(call: &Call, pool: Option<MemPool>, described: impl FnOnce() -> Option<(c_int, MemLocation)>) {
    let Some(pool) = pool else { return };
    let described = described();
    start::record(|shim| {
        let location = described.map_or(Location::Unknown, |(kind, at)| place::named(kind, at));
        if let Some((kind, at)) = described {
            place::tell_unknown(shim, kind, at);
        }
        driver_pools::known(shim, call.vendor, pool as u64, location);
    });
}

/// The program destroys a pool. Allocations from it stay until they are freed.
pub(crate) unsafe fn destroy(call: Call, real: Real<(MemPool,)>) -> Status {
    let (pool,) = real.args;
    // Another thread may get the handle at once.
    let was = gate::note(|shim| driver_pools::destroying(shim, call.vendor, pool as u64));
    let status = real.call();
    if let Some(was) = was.filter(|_| status != SUCCESS) {
        gate::note(|shim| driver_pools::stays(shim, call.vendor, pool as u64, was));
    }
    status
}

/// The program asks for a device's default pool, whose memory is the device's.
pub(crate) unsafe fn of_device(call: Call, real: Real<(*mut MemPool, Device)>) -> Status {
    let (pool, device) = real.args;
    // SAFETY: rule of out-parameters: `pool` is read only after success.
    unsafe {
        let status = real.call();
        let here = MemLocation { kind: place::DEVICE, id: device };
        known(&call, written(status, pool), || Some((place::PINNED, here)));
        status
    }
}

/// The program asks for a device's current pool. It is the default pool unless the program has chosen another.
pub(crate) unsafe fn current(call: Call, real: Real<(*mut MemPool, Device)>) -> Status {
    let (_, device) = real.args;
    let chosen = gate::note(|shim| driver_pools::current(shim, call.vendor, device)).flatten();
    match chosen {
        Some(_) => real.call(),
        // SAFETY: rule of the call: both arguments go on as they came.
        None => unsafe { of_device(call, real) },
    }
}

/// The program asks for the default pool, or the current one, of a location.
pub(crate) unsafe fn at(call: Call, real: Real<(*mut MemPool, *mut MemLocation, c_int)>) -> Status {
    let (pool, location, kind) = real.args;
    // SAFETY: rule of out-parameters: `pool` is read only after success.
    unsafe {
        let status = real.call();
        known(&call, written(status, pool), || Some((kind, parameter(location.cast_const())?)));
        status
    }
}

/// The program chooses the pool that a device allocates from.
pub(crate) unsafe fn choose(call: Call, real: Real<(Device, MemPool)>) -> Status {
    let (device, pool) = real.args;
    let status = real.call();
    if status == SUCCESS {
        start::record(|shim| driver_pools::chosen(shim, call.vendor, device, pool as u64));
    }
    status
}

/// The program chooses the current pool of a location. If that is a device's pool for pinned memory, `cuMemAllocAsync`
/// allocates from it.
pub(crate) unsafe fn choose_at(call: Call, real: Real<(*mut MemLocation, c_int, MemPool)>) -> Status {
    let (location, kind, pool) = real.args;
    let status = real.call();
    let of_device = |at: &MemLocation| at.kind == place::DEVICE && kind == place::PINNED;
    if status == SUCCESS
        && let Some(at) = parameter(location.cast_const()).filter(of_device)
    {
        start::record(|shim| driver_pools::chosen(shim, call.vendor, at.id, pool as u64));
    }
    status
}
