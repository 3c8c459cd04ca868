//! The memory of HIP.

use super::{GLOBAL, MAPPED, MemoryCalls, NOT_SUPPORTED, answer};
use crate::backend::answer::told;
use crate::backend::both::{blocks, thread_states};
use crate::backend::{hip, hip_runtime};
use gpumem_abi::types::*;

pub(super) struct Hip;

/// HIP's calls. It has no release streams: the effect of hipFreeAsync on memory of hipMalloc is unknown.
impl MemoryCalls for Hip {
    thread_states!(hip);
    // 9: `hipDeviceAttributeConcurrentManagedAccess`.
    blocks!(
        hip_runtime: hipFree, hipDeviceGetAttribute(9), hipMallocManaged if xnack(), hipHostMalloc,
        hipHostGetDevicePointer, hipHostFree, hipMemset, hipDeviceSynchronize
    );

    /// Returns false: below HIP's runtime there is no boundary at which all work could be counted.
    fn sees_all(&self) -> bool {
        false
    }

    fn free_bytes(&self) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: rule of answers: the call writes locals of the type that its row declares.
        let status = unsafe { hip_runtime::hipMemGetInfo(&mut free, &mut total) };
        (status == Some(SUCCESS)).then_some(free as u64)
    }
}

/// True if page faults of the device are served, which managed memory that moves needs. Without them (XNACK) memory
/// that does not fit fails on first touch.
fn xnack() -> bool {
    std::env::var_os("HSA_XNACK").is_some_and(|value| value == "1")
}
