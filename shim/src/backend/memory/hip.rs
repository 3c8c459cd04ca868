//! The memory of HIP.

use super::{GLOBAL, MAPPED, MemoryCalls, NOT_SUPPORTED, answer};
use crate::backend::answer::told;
use crate::backend::both::thread_states;
use crate::backend::{hip, hip_runtime};
use gpumem_abi::types::*;
use std::ffi::c_int;

/// `hipDeviceAttributeConcurrentManagedAccess`.
const HIP_CONCURRENT: c_int = 9;

pub(super) struct Hip;

/// HIP's calls. It has no release streams: the effect of hipFreeAsync on memory of hipMalloc is unknown.
impl MemoryCalls for Hip {
    thread_states!(hip);

    /// Returns false: below HIP's runtime there is no boundary at which all work could be counted.
    fn sees_all(&self) -> bool {
        false
    }

    fn free(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: the block goes back once, and no one else has it.
        answer(unsafe { hip_runtime::hipFree(addr) })
    }

    fn free_bytes(&self) -> Option<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: rule of answers: the call writes locals of the type that its row declares.
        let status = unsafe { hip_runtime::hipMemGetInfo(&mut free, &mut total) };
        (status == Some(SUCCESS)).then_some(free as u64)
    }

    /// Without XNACK managed memory is not moved, and memory that does not fit fails on first touch.
    fn managed(&self, device: Device, bytes: usize) -> Result<u64, Status> {
        // SAFETY: rule of answers: each call writes a local of the type that its row declares. HIP
        // checks the device.
        unsafe {
            match told(|concurrent| hip_runtime::hipDeviceGetAttribute(concurrent, HIP_CONCURRENT, device)) {
                Ok(1..) if xnack() => told(|addr| hip_runtime::hipMallocManaged(addr, bytes, GLOBAL)),
                _ => Err(NOT_SUPPORTED),
            }
        }
    }

    fn host(&self, bytes: usize) -> Result<u64, Status> {
        // SAFETY: rule of answers: each call writes a local of the type that its row declares.
        // `host` is what the first call gave, and goes back once if the second fails.
        unsafe {
            let host = told(|host| hip_runtime::hipHostMalloc(host, bytes, MAPPED))?;
            let addr = told(|addr| hip_runtime::hipHostGetDevicePointer(addr, host, 0)).inspect_err(|_| {
                let _ = hip_runtime::hipHostFree(host);
            })?;
            if addr == host { Ok(addr) } else { Err(NOT_SUPPORTED) }
        }
    }

    fn free_host(&self, addr: u64) -> Status {
        // SAFETY: rule of the pool's memory: `host` gave this memory, and it goes back once.
        answer(unsafe { hip_runtime::hipHostFree(addr) })
    }

    fn fill(&self, addr: u64, byte: u8, bytes: usize) -> Status {
        // SAFETY: rule of the pool's memory: the block has at least `bytes` bytes, and no one else
        // has it.
        answer(unsafe { hip_runtime::hipMemset(addr, byte.into(), bytes) })
    }

    fn synchronize(&self) -> Status {
        // SAFETY: hipDeviceSynchronize takes no arguments, so it needs nothing of its caller.
        answer(unsafe { hip_runtime::hipDeviceSynchronize() })
    }
}

/// True if page faults of the device are served, which managed memory that moves needs.
fn xnack() -> bool {
    std::env::var_os("HSA_XNACK").is_some_and(|value| value == "1")
}
