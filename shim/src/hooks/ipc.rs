//! Memory of other processes and of other APIs.

use super::{get, parameter, written};
use crate::backend;
use crate::call::{Call, Real};
use crate::gate;
use crate::pool::{self, answers};
use crate::records;
use crate::records::registry::live::Class;
use crate::request::{Request, free as freed};
use crate::shim::Shim;
use crate::start;
use gpumem_abi::types::*;
use gpumem_wire::kinds::AllocKind;
use std::ffi::c_uint;

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: Status = 801;

/// The program lets other processes open one of its allocations.
pub(crate) unsafe fn export(call: Call, real: Real<(Opaque, DevicePtr)>) -> Status {
    let (handle, ptr) = real.args;
    let asked = answers::about(call.vendor, ptr);
    if asked.may_not_be_shown() {
        gate::note(|shim| shim.refused_export());
        return NOT_SUPPORTED;
    }
    // SAFETY: rule of the call: `real` gets the out-parameter as it came, and the address of the
    // block in place of the program's.
    let status = unsafe { real.with((handle, asked.ptr)) };
    // SAFETY: rule of out-parameters: `handle` is that of the call, for 64 bytes.
    unsafe { exported(&call, status, handle, ptr) }
}

/// The program lets other processes open one of its stream-ordered allocations.
pub(crate) unsafe fn export_pool_pointer(call: Call, real: Real<(Opaque, DevicePtr)>) -> Status {
    let (data, ptr) = real.args;
    let status = real.call();
    // SAFETY: rule of out-parameters: `data` is that of the call, for 64 bytes.
    unsafe { exported(&call, status, data, ptr) }
}

/// Handles the answer of a call that shows an allocation to others: the one that `ptr` is an address of, or inside of.
/// If the call succeeded, others may have its address from now on.
pub(super) fn shown(call: &Call, status: Status, ptr: DevicePtr) -> Status {
    if status == SUCCESS {
        pool::pin(ptr);
        gate::note(|shim| note_shown(shim, call, ptr));
    }
    status
}

/// Marks the allocation as shown. Returns the place of its record.
fn note_shown(shim: &Shim, call: &Call, ptr: DevicePtr) -> u32 {
    pool::note_shown(shim, ptr).unwrap_or_else(|| {
        // None of our maps finds the allocation around an address, and there may be a million.
        let begins = || backend::of(call.vendor).allocation_around(ptr).map(|(base, _)| base);
        records::allocations::exported(shim, ptr, begins)
    })
}

/// As [`shown`], for a call that writes a handle by which another process opens the allocation.
///
/// # Safety
/// `handle` is the program's out-parameter of that call, for 64 bytes.
unsafe fn exported(call: &Call, status: Status, handle: Opaque, ptr: DevicePtr) -> Status {
    // SAFETY: our caller vouches for `handle`. Bytes need no alignment.
    let handle = unsafe { written(status, handle.cast::<IpcMemHandle>()) };
    if let Some(handle) = handle {
        pool::pin(ptr);
        gate::note(|shim| {
            let record = note_shown(shim, call, ptr);
            let around = backend::of(call.vendor).allocation_around(ptr);
            records::shared::exported(shim, &handle, record, around);
        });
    }
    status
}

/// Opens memory of another process by `real`, which has its handle. The call does not tell the size, so the driver is
/// asked about the address.
///
/// # Safety
/// `ptr` is the program's out-parameter of `real`.
unsafe fn opened(
    call: &Call,
    request: Request,
    ptr: *mut DevicePtr,
    handle: Option<IpcMemHandle>,
    real: impl FnMut() -> Status,
) -> Status {
    let (class, mut at) = (request.class, None);
    let status = get(call, request, real, |request, status| {
        // SAFETY: rule of out-parameters: our caller vouches for `ptr`, and `status` is that of its call.
        let addr = unsafe { written(status, ptr) }?;
        let around = start::record(|_| backend::of(call.vendor).allocation_around(addr)).flatten();
        request.bytes = around.map_or(0, |(_, bytes)| bytes);
        at = Some(addr);
        at
    });
    if let (Some(addr), Some(handle)) = (at, handle) {
        gate::note(|shim| records::shared::imported(shim, &handle, class, addr));
    }
    status
}

/// Makes a request for memory of another process.
fn import(class: Class, extra: u64) -> Request {
    Request { class, extra, ..Request::new(AllocKind::IpcImport, 0) }
}

/// The program opens memory of another process.
pub(crate) unsafe fn open(call: Call, real: Real<(*mut DevicePtr, IpcMemHandle, c_uint)>) -> Status {
    let (ptr, handle, _) = real.args;
    // SAFETY: rule of out-parameters: `ptr` is that of the call.
    unsafe { opened(&call, import(Class::Import, 0), ptr, Some(handle), || real.call()) }
}

/// The program closes memory of another process.
pub(crate) unsafe fn close(_: Call, real: Real<(DevicePtr,)>) -> Status {
    let ptr = real.args.0;
    if gate::note(|shim| records::shared::stays_open(shim, ptr)) == Some(true) {
        let status = real.call();
        if status != SUCCESS {
            gate::note(|shim| records::shared::close_failed(shim, ptr, status));
        }
        return status;
    }
    let status = freed(Class::Import, ptr, || real.call());
    if status == SUCCESS {
        gate::note(|shim| records::shared::closed(shim, ptr));
    }
    status
}

/// The program opens stream-ordered memory of another process, and frees it like its own.
pub(crate) unsafe fn import_pool_pointer(call: Call, real: Real<(*mut DevicePtr, MemPool, Opaque)>) -> Status {
    let (ptr, pool, data) = real.args;
    // SAFETY: rule of out-parameters: `ptr` is that of the call.
    unsafe { opened(&call, import(Class::Address, pool as u64), ptr, parameter(data.cast()), || real.call()) }
}

/// The program imports memory of another API.
pub(crate) unsafe fn import_external(
    call: Call,
    real: Real<(*mut ExternalMemory, *const ExternalMemoryDesc)>,
) -> Status {
    let (memory, desc) = real.args;
    let real = || real.call();
    get(&call, Request::new(AllocKind::ExternalMemory, 0), real, |request, status| {
        request.bytes = parameter(desc).map_or(0, |desc| desc.size);
        // SAFETY: rule of out-parameters: `memory` is read only after success. An ExternalMemory has the size of an address.
        unsafe { written(status, memory.cast()) }
    })
}

/// The program releases memory of another API.
pub(crate) unsafe fn destroy_external(_: Call, real: Real<(ExternalMemory,)>) -> Status {
    freed(Class::External, real.args.0 as u64, || real.call())
}

/// The program asks for an address of memory of another API, and frees it like its own.
pub(crate) unsafe fn map_external(
    call: Call,
    real: Real<(*mut DevicePtr, ExternalMemory, *const ExternalBufferDesc)>,
) -> Status {
    let (ptr, memory, desc) = real.args;
    let request = Request { extra: memory as u64, ..Request::new(AllocKind::ExternalMapping, 0) };
    let real = || real.call();
    get(&call, request, real, |request, status| {
        request.bytes = parameter(desc).map_or(0, |desc| desc.size);
        // SAFETY: rule of out-parameters: `ptr` is read only after success.
        unsafe { written(status, ptr) }
    })
}
