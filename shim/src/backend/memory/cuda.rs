//! The memory of CUDA.

use super::{Event, GLOBAL, MAPPED, MemoryCalls, NOT_SUPPORTED, ReleaseStream, answer};
use crate::backend::answer::told;
use crate::backend::both::{blocks, thread_states};
use crate::backend::driver::{self, Function};
use crate::backend::{Backend, cuda};
use crate::process::cancel::Uncancelled;
use gpumem_abi::types::*;
use std::ffi::c_int;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`: needed for frees in stream order.
const CUDA_POOLS: c_int = 115;

/// True if a device supports frees in stream order.
///
/// # Errors
/// The driver's.
fn has_pools(device: Device) -> Result<bool, Status> {
    let _uncancelled = Uncancelled::new();
    // SAFETY: rule of answers: the call writes a local of the type that its row declares. The driver checks the
    // device.
    let pools = || told(|pools| unsafe { driver::cuDeviceGetAttribute(pools, CUDA_POOLS, device) });
    Ok(driver::frees_in_order() && pools()? != 0)
}

pub(super) struct Cuda;

impl MemoryCalls for Cuda {
    thread_states!(cuda);
    // 89: `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
    blocks!(
        driver: cuMemFree_v2, cuDeviceGetAttribute(89), cuMemAllocManaged if true, cuMemHostAlloc,
        cuMemHostGetDevicePointer_v2, cuMemFreeHost, cuMemsetD8_v2, cuCtxSynchronize
    );

    fn sees_all(&self) -> bool {
        true
    }

    fn device(&self, bytes: usize) -> Result<u64, Status> {
        type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> Status;
        let real = driver::real(Function::cuMemAlloc_v2);
        if real == 0 {
            return Err(SYMBOL_NOT_FOUND);
        }
        // SAFETY: the slot holds cuMemAlloc_v2, which has this type. Rule of answers: `addr` takes the address.
        told(|addr| Some(unsafe { std::mem::transmute::<usize, MemAlloc>(real)(addr, bytes) }))
    }

    fn free_bytes(&self) -> Option<u64> {
        cuda::Cuda.memory_info().map(|(free, _)| free)
    }

    fn has_release_streams(&self, device: Device) -> bool {
        has_pools(device).unwrap_or(true)
    }

    fn release_stream(&self, device: Device) -> Result<Option<ReleaseStream>, Status> {
        if !has_pools(device)? {
            return Ok(None);
        }
        // SAFETY: rule of answers: the call writes a local of the type that its row declares.
        told(|stream| unsafe { driver::cuStreamCreate(stream, STREAM_NON_BLOCKING) })
            .map(|stream: Stream| Some(stream as ReleaseStream))
    }

    fn end_release_stream(&self, stream: ReleaseStream) {
        // SAFETY: `release_stream` made this stream, and only its owner knows it. The owner ends it once.
        let _ = unsafe { driver::cuStreamDestroy_v2(stream as Stream) };
    }

    fn free_on(&self, addr: u64, stream: ReleaseStream) -> Status {
        // SAFETY: rule of the pool's memory: the block goes back once. `release_stream` made the stream, and
        // it is alive.
        answer(unsafe { driver::cuMemFreeAsync(addr, stream as Stream) })
    }

    fn pass(&self, stream: ReleaseStream) -> Status {
        // SAFETY: `release_stream` made this stream, and its owner ends it only later.
        answer(unsafe { driver::cuStreamSynchronize(stream as Stream) })
    }

    fn fill_on(&self, addr: u64, byte: u8, bytes: usize, stream: ReleaseStream) -> Status {
        // SAFETY: rule of the pool's memory, as for `fill`. `release_stream` made this stream, and it is alive.
        match unsafe { driver::cuMemsetD8Async(addr, byte, bytes, stream as Stream) } {
            Some(SUCCESS) => self.pass(stream),
            refused => answer(refused),
        }
    }

    fn record_event_after_all(&self, context: u64, event: Option<Event>) -> Option<Event> {
        // SAFETY: the event was made here, in this context, which our caller holds.
        cuda::recorded(event, |event| unsafe { driver::cuCtxRecordEvent(context as Context, event) })
    }

    fn has_context_events(&self) -> bool {
        driver::has_context_events()
    }

    fn completed(&self, event: Event) -> bool {
        // SAFETY: `record_event_after_all` made this event, and `drop_event` has not ended it yet.
        unsafe { driver::cuEventQuery(event as Opaque) == Some(SUCCESS) }
    }

    fn wait(&self, event: Event) -> Status {
        // SAFETY: `record_event_after_all` made this event, and `drop_event` has not ended it yet.
        answer(unsafe { driver::cuEventSynchronize(event as Opaque) })
    }

    fn drop_event(&self, event: Event) {
        // SAFETY: `record_event_after_all` made this event. Nothing waits for it any more, and it is destroyed
        // once.
        let _ = unsafe { driver::cuEventDestroy_v2(event as Opaque) };
    }
}
