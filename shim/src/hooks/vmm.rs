//! Virtual memory management: physical memory, reservations, mappings.

use super::{get, parameter, props_of, written};
use crate::call::{Call, Real};
use crate::gate;
use crate::records;
use crate::records::registry::live::Class;
use crate::request::{Request, free as freed, place};
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::location::Location;
use std::ffi::c_int;

/// The program asks for physical memory.
pub(crate) unsafe fn create(call: Call, real: Real<(*mut VmmHandle, usize, Opaque, u64)>) -> Status {
    let (handle, bytes, prop, _) = real.args;
    let described = props_of(prop);
    let location = described.map_or(Location::Unknown, |(kind, at)| place::named(kind, at));
    let request = Request { location, ..Request::new(AllocKind::VmmPhysical, bytes as u64) };
    // SAFETY: rule of out-parameters: `handle` is that of the call.
    let status = unsafe { get(&call, request, || real.call(), |_, status| written(status, handle)) };
    if let Some((kind, at)) = described.filter(|_| status == SUCCESS && location == Location::Unknown) {
        gate::note(|shim| place::tell_unknown(shim, kind, at));
    }
    status
}

/// The program imports physical memory of another process. No call tells its size.
pub(crate) unsafe fn import(call: Call, real: Real<(*mut VmmHandle, Opaque, c_int)>) -> Status {
    let (handle, ..) = real.args;
    let request = Request::new(AllocKind::VmmImport, 0);
    // SAFETY: rule of out-parameters: `handle` is that of the call.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, handle)) }
}

/// The program makes a multicast object.
pub(crate) unsafe fn multicast(call: Call, real: Real<(*mut VmmHandle, *const MulticastProp)>) -> Status {
    let (handle, prop) = real.args;
    let real = || real.call();
    get(&call, Request::new(AllocKind::Multicast, 0), real, |request, status| {
        request.bytes = parameter(prop).map_or(0, |prop| prop.size as u64);
        // SAFETY: rule of out-parameters: `handle` is read only after success.
        unsafe { written(status, handle) }
    })
}

/// The program asks for one more hold on the memory behind an address.
pub(crate) unsafe fn retain(_call: Call, real: Real<(*mut VmmHandle, Opaque)>) -> Status {
    let (handle, _) = real.args;
    // SAFETY: rule of out-parameters: `handle` is read only after success.
    unsafe {
        let status = real.call();
        if let Some(handle) = written(status, handle) {
            gate::note(|shim| records::vmm::retained(shim, handle));
        }
        status
    }
}

/// The program releases physical memory. Mapped memory stays until it is unmapped.
pub(crate) unsafe fn release(_call: Call, real: Real<(VmmHandle,)>) -> Status {
    let releasing = gate::note(|shim| records::vmm::releasing(shim, real.args.0)).flatten();
    let status = real.call();
    if let Some(release) = releasing {
        gate::note(|shim| records::vmm::released(shim, release, status == SUCCESS));
    }
    status
}

/// The program reserves addresses.
pub(crate) unsafe fn reserve(call: Call, real: Real<(*mut DevicePtr, usize, usize, DevicePtr, u64)>) -> Status {
    let (ptr, bytes, ..) = real.args;
    let request = Request::new(AllocKind::VmmReservation, bytes as u64);
    // SAFETY: rule of out-parameters: `ptr` is read only after success.
    unsafe { get(&call, request, || real.call(), |_, status| written(status, ptr)) }
}

/// The program gives addresses back.
pub(crate) unsafe fn unreserve(_: Call, real: Real<(DevicePtr, usize)>) -> Status {
    let (ptr, _) = real.args;
    freed(Class::Reservation, ptr, || real.call())
}

/// The program maps physical memory.
pub(crate) unsafe fn map(call: Call, real: Real<(DevicePtr, usize, usize, VmmHandle, u64)>) -> Status {
    let (ptr, bytes, _, handle, _) = real.args;
    let request = Request { extra: handle, ..Request::new(AllocKind::VmmMapping, bytes as u64) };
    get(&call, request, || real.call(), |_, _| Some(ptr))
}

/// The program unmaps a range.
pub(crate) unsafe fn unmap(_call: Call, real: Real<(DevicePtr, usize)>) -> Status {
    let (ptr, bytes) = real.args;
    let unmapping = gate::note(|shim| records::vmm::unmapping(shim, ptr, bytes as u64)).unwrap_or_default();
    let status = real.call();
    if !unmapping.is_empty() {
        gate::note(|shim| records::vmm::unmapped(shim, unmapping, status == SUCCESS));
    }
    status
}
