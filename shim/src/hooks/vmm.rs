//! Virtual memory management: physical memory, reservations, mappings.

use super::{freed, made, parameter, written};
use crate::call::Call;
use crate::gate;
use crate::pool::quota::Reserved;
use crate::reclaim::bounded;
use crate::records;
use crate::registry::live::Class;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
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
    // SAFETY: rule of the call: `real` gets the arguments as they came, `handle` among them, which
    // is the out-parameter.
    unsafe {
        let call_real = || real(handle, bytes, prop, flags);
        let (status, _room) =
            if on_device(prop) { bounded(&call, bytes, call_real) } else { (call_real(), Reserved::none()) };
        physical(&call, status, AllocKind::VmmPhysical, handle, bytes as u64);
        status
    }
}

/// Whether physical memory is to lie on a device, as a `CUmemAllocationProp` says.
fn on_device(prop: Opaque) -> bool {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`; `location.type` is the third of the ints that the struct begins with.
    const DEVICE: c_int = 1;
    parameter(prop.cast::<[c_int; 3]>()).is_some_and(|ints| ints[2] == DEVICE)
}

/// The program takes physical memory of another process. Its size is not told.
pub(crate) unsafe fn import(
    call: Call,
    real: unsafe extern "C-unwind" fn(*mut VmmHandle, Opaque, c_int) -> Status,
    handle: *mut VmmHandle,
    os_handle: Opaque,
    kind: c_int,
) -> Status {
    // SAFETY: rule of the call: `real` gets the arguments as they came, `handle` among them, which
    // is the out-parameter.
    unsafe {
        let status = real(handle, os_handle, kind);
        physical(&call, status, AllocKind::VmmImport, handle, 0);
        status
    }
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
        let status = real(handle, prop);
        let bytes = parameter(prop).map_or(0, |prop| prop.size as u64);
        physical(&call, status, AllocKind::Multicast, handle, bytes);
        status
    }
}

/// # Safety
/// `handle` is the program's out-parameter of a call that answered `status`.
unsafe fn physical(call: &Call, status: Status, kind: AllocKind, handle: *mut VmmHandle, bytes: u64) {
    if status != SUCCESS {
        gate::note(|shim| records::allocations::failed(shim, call, kind, bytes, status));
        return;
    }
    // SAFETY: rule of out-parameters: our caller passes the program's `handle`, and its call has
    // succeeded.
    if let Some(handle) = unsafe { written(status, handle) } {
        start::record(|shim| records::vmm::created(shim, call, kind, handle, bytes));
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

/// The program releases physical memory. What is mapped stays until it is unmapped.
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
    // SAFETY: rule of the call: `real` gets the arguments as they came. Rule of out-parameters:
    // `made` reads `ptr` only after success.
    unsafe {
        let status = real(ptr, bytes, alignment, addr, flags);
        made(&call, status, AllocKind::VmmReservation, Class::Reservation, ptr, bytes, 0, 0);
        status
    }
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
    // SAFETY: rule of the call: `real` gets all arguments as they came.
    let status = unsafe { real(ptr, bytes, offset, handle, flags) };
    if status == SUCCESS {
        start::record(|shim| records::vmm::mapped(shim, &call, ptr, bytes as u64, handle));
    }
    status
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
