//! Uses of device memory that the pool has to know of. The program asks for a block's start and properties, changes how
//! it behaves, or hands it to other devices and drivers.

use super::ipc::shown;
use crate::call::{Call, Real};
use crate::gate;
use crate::pool::{self, answers};
use gpumem_abi::types::*;
use std::ffi::{c_int, c_uint};

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`
const ALREADY: Status = 704;

/// The program opens the memory of a context to the current one.
pub(crate) unsafe fn enable(_: Call, real: Real<(Context, c_uint)>) -> Status {
    let status = real.call();
    // As soon as the program is told, by this call or another thread's, kernels of one device may use memory of the
    // other. Any other answer opens nothing.
    if matches!(status, SUCCESS | ALREADY) {
        pool::peer_access_enabled();
    }
    status
}

/// The program closes the memory again. What was opened may still be in use, so the note that it was opened is kept.
pub(crate) unsafe fn disable(_: Call, real: Real<(Context,)>) -> Status {
    real.call()
}

/// The program takes a handle for a range, for another driver to use.
pub(crate) unsafe fn range_handle(call: Call, real: Real<(Opaque, DevicePtr, usize, c_int, u64)>) -> Status {
    let (_, ptr, ..) = real.args;
    pool::pin(ptr);
    let status = real.call();
    shown(&call, status, ptr)
}

/// The program binds memory to an endpoint that others reach.
pub(crate) unsafe fn bind_to_endpoint(call: Call, real: Real<(c_uint, Device, u64, DevicePtr, u64, u64)>) -> Status {
    let (.., ptr, _, _) = real.args;
    pool::pin(ptr);
    let status = real.call();
    shown(&call, status, ptr)
}

/// The program changes an attribute of a block.
pub(crate) unsafe fn set_attribute(_: Call, real: Real<(Opaque, c_int, DevicePtr)>) -> Status {
    let (.., ptr) = real.args;
    pool::pin(ptr);
    real.call()
}

/// The last known attribute of pointers: `CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL` (HIP has fewer). For a later
/// one the program gets the driver's own answer, about the block as the driver knows it.
const LAST_ATTRIBUTE: c_int = 22;

fn answered(attribute: c_int) {
    if attribute > LAST_ATTRIBUTE {
        gate::record_if_started(|shim| shim.met(&format!("pointers with attribute {attribute}")));
    }
}

/// The program asks for an attribute of an address.
pub(crate) unsafe fn get_attribute(call: Call, real: Real<(Opaque, c_int, DevicePtr)>) -> Status {
    let (data, attribute, ptr) = real.args;
    let asked = answers::about(call.vendor, ptr);
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of
    // out-parameters: after success `data` holds what the attribute's type says.
    unsafe {
        let status = real.with((data, attribute, asked.ptr));
        if status == SUCCESS {
            answered(attribute);
            asked.answered(attribute, data);
        }
        status
    }
}

/// The program asks for several attributes of an address.
pub(crate) unsafe fn get_attributes(call: Call, real: Real<(c_uint, *mut c_int, *mut Opaque, DevicePtr)>) -> Status {
    let (len, attributes, data, ptr) = real.args;
    let asked = answers::about(call.vendor, ptr);
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of parameters:
    // both arrays have `len` elements. Rule of out-parameters: after success each element of `data`
    // leads to a value of its attribute's type.
    unsafe {
        let status = real.with((len, attributes, data, asked.ptr));
        if status == SUCCESS && !attributes.is_null() && !data.is_null() {
            for index in 0..len as usize {
                answered(attributes.add(index).read_unaligned());
                asked.answered(attributes.add(index).read_unaligned(), data.add(index).read_unaligned());
            }
        }
        status
    }
}

/// The program asks which block an address is in.
pub(crate) unsafe fn address_range(call: Call, real: Real<(*mut DevicePtr, *mut usize, DevicePtr)>) -> Status {
    let (base, bytes, ptr) = real.args;
    let asked = answers::about(call.vendor, ptr);
    // SAFETY: rule of the call: `real` gets the other arguments as they came. Rule of
    // out-parameters: `bytes` and `base` are written only after success, and only if they are not NULL.
    unsafe {
        let status = real.with((base, bytes, asked.ptr));
        if let (SUCCESS, Some(exact), false) = (status, asked.bytes(), bytes.is_null()) {
            bytes.write_unaligned(exact);
        }
        if let (SUCCESS, Some(start), false) = (status, asked.start(), base.is_null()) {
            base.write_unaligned(start);
        }
        status
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_last_attribute_is_the_headers_last() {
        let last = gpumem_abi::known::POINTER_ATTRIBUTES.iter().map(|row| row.1).max();
        assert_eq!(last, Some(super::LAST_ATTRIBUTE as u32));
    }
}
