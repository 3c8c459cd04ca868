//! Virtual memory management: physical memory, reservations, mappings.

use super::{get, parameter, props_of, written};
use crate::call::Call;
use crate::gate;
use crate::records;
use crate::records::registry::live::Class;
use crate::request::{Request, free as freed, place};
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use gpumem_wire::location::Location;
use std::ffi::c_int;

/// The program asks for physical memory.
pub(crate) unsafe fn create(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut VmmHandle, usize, Opaque, u64) -> Status,
    handle: *mut VmmHandle,
    bytes: usize,
    prop: Opaque,
    flags: u64,
) -> Status {
    let described = props_of(prop);
    let location = described.map_or(Location::Unknown, |(kind, at)| place::named(kind, at));
    let request = Request { location, ..Request::new(AllocKind::VmmPhysical, bytes as u64) };
    // SAFETY: rule of the call: `real` gets the arguments as they came, `handle` among them, which is the
    // out-parameter.
    let status =
        unsafe { get(&call, request, || real(handle, bytes, prop, flags), |_, status| written(status, handle)) };
    if let Some((kind, at)) = described.filter(|_| status == SUCCESS && location == Location::Unknown) {
        gate::note(|shim| place::tell_unknown(shim, kind, at));
    }
    status
}

/// The program imports physical memory of another process. No call tells its size.
pub(crate) unsafe fn import(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut VmmHandle, Opaque, c_int) -> Status,
    handle: *mut VmmHandle,
    os_handle: Opaque,
    kind: c_int,
) -> Status {
    let request = Request::new(AllocKind::VmmImport, 0);
    // SAFETY: rule of the call: `real` gets the arguments as they came, `handle` among them, which is the
    // out-parameter.
    unsafe { get(&call, request, || real(handle, os_handle, kind), |_, status| written(status, handle)) }
}

/// The program makes a multicast object.
pub(crate) unsafe fn multicast(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut VmmHandle, *const MulticastProp) -> Status,
    handle: *mut VmmHandle,
    prop: *const MulticastProp,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came. Rule of out-parameters: `handle` is read only
    // after success.
    unsafe {
        get(
            &call,
            Request::new(AllocKind::Multicast, 0),
            || real(handle, prop),
            |request, status| {
                request.bytes = parameter(prop).map_or(0, |prop| prop.size as u64);
                written(status, handle)
            },
        )
    }
}

/// The program asks for one more hold on the memory behind an address.
pub(crate) unsafe fn retain(
    _call: Call,
    real: unsafe extern "C-unwind" fn(*mut VmmHandle, Opaque) -> Status,
    handle: *mut VmmHandle,
    addr: Opaque,
) -> Status {
    // SAFETY: rule of the call: `real` gets both arguments as they came. Rule of out-parameters:
    // `handle` is read only after success.
    unsafe {
        let status = real(handle, addr);
        if let Some(handle) = written(status, handle) {
            gate::note(|shim| records::vmm::retained(shim, handle));
        }
        status
    }
}

/// The program releases physical memory. Mapped memory stays until it is unmapped.
pub(crate) unsafe fn release(
    _call: Call,
    real: unsafe extern "C-unwind" fn(VmmHandle) -> Status,
    handle: VmmHandle,
) -> Status {
    let releasing = gate::note(|shim| records::vmm::releasing(shim, handle)).flatten();
    // SAFETY: rule of the call: `real` gets the handle as it came.
    let status = unsafe { real(handle) };
    if let Some(release) = releasing {
        gate::note(|shim| records::vmm::released(shim, release, status == SUCCESS));
    }
    status
}

/// The program reserves addresses.
pub(crate) unsafe fn reserve(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut DevicePtr, usize, usize, DevicePtr, u64) -> Status,
    ptr: *mut DevicePtr,
    bytes: usize,
    alignment: usize,
    addr: DevicePtr,
    flags: u64,
) -> Status {
    let request = Request::new(AllocKind::VmmReservation, bytes as u64);
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters: `ptr` is read only
    // after success.
    unsafe { get(&call, request, || real(ptr, bytes, alignment, addr, flags), |_, status| written(status, ptr)) }
}

/// The program gives addresses back.
pub(crate) unsafe fn unreserve(
    _: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr, usize) -> Status,
    ptr: DevicePtr,
    bytes: usize,
) -> Status {
    // SAFETY: rule of the call: `real` gets the range that the program gives back.
    freed(Class::Reservation, ptr, || unsafe { real(ptr, bytes) })
}

/// The program maps physical memory.
pub(crate) unsafe fn map(
    call: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr, usize, usize, VmmHandle, u64) -> Status,
    ptr: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: VmmHandle,
    flags: u64,
) -> Status {
    let request = Request { extra: handle, ..Request::new(AllocKind::VmmMapping, bytes as u64) };
    // SAFETY: rule of the call: `real` gets all arguments as they came.
    get(&call, request, || unsafe { real(ptr, bytes, offset, handle, flags) }, |_, _| Some(ptr))
}

/// The program unmaps a range.
pub(crate) unsafe fn unmap(
    _call: Call,
    real: unsafe extern "C-unwind" fn(DevicePtr, usize) -> Status,
    ptr: DevicePtr,
    bytes: usize,
) -> Status {
    let unmapping = gate::note(|shim| records::vmm::unmapping(shim, ptr, bytes as u64)).unwrap_or_default();
    // SAFETY: rule of the call: `real` gets the range that the program unmaps.
    let status = unsafe { real(ptr, bytes) };
    if !unmapping.is_empty() {
        gate::note(|shim| records::vmm::unmapped(shim, unmapping, status == SUCCESS));
    }
    status
}
